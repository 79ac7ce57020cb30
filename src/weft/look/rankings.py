"""Which heads link one word to another: a trace and two words -> all heads, ranked.

    found = find_heads(trace, "它", "苹果")
    found.heads[0].name, found.heads[0].weight, found.heads[0].rank
    found.first          the heads in which no other word has a larger weight
    found.mean           the same of the mean of all heads, and found.rollout of attention rollout

The weight of a row to a word is the sum over the word's tokens; the weight from a word is the mean
over its tokens. `rank` is among the words of the text, the one looked for as one of them; special
tokens are no words. Any part of the text may be looked for, not words only; `它#2` is its second
occurrence.

Attention rollout (Abnar & Zuidema 2020): A = normalized(mean over heads + I), multiplied over the
layers. Attention weights are not an explanation; compare them with ablation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import UsageError
from weft.look.trace_data import Array, HeadName, Word
from weft.look.words import tokens_of_text

if TYPE_CHECKING:
    from weft.look.trace import Trace


@dataclass(frozen=True)
class WordRank:
    """Weight of a word, and how many words have a larger one, plus 1."""

    weight: float
    rank: int
    num_words: int

    @property
    def is_first(self) -> bool:
        return self.rank == 1 and self.weight > 0


@dataclass(frozen=True)
class HeadRank(WordRank):
    """The same of one head."""

    name: HeadName


@dataclass(frozen=True)
class HeadSearch:
    """All heads of one part, the largest weight first."""

    part: str
    query: str
    key: str
    query_tokens: tuple[int, ...]
    key_tokens: tuple[int, ...]
    heads: tuple[HeadRank, ...]
    mean: WordRank
    rollout: WordRank | None
    """None for cross-attention, and where not all weights are known (more than 512 tokens)."""

    @property
    def first(self) -> tuple[HeadRank, ...]:
        """The heads in which the word has the largest weight of all words."""
        return tuple(head for head in self.heads if head.is_first)


def find_heads(trace: Trace, query: str, key: str, part: str | None = None) -> HeadSearch:
    """All heads of a part by the weight of `query` on `key`. `part` None: for an encoder-decoder
    cross-attention if `query` is in the target, else the encoder; otherwise the only stack."""
    for search in find_units(trace, query, key, part):
        if search is not None:
            return search
    raise AssertionError("a search without a result")


def find_units(
    trace: Trace, query: str, key: str, part: str | None = None
) -> Iterator[HeadSearch | None]:
    """`find_heads` in units of work: None after each, then the result."""
    part = part or default_part(trace, query, key)
    if part not in trace.model.parts:
        raise UsageError(
            f"part is {part}, but this model has {', '.join(trace.model.parts)}: use one of them."
        )
    query_side, key_side = trace.side_of(part), trace.side_of(part, "key")
    rows = tokens_of_text(trace.tokens[query_side], trace.text_of(query_side), query)
    keys = tokens_of_text(trace.tokens[key_side], trace.text_of(key_side), key)
    groups = word_groups(trace.words[key_side], keys)
    S = len(trace.tokens[key_side])
    weights_LHS = np.zeros((trace.model.parts[part], trace.model.heads, S))
    for row in rows:
        for layer, weights_HS in enumerate(trace.weights_of_row(part, row)):
            weights_LHS[layer] += weights_HS.astype(np.float64) / len(rows)
            yield None
    heads: list[HeadRank] = []
    for layer, head in np.ndindex(*weights_LHS.shape[:2]):
        one = rank_of(weights_LHS[layer, head], groups)
        place = HeadName(part, layer, head)
        heads.append(HeadRank(one.weight, one.rank, one.num_words, place))
    heads.sort(key=lambda one: (-one.weight, one.name.layer, one.name.head))
    mean = rank_of(weights_LHS.mean((0, 1)), groups)
    rollout = rollout_rank(trace, part, rows, groups)
    yield HeadSearch(part, query, key, rows, keys, tuple(heads), mean, rollout)


def default_part(trace: Trace, query: str, key: str) -> str:
    """The part that two words are in."""
    if trace.model.kind != "encoder-decoder":
        return trace.model.main_part
    in_target = query.split("#")[0] in (trace.target or "")
    if not in_target:
        return "encoder"
    return "cross" if key.split("#")[0] in trace.text else "decoder"


def word_groups(words: Sequence[Word], keys: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens of the word looked for, and of each other word."""
    chosen = set(keys)
    return [tuple(keys), *(word.tokens for word in words if not chosen & set(word.tokens))]


def rank_of(weights_S: Array | np.ndarray, groups: Sequence[Sequence[int]]) -> WordRank:
    """The rank of the first group among all."""
    sums = [float(np.sum(np.asarray(weights_S, dtype=np.float64)[list(group)])) for group in groups]
    return WordRank(sums[0], 1 + sum(value > sums[0] for value in sums[1:]), len(sums))


def rollout_rank(
    trace: Trace, part: str, rows: Sequence[int], groups: Sequence[Sequence[int]]
) -> WordRank | None:
    name = f"{part}.rollout"
    if name not in trace.arrays:
        return None
    return rank_of(trace.arrays[name][list(rows)].mean(0, dtype=np.float64), groups)


def rollout_step(before_TT: Array | None, weights_HTT: Array) -> Array:
    """Rollout after one more layer; `before_TT` None: before the first."""
    T = weights_HTT.shape[-1]
    mixed_TT = weights_HTT.mean(0, dtype=np.float64) + np.eye(T)
    mixed_TT /= mixed_TT.sum(-1, keepdims=True)
    step_TT: Array = (mixed_TT if before_TT is None else mixed_TT @ before_TT).astype(np.float32)
    return step_TT


@dataclass(frozen=True)
class TopKeys:
    """The keys with the largest weights of one row."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    coverage: float
    """Share of the row that they are."""
    num_keys: int

    def __str__(self) -> str:
        return (
            f"{len(self.tokens)} of {self.num_keys:,} keys, covering {self.coverage:.2f} of the "
            "weight"
        )


def top_keys(weights_S: Array, number: int = 16) -> TopKeys:
    """The largest weights of a row, largest first, and how much of the row they are."""
    order = np.argsort(-weights_S, kind="stable")[:number]
    kept = weights_S[order].astype(np.float64)
    total = float(weights_S.sum(dtype=np.float64))
    coverage = float(kept.sum()) / total if total else 0.0
    return TopKeys(tuple(order.tolist()), tuple(kept.tolist()), coverage, len(weights_S))


def entropy(weights_HTS: Array) -> Array:
    """Entropy of each row in nats, [head, query]."""
    positive = np.where(weights_HTS > 0, weights_HTS, 1.0)
    values: Array = -(weights_HTS * np.log(positive)).sum(-1)
    return values


def sharpest_head(trace: Trace, part: str, row: int) -> HeadName:
    """The head whose largest weight in a row is largest. Left out are special tokens and, within
    one text, the token itself and the first token, on which many heads rest."""
    side = trace.side_of(part, "key")
    hidden = {token.i for token in trace.tokens[side] if token.is_special}
    hidden |= {0, row} if side == trace.side_of(part) else set()
    shown = [i for i in range(len(trace.tokens[side])) if i not in hidden] or [0]
    best: tuple[float, HeadName] | None = None
    for layer, weights_HS in enumerate(trace.weights_of_row(part, row)):
        peaks_H = weights_HS[:, shown].max(-1)
        head = int(peaks_H.argmax())
        if best is None or peaks_H[head] > best[0]:
            best = float(peaks_H[head]), HeadName(part, layer, head)
    assert best is not None, f"the part {part} has no layers"
    return best[1]
