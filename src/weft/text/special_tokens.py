"""Special tokens by role, and how a tokenizer_config.json names them.

Weft writes the roles into tokenizer_config.json under the keys of transformers. For files without
that information, a token with a common name ("</s>", "[CLS]") has the role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tokenizers import Tokenizer as Backend

Role = Literal["pad", "begin", "end", "unknown", "mask"]
ROLES: tuple[Role, ...] = get_args(Role)

CONFIG_KEYS: dict[Role, tuple[str, ...]] = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}
"""Keys of tokenizer_config.json, in order of precedence."""

COMMON_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "begin": ("<begin>", "<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("<end>", "</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unknown>", "<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
"""Names that a token with this role usually has."""


@dataclass(frozen=True)
class SpecialTokens:
    """The token of each role; None: the tokenizer has none."""

    pad: str | None = None
    begin: str | None = None
    end: str | None = None
    unknown: str | None = None
    mask: str | None = None

    def to_config(self) -> dict[str, str]:
        """Entries for tokenizer_config.json."""
        tokens = ((CONFIG_KEYS[role][0], getattr(self, role)) for role in ROLES)
        return {key: token for key, token in tokens if token is not None}


def find_special_tokens(backend: Backend, settings: Mapping[str, Any]) -> SpecialTokens:
    """The special tokens named in `settings` (a tokenizer_config.json), else by common names."""
    return SpecialTokens(**{role: find_role(backend, settings, role) for role in ROLES})


def find_role(backend: Backend, settings: Mapping[str, Any], role: Role) -> str | None:
    """The token with this role. Names that are not in the vocabulary are ignored."""
    configured = [token_text(settings[key]) for key in CONFIG_KEYS[role] if settings.get(key)]
    is_null = any(key in settings for key in CONFIG_KEYS[role]) and not configured
    if is_null and role != "pad":
        return None  # an explicit null; but batching always needs a padding token
    names = configured or list(COMMON_NAMES[role])
    return next((name for name in names if backend.token_to_id(name) is not None), None)


def token_text(entry: Any) -> str:
    """The token of a config entry, which is a string or {"content": string, ...}."""
    return str(entry.get("content", "")) if isinstance(entry, Mapping) else str(entry)
