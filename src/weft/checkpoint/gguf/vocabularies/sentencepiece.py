"""tokenizer.ggml.model = llama: SentencePiece's BPE, whose pieces have scores instead of merges.

SentencePiece merges the neighbors whose piece has the best score. The equivalent merges are all
ways to form each piece from two others, best pieces first. Spaces become U+2581, one is added
before a text (add_space_prefix), and characters outside the vocabulary are spelled in bytes.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from weft.checkpoint.gguf.header import BYTE, NORMAL
from weft.checkpoint.gguf.vocabularies.base import (
    SPACE_MARK,
    BosEosFrame,
    GGUFVocabulary,
    TokenizerParts,
    TokenizerStep,
    add_special_tokens,
    cannot_write,
    read_frame,
)
from weft.checkpoint.gguf.vocabularies.byte_level import read_merges
from weft.text.piece_merges import Merges, merges_from_scores


def read(vocabulary: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and whether BOS and EOS are added."""
    has_prefix = vocabulary.flag("add_space_prefix", True)
    has_merges = vocabulary.get("merges") is not None
    model = models.BPE(
        vocabulary.token_to_id(),
        read_merges(vocabulary) if has_merges else merges_of(vocabulary),
        unk_token=vocabulary.tokens[vocabulary.ids.get("unknown", 0)],
        fuse_unk=True,
        byte_fallback=bool(vocabulary.of_type(BYTE)),
    )
    backend = Backend(model)
    prefix = [normalizers.Prepend(SPACE_MARK)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE_MARK)])
    backend.decoder = space_decoder(has_prefix)
    add_special_tokens(backend, vocabulary)
    return backend, read_frame(vocabulary, begin=True, end=False)


def space_decoder(has_prefix: bool) -> decoders.Decoder:
    """Marks to spaces, bytes to characters, without the space that was added before the text."""
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    return decoders.Sequence(steps)


def merges_of(vocabulary: GGUFVocabulary) -> Merges:
    """Merges from scores; only normal pieces are merged."""
    scores = vocabulary.scores() or [-float(index) for index in range(len(vocabulary.tokens))]
    normal = vocabulary.of_type(NORMAL)
    return merges_by_score({vocabulary.tokens[index]: scores[index] for index in normal})


def merges_by_score(scores: dict[str, float]) -> Merges:
    """Every way to form a piece from two others, by descending score, the longer left part
    first; so too among pieces of equal score."""
    merges = merges_from_scores(scores, longest_left_first=True)
    if len(set(scores.values())) < len(scores):
        merges.sort(key=lambda merge: (-scores[merge[0] + merge[1]], -len(merge[0])))
    return merges


def matches(parts: TokenizerParts) -> bool:
    steps = [*parts.steps, *parts.decoders]
    return parts.model["type"] == "BPE" and any(SPACE_MARK in str(step) for step in steps)


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a BPE whose merges follow from scores; a UsageError for any other."""
    merges = [(left, right) for left, right in parts.model["merges"]]
    return {
        "model": "llama",
        "pre": "default",
        "scores": scores_from_merges(merges, tokens),
        "add_space_prefix": has_space_prefix(parts),
    }


def scores_from_merges(merges: Merges, tokens: list[str]) -> list[float]:
    """Scores from which the merges follow: the rank of the first merge that forms a piece."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    scores = {piece: -float(rank) for piece, rank in ranks.items()}
    parts = {piece for merge in merges for piece in merge}
    letters = [token for token in tokens if token not in scores and token in parts]
    lowest = -float(len(scores))
    restored = merges_by_score({**scores, **dict.fromkeys(letters, lowest)})
    if set(restored) != set(merges) or piece_order(restored) != piece_order(merges):
        raise cannot_write("its merges do not follow from one score per piece")
    return [scores.get(token, lowest) for token in tokens]


def piece_order(merges: Merges) -> list[str]:
    """The pieces that are formed, in order; adjacent ways to form the same piece count once."""
    pieces = [left + right for left, right in merges]
    return [p for p, previous in zip(pieces, [None, *pieces], strict=False) if p != previous]


def has_space_prefix(parts: TokenizerParts) -> bool:
    """Whether a space is added before a text; a UsageError for steps that GGUF cannot express."""
    has_prefix, others = False, []
    for step in parts.steps:
        if step["type"] == "Prepend" and step["prepend"] == SPACE_MARK:
            has_prefix = True
        elif step["type"] == "Metaspace" and step["replacement"] == SPACE_MARK:
            has_prefix = has_prefix or step["prepend_scheme"] != "never"
            others += ["Metaspace that splits"] if step.get("split", True) else []
        elif not is_space_step(step):
            others.append(step["type"])
    if others:
        raise cannot_write(f"it has steps besides those for spaces ({', '.join(others)})")
    return has_prefix


def is_space_step(step: TokenizerStep) -> bool:
    """Whether a step replaces spaces by the mark, or splits at spaces that are replaced by then."""
    replaces = step["type"] == "Replace" and step["content"] == SPACE_MARK
    splits = step["type"] == "Split" and step["behavior"] == "MergedWithPrevious"
    return (replaces or splits) and step["pattern"] == {"String": " "}
