"""Many requests at once: requests -> plans of one step each. Integers only; a runner does the rest.

The life of a request, and the file to read for each part:

    1  add       refused with both numbers if it can never fit           limits
    2  waits     longest cached prefix first, with ageing                order
    3  admitted  source, cached prefix and first pages are found         admission
    4  planned   decodes first (drafts), then prompts in chunks          planner, step
                 several passes at once, where nobody looks              longer
    5  run       somebody executes the plan                              plan
    6  committed tokens appended, full pages cached, sequences forked    outcome
    7  preempted when pages run out, the latest first; back to 2         planner
    8  done      every page goes back or stays in a cache, unlocked      state

scheduler is the door to all of it. request holds the words (Request, Job, Sequence), settings the
switches, statistics the counts, and audit what must hold after every step.
"""
