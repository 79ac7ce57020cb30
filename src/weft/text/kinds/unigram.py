"""Unigram language model (Kudo 2018): start from many pieces, drop those that the likelihood misses
least.

Differs from the library's own result, which changes a little from run to run: scores are rounded,
the characters that the trainer keeps only because every character must stay share one score, and
pieces are put in one fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from weft.text.kinds.base import SUBWORDS, Kind, Plan, alphabet, count_characters

MAX_PIECE_LEN = 16
RESERVED_SCORE = -1000.0
"""Reserved tokens are in the table for their ids; the search must never prefer one to real
pieces."""
FLOOR_STEP = 1e-4
"""What the trainer adds from one kept-anyway character to the next."""

Scored = list[tuple[str, float]]


def learn(lines: Iterable[str], plan: Plan) -> models.Model:
    counts = count_characters(lines)
    known = set(alphabet(counts, plan))
    # the trainer keeps every character; those that bytes will spell must not cost room
    found = train(lines, plan, plan.room + len(counts) - len(known))
    pieces = [(piece, score) for piece, score in found if known.issuperset(piece)]
    reserved = [(name, RESERVED_SCORE) for name in plan.reserved]
    return models.Unigram(
        reserved + fitted(settled(pieces), plan.room),
        unk_id=plan.reserved.index(plan.unknown),
        byte_fallback=plan.byte_fallback,
    )


def train(lines: Iterable[str], plan: Plan, size: int) -> Scored:
    """`size` of the library's pieces and their scores, without its unknown token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SUBWORDS), "isolated")
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1,
        special_tokens=[plan.unknown],
        unk_token=plan.unknown,
        max_piece_length=MAX_PIECE_LEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in vocab if piece != plan.unknown]


def settled(pieces: Scored) -> Scored:
    """The same pieces with scores and order that do not depend on the trainer's hash order."""
    if not pieces:
        return []
    floor = min(score for _, score in pieces)
    ceiling = floor + FLOOR_STEP * sum(len(piece) == 1 for piece, _ in pieces)
    level = [(p, floor if len(p) == 1 and score <= ceiling else score) for p, score in pieces]
    return sorted(
        ((p, round(score, 6)) for p, score in level), key=lambda item: (-item[1], item[0])
    )


def fitted(pieces: Scored, room: int) -> Scored:
    """The best pieces that fit, single characters before all others: they make every word
    spellable."""
    by_need = sorted(pieces, key=lambda item: len(item[0]) > 1)[:room]
    return sorted(by_need, key=lambda item: (-item[1], item[0]))


KIND = Kind(learn)
