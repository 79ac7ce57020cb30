"""Characters: one id a Unicode code point; rare and unseen ones are spelled in bytes, or
unknown."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import models

from weft.text.kinds.base import Kind, Plan, alphabet, count_characters, spelled


def learn(lines: Iterable[str], plan: Plan) -> models.Model:
    return spelled(plan, alphabet(count_characters(lines), plan))


KIND = Kind(learn)
