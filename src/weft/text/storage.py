"""A tokenizer on disk: tokenizer.json (the `tokenizers` library's own file) and, in a folder,
beside it tokenizer_config.json, which names the special tokens for transformers and keeps our
settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.text.settings import TokenizerConfig
from weft.text.specials import FILE_KEYS, ROLES, Specials, find_specials

FILE = "tokenizer.json"
SIDE_FILE = "tokenizer_config.json"
OUR_KEY = "weft"
TARGET = "target"
"""The folder inside a folder with the target side's tokenizer, where the sides have two."""


def load_files(path: Path) -> tuple[Backend, Specials, TokenizerConfig | None]:
    """The library's tokenizer, its special tokens, and our settings if we made it."""
    file = path / FILE if path.is_dir() else path
    backend = load_backend(file)
    beside = file.with_name(SIDE_FILE)
    settings = read_settings(beside) if file.name == FILE and beside.is_file() else {}
    ours = settings.get(OUR_KEY)
    config = None if ours is None else TokenizerConfig.from_dict(ours, where=str(beside))
    return backend, find_specials(backend, settings), config


def load_backend(file: Path) -> Backend:
    """Read a tokenizer.json; a DataError says why one cannot be used."""
    if not file.is_file():
        raise DataError(
            "there is no such tokenizer. Name a folder with a tokenizer.json, or such a file; "
            "`weft tokenize OUT --train FILE` makes one.",
            file,
        )
    try:
        return Backend.from_str(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except Exception as error:  # the library raises nothing narrower
        reason = str(error)
    raise DataError(f"is not a tokenizer.json ({reason}). Name another file.", file)


def save_files(
    path: Path, backend: Backend, specials: Specials, config: TokenizerConfig | None
) -> Path:
    """Write a folder, or one file for a name in .json; either is complete or not there at all."""
    file = path if path.suffix == ".json" else path / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DataError("is a file, not a folder. Name another place.", file.parent) from None
    if file.name == FILE:
        write_whole(file.with_name(SIDE_FILE), side_file(specials, config))
    write_whole(file, backend.to_str(pretty=True))
    return file


def side_file(specials: Specials, config: TokenizerConfig | None) -> str:
    """What transformers reads beside the tokenizer, and our own settings."""
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # null where there is none, so that no token gets a role by its name when it is read again
        **{FILE_KEYS[role][0]: getattr(specials, role) for role in ROLES},
    }
    if config is not None:
        values |= ours(config)
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def ours(config: TokenizerConfig) -> Mapping[str, Any]:
    limit = {} if config.max_len is None else {"model_max_length": config.max_len}
    return {**limit, OUR_KEY: config.to_dict()}


def write_whole(file: Path, text: str) -> None:
    """Write beside the file and then rename, so that a stop half-way leaves the old one."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
