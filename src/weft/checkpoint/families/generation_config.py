"""`GenerationConfig`: token ids, pooling and default sampling parameters that a checkpoint defines
apart from its weights.

Read from the keys of config.json and generation_config.json by which `transformers` generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import DataError, shown
from weft.sampling.params import MODEL_DEFAULTS


@dataclass(frozen=True)
class GenerationConfig:
    """How a checkpoint is used; None and (): as the tokenizer defines it. The field names are keys
    of a Weft folder's config.json."""

    start: int | None = None
    """First id of the target in an encoder-decoder (decoder_start_token_id)."""
    ends: tuple[int, ...] = ()
    """Ids that end a text."""
    first: int | None = None
    """Id that every translation starts with (forced_bos_token_id of BART)."""
    banned: tuple[int, ...] = ()
    """Ids that are never generated (Marian's padding)."""
    pooling: str = "mean"
    """mean, first or last: how the vectors of a text's tokens become one."""
    max_tokens: int | None = None
    """Texts to embed are truncated to this length; None: the model's max_len."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters for requests that leave them out (temperature, top_k, ...)."""

    def sampling_keywords(
        self, requested: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keywords of SamplingParams: those requested come first, then the checkpoint's defaults,
        then `fallback`."""
        return {**(fallback or {}), **self.sampling, **requested}

    def to_dict(self) -> dict[str, Any]:
        """The values of a config.json. Without sampling parameters older versions can read it."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return {name: value for name, value in values.items() if name != "sampling" or value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: Path | None = None) -> GenerationConfig:
        """The inverse of `to_dict`; a DataError for anything else. `path` is for messages."""
        known = {one.name: one.default for one in fields(cls)}
        if not isinstance(values, Mapping):
            raise DataError(f"use is {shown(values)}: it must be a table of names.", path)
        for name, value in values.items():
            if name not in known:
                raise DataError(f"use has {shown(name)}: it has {', '.join(known)}.", path)
            is_valid = is_sampling if name == "sampling" else is_like_default
            if not is_valid(value, known[name]):
                raise DataError(f"use.{name} is {shown(value)}. Copy the file again.", path)
        checked: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**checked)


def is_sampling(value: object, default: object) -> bool:
    """Whether a value of a config.json has default sampling parameters."""
    return isinstance(value, Mapping) and all(
        name in MODEL_DEFAULTS and is_number(one) for name, one in value.items()
    )


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_like_default(value: object, default: object) -> bool:
    """Whether a value of a config.json can be that of a field: ids, lists of ids, or a name."""
    if isinstance(default, str):
        return isinstance(value, str)
    ids = value if isinstance(default, tuple) and isinstance(value, list) else [value]
    if isinstance(default, tuple) and not isinstance(value, list):
        return False
    is_id = [type(one) is int and 0 <= one < 2**31 for one in ids]
    return all(is_id) or (default is None and value is None)


def default_generation(hf: HFConfig) -> GenerationConfig:
    return GenerationConfig()


def decoder_generation(hf: HFConfig) -> GenerationConfig:
    """A decoder: the ids that end a text, and default sampling parameters."""
    return GenerationConfig(ends=tuple(read_ids(hf, "eos_token_id")), sampling=read_sampling(hf))


def read_sampling(hf: HFConfig) -> dict[str, float]:
    """Default sampling parameters. `do_sample` without a temperature is one of 1, which
    `transformers` does not write because it is its own default."""
    sampling = {key: read_number(hf, key) for key in MODEL_DEFAULTS if hf.get(key) is not None}
    return {"temperature": 1.0, **sampling} if hf.get("do_sample") is True else sampling


def read_number(hf: HFConfig, key: str) -> float:
    value = hf.get(key)
    if not is_number(value):
        raise DataError(f"{key} is {shown(value)}: it must be a number. Correct it.", hf.path)
    return value


def encoder_decoder_generation(hf: HFConfig, banned: tuple[int, ...] = ()) -> GenerationConfig:
    """An encoder-decoder; `banned`: ids that the family bans in addition to bad_words_ids."""
    start, first = hf.get("decoder_start_token_id"), hf.get("forced_bos_token_id")
    return GenerationConfig(
        start=None if start is None else check_id(hf, "decoder_start_token_id", start),
        ends=tuple(read_ids(hf, "eos_token_id")),
        first=None if first is None else check_id(hf, "forced_bos_token_id", first),
        banned=tuple(sorted({*read_bad_words(hf), *banned})),
    )


def read_ids(hf: HFConfig, key: str) -> list[int]:
    """One id or a list of ids, as a list."""
    value = hf.get(key, [])
    ids = value if isinstance(value, list) else [value]
    return [check_id(hf, key, token_id) for token_id in ids]


def check_id(hf: HFConfig, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"{key} is {shown(value)}: it must be a token id. Correct it.", hf.path)
    return value


def read_bad_words(hf: HFConfig) -> list[int]:
    """bad_words_ids: a list of words, each a list of ids, of which Weft can ban single ones."""
    words = hf.get("bad_words_ids", [])
    if not isinstance(words, list) or not all(isinstance(w, list) and len(w) == 1 for w in words):
        raise DataError(
            f"bad_words_ids is {shown(words)}: Weft bans single tokens, each in a list of its own.",
            hf.path,
        )
    return [check_id(hf, "bad_words_ids", word[0]) for word in words]
