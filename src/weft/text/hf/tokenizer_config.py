"""tokenizer_config.json, special_tokens_map.json, added_tokens.json: special tokens, added tokens,
defaults by family, and the post-processor that adds begin and end.

The files are read as `transformers` reads them: a config that lists its added tokens with their ids
has precedence over the two older files. What no file says is the default of the tokenizer's family,
which is the class that tokenizer_config.json names, else the type of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from weft.core.config import read_settings
from weft.core.errors import DataError, shown
from weft.text.special_tokens import ROLES, SpecialTokens, find_special_tokens, token_text
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_names import TOKENIZER_CONFIG_FILE as CONFIG_FILE

MAP_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
ROLE_KEYS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""In the order in which new tokens get their ids."""
LIST_KEYS = ("additional_special_tokens", "extra_special_tokens")
MAX_EXTRA_IDS = 10_000
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenization pattern, in place of GPT-2's."""


@dataclass(frozen=True)
class TokenizerDefaults:
    """What a family of tokenizers does where its files do not say."""

    special_tokens: SpecialTokens = SpecialTokens()
    """Used if the vocabulary has them and the files name no others."""
    add_begin: bool = False
    add_end: bool = False
    split_pattern: str | None = None
    """Pre-tokenization pattern of byte-level BPE; None: GPT-2's."""
    nfc: bool = False
    """True: text is normalized to NFC first."""
    extra_ids: int = 0
    """Number of sentinels <extra_id_N> after the vocabulary, the last one first."""
    fairseq_ids: bool = False
    """True: ids are shifted by one, after the special tokens in fairseq's order."""


GPT2 = TokenizerDefaults(
    SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>", unknown="<|endoftext|>")
)
FAIRSEQ = TokenizerDefaults(SpecialTokens("<pad>", "<s>", "</s>", "<unk>", "<mask>"), True, True)
BERT = TokenizerDefaults(SpecialTokens("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"), True, True)
LLAMA = TokenizerDefaults(SpecialTokens(None, "<s>", "</s>", "<unk>"), add_begin=True)
GEMMA = replace(LLAMA, special_tokens=SpecialTokens("<pad>", "<bos>", "<eos>", "<unk>", "<mask>"))
T5 = TokenizerDefaults(SpecialTokens("<pad>", None, "</s>", "<unk>"), add_end=True, extra_ids=100)
QWEN2 = TokenizerDefaults(
    SpecialTokens("<|endoftext|>", None, "<|endoftext|>", "<|endoftext|>"),
    split_pattern=QWEN2_PATTERN,
    nfc=True,
)
MARIAN = TokenizerDefaults(SpecialTokens("<pad>", None, "</s>", "<unk>"), add_end=True)

DEFAULTS: dict[str, TokenizerDefaults] = {
    "gpt2": GPT2,
    "roberta": FAIRSEQ,
    "bart": FAIRSEQ,
    "led": FAIRSEQ,
    "longformer": FAIRSEQ,
    "mvp": FAIRSEQ,
    "deberta": BERT,
    "qwen2": QWEN2,
    "qwen3": QWEN2,
    "bert": BERT,
    "distilbert": BERT,
    "electra": BERT,
    "mpnet": FAIRSEQ,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "gemma": GEMMA,
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "xlmroberta": replace(FAIRSEQ, fairseq_ids=True),
    "marian": MARIAN,
}

UNSUPPORTED_FAMILIES = {
    "albert", "barthez", "bertgeneration", "bertjapanese", "bertweet", "bigbird", "blenderbot",
    "blenderbotsmall", "byt5", "camembert", "canine", "clip", "cpm", "ctrl", "debertav2", "esm",
    "flaubert", "fnet", "fsmt", "herbert", "m2m100", "mbart", "mbart50", "nllb", "openaigpt",
    "pegasus", "phobert", "plbart", "reformer", "rembert", "rocbert", "roformer", "splinter",
    "wav2vec2", "whisper", "xglm", "xlm", "xlnet",
}  # fmt: skip
"""Families whose files look like supported ones but are read differently; their tokenizer.json is
supported."""

GENERIC_CLASS = re.compile(r"(pretrained|tokenizersbackend)", re.IGNORECASE)
"""Tokenizer classes that do not name a family."""


def family_name(settings: Mapping[str, Any], model_type: str | None) -> str | None:
    """'LlamaTokenizerFast' -> 'llama', 'xlm-roberta' -> 'xlmroberta'; None: unknown."""
    class_name = settings.get("tokenizer_class")
    has_family = isinstance(class_name, str) and not GENERIC_CLASS.match(class_name)
    name = class_name if has_family else model_type
    if name is None:
        return None
    return re.sub(r"[-_]", "", re.sub(r"Tokenizer(Fast)?$", "", name)).lower()


# --- the files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class HFTokenizerConfig:
    """The merged content of the three files."""

    path: Path
    """tokenizer_config.json, for messages."""
    settings: dict[str, Any]
    declared: dict[int, AddedToken]
    """Added tokens with an explicit id, in order."""

    def optional_flag(self, name: str) -> bool | None:
        """A boolean setting; None: not set."""
        value = self.settings.get(name)
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{name} is {shown(value)}: it must be true or false.", self.path)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.optional_flag(name)
        return default if value is None else value

    def integer(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        if not isinstance(value, int) or not 0 <= value <= MAX_EXTRA_IDS:
            raise DataError(
                f"{name} is {shown(value)}: it must be a small whole number.", self.path
            )
        return value

    def special_tokens(self) -> Iterator[AddedToken]:
        """The tokens that have a role or are listed as special; a token may come twice."""
        declared = {token.content: token for token in self.declared.values()}
        for entry in special_entries(self.settings):
            token = declared.get(token_text(entry)) or added_token(entry, special=True)
            token.special = True
            yield token


def read_tokenizer_config(folder: Path) -> HFTokenizerConfig:
    """Read the three files, each of which may be absent."""
    path = folder / CONFIG_FILE
    config, token_map = read_optional(path), read_optional(folder / MAP_FILE)
    if "added_tokens_decoder" in config:
        declared = read_declared(config["added_tokens_decoder"], path)
        return HFTokenizerConfig(path, {**token_map, **config}, declared)
    settings = {**config, **token_map}
    added = read_added_tokens(read_optional(folder / ADDED_FILE), settings, folder / ADDED_FILE)
    return HFTokenizerConfig(path, settings, added)


def read_optional(path: Path) -> dict[str, Any]:
    """The settings of a file, or an empty dict; entries for special tokens are checked."""
    settings = read_settings(path) if path.is_file() else {}
    check_entries(special_entries(settings), path)
    return settings


def special_entries(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Every entry for a special token: a string, or {"content": string, flags}."""
    yield from (settings[key] for key in ROLE_KEYS if settings.get(key))
    for key in LIST_KEYS:
        entries = settings.get(key) or ()
        if isinstance(entries, (list, dict)):
            yield from entries.values() if isinstance(entries, dict) else entries


def check_entries(entries: Iterable[Any], path: Path) -> None:
    """Raise a DataError for an entry that is not a special token."""
    for entry in entries:
        name = entry.get("content") if isinstance(entry, Mapping) else entry
        if not isinstance(name, str) or not name:
            raise DataError(f"{shown(entry)} is not a special token: its text is one.", path)


def read_declared(entries: Any, path: Path) -> dict[int, AddedToken]:
    """added_tokens_decoder: {"32000": {"content": "<x>", "special": true, ...}}."""
    if not isinstance(entries, Mapping):
        raise DataError("added_tokens_decoder is not a table of ids and tokens.", path)
    check_entries(entries.values(), path)
    return {
        parse_id(index, path): added_token(entries[index])
        for index in sorted(entries, key=lambda index: parse_id(index, path))
    }


def read_added_tokens(
    entries: Mapping[str, Any], settings: Mapping[str, Any], path: Path
) -> dict[int, AddedToken]:
    """added_tokens.json: {"<x>": 32000}. A token with a role is a special token."""
    special = {token_text(entry) for entry in special_entries(settings)}
    order = sorted(entries.items(), key=lambda item: parse_id(item[1], path))
    return {
        int(index): AddedToken(name, normalized=name not in special, special=name in special)
        for name, index in order
    }


def parse_id(value: Any, path: Path) -> int:
    """A token id, which is a string where it is a JSON key."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 31:
        raise DataError(f"{shown(value)} is not the id of an added token: a whole number is.", path)
    return number


def added_token(entry: Any, **more: bool) -> AddedToken:
    """A token from its text, or from {"content": text, flags}."""
    values = entry if isinstance(entry, Mapping) else {}
    flags = {name: bool(values[name]) for name in FLAGS if name in values}
    return AddedToken(token_text(entry), **{**flags, **more})


# --- backend -> Tokenizer -------------------------------------------------------------------


def build_tokenizer(
    backend: Backend,
    hf_config: HFTokenizerConfig,
    defaults: TokenizerDefaults,
    vocab_tokens: Iterable[AddedToken] = (),
    target: Tokenizer | None = None,
) -> Tokenizer:
    """Add the special tokens and the post-processor to a backend. `vocab_tokens`: tokens that the
    vocabulary itself marks as special or as unsplittable."""
    special_tokens = find_special_tokens(backend, role_settings(backend, hf_config, defaults))
    add_tokens(backend, [*vocab_tokens, *role_tokens(special_tokens)], hf_config)
    special_tokens = find_special_tokens(backend, role_settings(backend, hf_config, defaults))
    set_post_processor(backend, special_tokens, hf_config, defaults)
    return Tokenizer(backend, special_tokens, target=target)


def role_settings(
    backend: Backend, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> dict[str, object]:
    """The settings, completed with the family's special tokens that are in the vocabulary."""
    entries = defaults.special_tokens.to_config()
    known = {key: name for key, name in entries.items() if backend.token_to_id(name) is not None}
    if any(hf_config.settings.get(key) for key in ("cls_token", "sep_token")):
        known = {key: name for key, name in known.items() if key not in ("bos_token", "eos_token")}
    return {**known, **hf_config.settings}


def role_tokens(special_tokens: SpecialTokens) -> list[AddedToken]:
    """The tokens that have a role, as added tokens."""
    names = {getattr(special_tokens, role) for role in ROLES} - {None}
    return [AddedToken(name, normalized=False, special=True) for name in sorted(names)]


def add_tokens(
    backend: Backend, vocab_tokens: Iterable[AddedToken], hf_config: HFTokenizerConfig
) -> None:
    """Add the tokens that the files list. Raises a DataError if a token does not get its declared
    id: the model would read another token."""
    backend.add_tokens(list(vocab_tokens))
    for index, token in hf_config.declared.items():
        backend.add_tokens([token])
        actual = backend.token_to_id(token.content)
        if actual != index:
            raise DataError(
                f"added token {shown(token.content)} has id {index}, but the vocabulary gives it "
                f"{actual}. The files do not belong together; put a tokenizer.json beside them.",
                hf_config.path,
            )
    backend.add_tokens(list(hf_config.special_tokens()))


def set_post_processor(
    backend: Backend,
    special_tokens: SpecialTokens,
    hf_config: HFTokenizerConfig,
    defaults: TokenizerDefaults,
) -> None:
    """Set the begin and end tokens that every text gets."""
    add_begin = hf_config.flag("add_bos_token", defaults.add_begin)
    add_end = hf_config.flag("add_eos_token", defaults.add_end)
    begin = special_tokens.begin if add_begin else None
    end = special_tokens.end if add_end else None
    if begin is None and end is None:
        return
    ids = {name: backend.token_to_id(name) for name in (begin, end) if name is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=[name for name in (begin, "$A", end) if name is not None],
        special_tokens=list(ids.items()),
    )
