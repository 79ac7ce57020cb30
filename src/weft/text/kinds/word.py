"""Words: one id a word, with the space before it; other words are unknown (or, if asked, spelled in
bytes).

A word after a space and the same word at the start of a line are two entries: that is what keeps
known text exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from weft.text.kinds.base import WORDS, Kind, Plan, spelled


def learn(lines: Iterable[str], plan: Plan) -> models.Model:
    tokenizer = Tokenizer(models.WordLevel())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    trainer = trainers.WordLevelTrainer(
        vocab_size=plan.room,
        min_frequency=plan.min_frequency,
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    ids = json.loads(tokenizer.to_str())["model"]["vocab"]
    words = sorted(ids, key=ids.__getitem__)
    if plan.byte_fallback:
        return spelled(plan, words, whole_words=True)
    return models.WordLevel(plan.vocabulary(words), unk_token=plan.unknown)


KIND = Kind(learn, pattern=WORDS, byte_fallback=False)
