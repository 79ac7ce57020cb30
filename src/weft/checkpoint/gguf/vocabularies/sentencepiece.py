r"""tokenizer.ggml.model = llama: SentencePiece's BPE, whose pieces have scores instead of merges.

SentencePiece joins those neighbours whose piece has the best score. The same in merges: all ways to
make each piece of two others, best pieces first. Spaces become U+2581, one is put before a text
(add_space_prefix), and what is not in the vocabulary is spelled in bytes.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from weft.checkpoint.gguf.vocabularies.base import (
    BYTE,
    MARK,
    NORMAL,
    BosEosFrame,
    GGUFVocabulary,
    add_tokens,
    read_frame,
)
from weft.checkpoint.gguf.vocabularies.byte_level import read_merges
from weft.checkpoint.gguf.vocabularies.pieces import TokenizerParts, cannot_write

Merges = list[tuple[str, str]]


def read(words: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and what it puts around a text."""
    has_prefix = words.flag("add_space_prefix", True)
    unknown = words.ids.get("unknown", 0)
    model = models.BPE(
        words.vocabulary(),
        read_merges(words) if words.get("merges") is not None else merges_from_scores(words),
        unk_token=words.tokens[unknown],
        fuse_unk=True,
        byte_fallback=bool(words.of_type(BYTE)),
    )
    backend = Backend(model)
    prefix = [normalizers.Prepend(MARK)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", MARK)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(steps)
    add_tokens(backend, words)
    return backend, read_frame(words, begin=True, end=False)


def merges_from_scores(words: GGUFVocabulary) -> Merges:
    """Merges from scores; only ordinary pieces are joined."""
    ordinary = words.of_type(NORMAL)
    scores = words.scores() or [-float(index) for index in range(len(words.tokens))]
    return merges_from({words.tokens[index]: scores[index] for index in ordinary})


def merges_from(scores: dict[str, float]) -> Merges:
    """Every way to make a piece of two others, in the order of their scores, the longer left part
    first."""
    found = [
        (-score, -cut, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    # stable: pieces of one score keep the order of their ids
    found.sort(key=lambda item: item[:2])
    return [(left, right) for _, _, left, right in found]


def matches(parts: TokenizerParts) -> bool:
    told = [*parts.normalizers, *parts.splits, *parts.decoders]
    return parts.model["type"] == "BPE" and any(MARK in str(step) for step in told)


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a BPE whose merges follow from scores; a UsageError for any other."""
    merges = [(left, right) for left, right in parts.model["merges"]]
    scores = scores_from(merges, tokens)
    return {
        "model": "llama",
        "pre": "default",
        "scores": scores,
        "add_space_prefix": has_prefix(parts),
    }


def scores_from(merges: Merges, tokens: list[str]) -> list[float]:
    """Scores that the merges follow from: the place of the first merge that makes a piece."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    made = {piece: -float(rank) for piece, rank in ranks.items()}
    parts = {piece for merge in merges for piece in merge}
    letters = [token for token in tokens if token not in made and token in parts]
    floor = -float(len(made))
    again = merges_from({**made, **dict.fromkeys(letters, floor)})
    if set(again) != set(merges) or order_of(again) != order_of(merges):
        raise cannot_write("its merges do not follow from one score a piece")
    return [made.get(token, floor) for token in tokens]


def order_of(merges: Merges) -> list[str]:
    """The pieces that are made, in order; ways to make one piece count once if they are
    neighbours."""
    pieces = [left + right for left, right in merges]
    return [p for p, before in zip(pieces, [None, *pieces], strict=False) if p != before]


def has_prefix(parts: TokenizerParts) -> bool:
    """Whether a space is put before a text; a UsageError for steps that GGUF cannot say."""
    prefix, others = False, []
    for step in [*parts.normalizers, *parts.splits]:
        if step["type"] == "Prepend" and step["prepend"] == MARK:
            prefix = True
        elif step["type"] == "Metaspace" and step["replacement"] == MARK:
            prefix = prefix or step["prepend_scheme"] != "never"
            others += ["Metaspace that splits"] if step.get("split", True) else []
        elif not is_spacing(step):
            others.append(step["type"])
    if others:
        raise cannot_write(f"it has steps besides the spaces ({', '.join(others)})")
    return prefix


def is_spacing(step: dict[str, Any]) -> bool:
    """Whether a step writes spaces as the mark, or cuts at spaces that are none by then."""
    replaces = step["type"] == "Replace" and step["content"] == MARK
    cuts = step["type"] == "Split" and step["behavior"] == "MergedWithPrevious"
    return (replaces or cuts) and step["pattern"] == {"String": " "}
