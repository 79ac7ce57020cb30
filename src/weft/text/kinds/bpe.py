"""Byte-pair encoding (Sennrich 2016): start from characters, join the commonest neighbours, again
and again.

Differs from the paper: no end-of-word marker (the space before a word is part of it), and
characters that are too rare for an id are spelled in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from weft.text.kinds.base import SUBWORDS, Kind, Plan, alphabet, count_characters, spelled

MAX_PIECE_LEN = 16


def learn(lines: Iterable[str], plan: Plan) -> models.Model:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SUBWORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=plan.room,
        min_frequency=plan.min_frequency,
        limit_alphabet=len(alphabet(count_characters(lines), plan)),
        max_token_length=MAX_PIECE_LEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    return spelled(plan, pieces, [(left, right) for left, right in learnt["merges"]])


KIND = Kind(learn)
