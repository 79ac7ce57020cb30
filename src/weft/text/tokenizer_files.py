"""A tokenizer on disk: tokenizer.json (the format of the `tokenizers` library) and, in a folder,
tokenizer_config.json, which names the special tokens for transformers and holds Weft's settings.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.core.config import read_settings
from weft.core.errors import DISK_ERRORS, DataError, DiskError, shortened
from weft.text.special_tokens import CONFIG_KEYS, ROLES, SpecialTokens, find_special_tokens
from weft.text.tokenizer_names import TOKENIZER_CONFIG_FILE as CONFIG_FILE
from weft.text.tokenizer_names import TOKENIZER_FILE
from weft.text.tokenizer_training import TokenizerConfig

WEFT_KEY = "weft"
MAX_UNUSED_IDS = 1 << 16
"""Ids without a token that a vocabulary may have, in addition to three times its tokens."""


def load_files(path: Path) -> tuple[Backend, SpecialTokens, TokenizerConfig | None]:
    """Backend, special tokens, and the training settings if Weft trained the tokenizer."""
    file = path / TOKENIZER_FILE if path.is_dir() else path
    backend = load_backend(file)
    config_path = file.with_name(CONFIG_FILE)
    has_config = file.name == TOKENIZER_FILE and config_path.is_file()
    settings = read_settings(config_path) if has_config else {}
    values = settings.get(WEFT_KEY)
    config = None if values is None else TokenizerConfig.from_dict(values, where=str(config_path))
    return backend, find_special_tokens(backend, settings), config


def load_backend(file: Path) -> Backend:
    """Read a tokenizer.json. Raises a DataError with the reason if it cannot be used."""
    if not file.is_file():
        raise DataError(
            "there is no such tokenizer. Name a folder with a tokenizer.json, or such a file; "
            "`weft tokenize OUT --train FILE` makes one.",
            file,
        )
    try:
        backend = Backend.from_str(file.read_text(encoding="utf-8"))
        check_max_id(largest_id(backend), backend.get_vocab_size(), file)
        return backend
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except DataError:
        raise
    except BaseException as error:  # the library raises nothing narrower, or panics
        if not is_library_error(error):
            raise
        reason = shortened(error)
    raise DataError(f"is not a tokenizer.json ({reason}). Name another file.", file)


def is_library_error(error: BaseException) -> bool:
    """Whether an error comes from the `tokenizers` library: a plain Exception, or a panic, which is
    a BaseException."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def largest_id(backend: Backend) -> int:
    count: int = backend.get_vocab_size()
    if count and backend.id_to_token(count - 1) is not None:
        return count - 1  # no holes; otherwise each of many thousand ids is looked at
    return max(backend.get_vocab().values(), default=-1)


def check_max_id(largest: int, count: int, path: Path) -> None:
    """A DataError for ids far beyond the number of tokens: the library allocates memory for every
    id up to the largest."""
    if largest > 4 * count + MAX_UNUSED_IDS:
        raise DataError(f"has {count} tokens with ids up to {largest}. Copy the file again.", path)


def save_files(
    path: Path, backend: Backend, special_tokens: SpecialTokens, config: TokenizerConfig | None
) -> Path:
    """Write a folder, or a single file if the name ends in .json. Each file is replaced as a
    whole."""
    file = path if path.suffix == ".json" else path / TOKENIZER_FILE
    try:
        make_folders(file.parent)
        if file.name == TOKENIZER_FILE:
            write_atomically(file.with_name(CONFIG_FILE), config_json(special_tokens, config))
        write_atomically(file, backend.to_str(pretty=True))
    except FileExistsError:
        raise DataError("is a file, not a folder. Name another place.", file.parent) from None
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise DiskError(error.errno, file) from error
        raise
    return file


def config_json(special_tokens: SpecialTokens, config: TokenizerConfig | None) -> str:
    """The content of tokenizer_config.json: what transformers reads, and Weft's own settings."""
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # null where there is none, so that no token gets a role by its name when it is read again
        **{CONFIG_KEYS[role][0]: getattr(special_tokens, role) for role in ROLES},
    }
    if config is not None:
        if config.max_len is not None:
            values["model_max_length"] = config.max_len
        values[WEFT_KEY] = config.to_dict()
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def write_atomically(file: Path, text: str) -> None:
    """Write a temporary file, flush it to disk, rename it and flush the rename, so that an
    interruption leaves the old file or the new one."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    try:
        with temporary.open("w", encoding="utf-8") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, and flush their names to disk."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(new):
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names of the files in a folder to disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written but not read
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
