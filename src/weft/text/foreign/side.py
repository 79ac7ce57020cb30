"""The files beside a vocabulary: tokenizer_config.json, special_tokens_map.json, added_tokens.json
-> the settings, and the tokens to add.

Read as `transformers` reads them: a config that lists its added tokens with their ids goes before
the two older files, which otherwise say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.text.specials import content
from weft.text.storage import SIDE_FILE

MAP_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
ROLE_KEYS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""In the order in which new tokens get their ids."""
LIST_KEYS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class Side:
    """What those files say."""

    path: Path
    """The config, for messages."""
    settings: dict[str, Any]
    declared: dict[int, AddedToken]
    """Tokens with an id of their own, in order."""

    def told(self, name: str) -> bool | None:
        """A setting that is true, false or open."""
        value = self.settings.get(name)
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{name} is {value!r}: it must be true or false.", self.path)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.told(name)
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        if not isinstance(value, int) or not 0 <= value <= 1 << 20:
            raise DataError(f"{name} is {value!r}: it must be a small whole number.", self.path)
        return value

    def special_tokens(self) -> Iterator[AddedToken]:
        """The tokens that have a role or are listed as special; the same one may come twice."""
        known = {token.content: token for token in self.declared.values()}
        for entry in special_entries(self.settings):
            token = known.get(content(entry)) or added_token(entry, special=True)
            token.special = True
            yield token


def read_side(folder: Path) -> Side:
    """The three files, each of which may be absent."""
    config, marks = read_if_there(folder / SIDE_FILE), read_if_there(folder / MAP_FILE)
    path = folder / SIDE_FILE
    if "added_tokens_decoder" in config:
        return Side(path, {**marks, **config}, read_declared(config["added_tokens_decoder"], path))
    settings = {**config, **marks}
    older = read_older(read_if_there(folder / ADDED_FILE), settings, folder / ADDED_FILE)
    return Side(path, settings, older)


def read_if_there(path: Path) -> dict[str, Any]:
    """A file's settings, whose entries for special tokens are known to be readable."""
    settings = read_settings(path) if path.is_file() else {}
    check_entries(special_entries(settings), path)
    return settings


def special_entries(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Every entry for a special token: a text, or {"content": text, flags}."""
    yield from (settings[key] for key in ROLE_KEYS if settings.get(key))
    for key in LIST_KEYS:
        listed = settings.get(key) or ()
        if isinstance(listed, (list, dict)):
            yield from listed.values() if isinstance(listed, dict) else listed


def check_entries(entries: Iterable[Any], path: Path) -> None:
    """A DataError for what is no such entry."""
    for entry in entries:
        name = entry.get("content") if isinstance(entry, Mapping) else entry
        if not isinstance(name, str) or not name:
            raise DataError(f"{entry!r} is not a special token: its text is one.", path)


def read_declared(entries: Any, path: Path) -> dict[int, AddedToken]:
    """added_tokens_decoder: {"32000": {"content": "<x>", "special": true, ...}}."""
    if not isinstance(entries, Mapping):
        raise DataError("added_tokens_decoder is not a table of ids and tokens.", path)
    check_entries(entries.values(), path)
    return {
        token_id(index, path): added_token(entries[index])
        for index in sorted(entries, key=lambda index: token_id(index, path))
    }


def read_older(
    entries: Mapping[str, Any], settings: Mapping[str, Any], path: Path
) -> dict[int, AddedToken]:
    """added_tokens.json: {"<x>": 32000}. A token with a role is a special one."""
    special = {content(entry) for entry in special_entries(settings)}
    order = sorted(entries.items(), key=lambda item: token_id(item[1], path))
    return {
        int(index): AddedToken(name, normalized=name not in special, special=name in special)
        for name, index in order
    }


def token_id(value: Any, path: Path) -> int:
    """An id, which JSON writes as a string where it is a key."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 31:
        raise DataError(f"{value!r} is not the id of an added token: a whole number is.", path)
    return number


def added_token(entry: Any, **more: bool) -> AddedToken:
    """A token from its text, or from {"content": text, flags}."""
    given = entry if isinstance(entry, Mapping) else {}
    flags = {name: bool(given[name]) for name in FLAGS if name in given}
    return AddedToken(content(entry), **{**flags, **more})
