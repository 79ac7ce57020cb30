"""The five roles a special token can have, and how a tokenizer that others made names them.

Our own files say it in tokenizer_config.json, under the keys that transformers uses. Where that
file is absent or silent, a token with a customary name has the role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tokenizers import Tokenizer as Backend

Role = Literal["pad", "begin", "end", "unknown", "mask"]
ROLES: tuple[Role, ...] = get_args(Role)

FILE_KEYS: dict[Role, tuple[str, ...]] = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}
"""Keys of tokenizer_config.json, the first one first."""

CUSTOMARY: dict[Role, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "begin": ("<begin>", "<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("<end>", "</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unknown>", "<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
"""Names that a token with this role usually has."""


@dataclass(frozen=True)
class Specials:
    """The token of each role; None: the tokenizer has none."""

    pad: str | None = None
    begin: str | None = None
    end: str | None = None
    unknown: str | None = None
    mask: str | None = None

    def to_file(self) -> dict[str, str]:
        """Entries for tokenizer_config.json."""
        named = ((FILE_KEYS[role][0], getattr(self, role)) for role in ROLES)
        return {key: name for key, name in named if name is not None}


def find_specials(backend: Backend, settings: Mapping[str, Any]) -> Specials:
    """The roles as `settings` (a tokenizer_config.json) has them, else by customary names."""
    return Specials(**{role: find_role(backend, settings, role) for role in ROLES})


def find_role(backend: Backend, settings: Mapping[str, Any], role: Role) -> str | None:
    """The name of the token with this role. A name that is not in the vocabulary is passed over."""
    told = [content(settings[key]) for key in FILE_KEYS[role] if settings.get(key)]
    is_denied = any(key in settings for key in FILE_KEYS[role])
    if not told and is_denied and role != "pad":
        return None  # null means it; but any batch needs something to fill it up
    names = told or list(CUSTOMARY[role])
    return next((name for name in names if backend.token_to_id(name) is not None), None)


def content(entry: Any) -> str:
    """The token in an entry, which is either its text or {"content": text, ...}."""
    return str(entry["content"]) if isinstance(entry, Mapping) else str(entry)
