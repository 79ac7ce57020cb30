"""A mask -> disjoint parts that together allow the same pairs, each with the step between the keys
it looks at.

A part with step d allows pairs at distances that are multiples of d only. Its slots fall into d
classes (slot % d) that never meet, and within a class the pattern is an ordinary one: dilated
attention becomes d short windows, strided attention a window and d short causal sequences. Differs
from Child 2019 and Beltagy 2020, which write one kernel for each pattern: here the mask algebra
says what can be split, and the parts are merged by their lse.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import NamedTuple

from weft.nn.attention.base import Mask
from weft.nn.attention.masks.algebra import And, Full, MaskBase, Or
from weft.nn.attention.masks.distance import Every


class Part(NamedTuple):
    """Pairs q, k with (q - k) a multiple of `step` that `mask` allows."""

    step: int
    mask: Mask


def parts_of(mask: Mask) -> list[Part]:
    """Parts that cover the mask, each pair in exactly one of them."""
    if not isinstance(mask, MaskBase):
        return [Part(1, mask)]
    terms = sorted(alternatives(mask), key=lambda term: step_of(term) > 1)
    if all(step_of(term) == 1 for term in terms):
        return [Part(1, mask)]
    near = [term for term in terms if step_of(term) == 1]
    disjoint = [reduce(lambda a, b: a | b, near)] if near else []
    for term in terms[len(near) :]:
        disjoint.append(reduce(and_, [term, *[~other for other in disjoint]]))
    return [Part(step_of(term), without_step(term)) for term in disjoint]


def alternatives(mask: MaskBase) -> list[MaskBase]:
    """Masks whose union is this one. `(a | b) & c` gives `a & c` and `b & c` if a or b looks at
    every d-th key."""
    if isinstance(mask, Or):
        return [term for inner in mask.masks for term in alternatives(inner)]
    if not isinstance(mask, And):
        return [mask]
    for i, inner in enumerate(mask.masks):
        if isinstance(inner, Or) and any(step_of(term) > 1 for term in inner.masks):
            rest = mask.masks[:i] + mask.masks[i + 1 :]
            return [
                term for choice in inner.masks for term in alternatives(reduce(and_, rest, choice))
            ]
    return [mask]


def conjuncts(mask: MaskBase) -> tuple[MaskBase, ...]:
    return mask.masks if isinstance(mask, And) else (mask,)


def step_of(mask: MaskBase) -> int:
    """d if the mask says Every(d) and something else, otherwise 1."""
    steps = [inner.step for inner in conjuncts(mask) if isinstance(inner, Every)]
    return max(steps, default=1)


def without_step(mask: MaskBase) -> MaskBase:
    """The mask without the `Every` that `step_of` found: inside a class of slots it always
    holds."""
    step = step_of(mask)
    rest = [m for m in conjuncts(mask) if not (isinstance(m, Every) and m.step == step)]
    return reduce(and_, rest) if rest else Full()
