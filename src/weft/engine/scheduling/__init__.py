"""The scheduler: requests -> one plan per engine step. Integers only; the model runner executes it.

The life of a request, and the module that implements each part:

    1  add        rejected with a message if it can never fit                   admission
    2  waiting    keys by tokens served; in a key longest cached prefix first,  fair_queue,
                  with aging                                                    waiting_queue
    3  admission  encoded source, cached prefix and first pages are found       admission
    4  plan       decodes first (with drafts), then chunked prefills;           planner, plan
                  multi-step where no token has to be returned in between
    5  run        the model runner executes the plan                            plan
    6  commit     tokens appended, full pages cached, sequences forked          commit
    7  preemption when pages run out, last admitted first; back to 2            planner
    8  finish     every page is freed or stays in a cache, unlocked             scheduler_state

scheduler        Scheduler: schedule, commit, rollback
planner          Planner: the plan of one step
plan             Plan, Chunk, PlanBuilder; drafts, multi-step decodes, and results per request
waiting_queue    WaitingQueue: the order in which waiting requests of one API key are tried
fair_queue       FairQueue: the waiting queues of all keys, and tokens served (fair queueing)
admission        request limits, and the admission of a waiting sequence group
sequence         Request, RequestTimes, Sequence, SequenceGroup; start, fork, release
scheduler_state  SchedulerState: everything kept between two steps; SchedulerLoad
step_times       StepTimes: how long steps take, measured from completed ones
latency_budget   LatencyBudget: seconds that prefills may add to a step
layered_prefill  LayeredPrefill: chunks whose layers are computed in several steps
stream_start     StreamStart: streams that have just begun wait for short prompts
commit           results of a step -> sequences, page tables and prefix cache
audit            invariants checked from scratch (tests run it after every step)
"""
