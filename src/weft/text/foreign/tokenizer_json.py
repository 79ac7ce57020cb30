"""A folder with a tokenizer.json: everything is in it; the files beside it name the roles, and may
list tokens that were added later.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from weft.text.foreign.finish import add_tokens
from weft.text.foreign.habits import Habits
from weft.text.foreign.side import Side
from weft.text.specials import find_specials
from weft.text.storage import FILE, TARGET, load_files
from weft.text.tokenizer import Tokenizer


def load(folder: Path, side: Side, habits: Habits) -> Tokenizer:
    """Habits are not asked: the file says how text is cut and framed."""
    backend, _, config = load_files(folder)
    if config is not None or (folder / TARGET / FILE).is_file():
        return Tokenizer.load(folder)
    # where the two disagree about an id, the file that the model was trained with is this one
    declared = {
        index: token
        for index, token in side.declared.items()
        if backend.token_to_id(token.content) in (None, index)
    }
    add_tokens(backend, (), replace(side, declared=declared))
    return Tokenizer(backend, find_specials(backend, side.settings))
