"""Python's collection of garbage, for processes that are ours alone: commands and workers.

A busy engine makes and drops thousands of small objects a step, which makes Python look for garbage
often, each time through all that torch and a model are made of: a twentieth of the time of a small
model. A library's caller decides for himself, so nothing else in Weft calls this.
"""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """What exists now stays: later collections pass over it. And they come less often: what an
    engine drops is mostly free without them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
