"""Whether a model can be written as a family: its config.json is written, read again and compared.

What comes back different is what the family cannot represent. Before the comparison, settings are
brought into a canonical form, so that a default and the same value set explicitly are equal. For a
model that cannot be written, the message says which settings a model that can would need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.checkpoint.families.base import Family
from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import UsageError, WeftError
from weft.models.config import ModelConfig
from weft.nn.config import FeedForwardConfig

MAX_NAMED = 6
"""Number of settings that a message names."""
NOT_COMPARED = ("dropout", "attention.dropout", "attention.kernel", "attention.latent.form")
"""Settings that do not change what a trained model computes; `canonical` drops init_std too."""
PATTERN_SETTINGS = {
    "window": ("window",),
    "dilated": ("window", "step"),
    "strided": ("stride",),
    "global": ("window", "global_tokens"),
    "blocks": ("block_size", "blocks"),
}
"""Settings of each kind of attention.pattern, besides kind and full_every."""


class ExportMismatchError(UsageError):
    """A family cannot represent a model; `distance` grows with the number of differences."""

    def __init__(self, name: str, problems: Sequence[str], distance: int, advice: str = "") -> None:
        self.distance = distance
        more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        named = "; ".join(problems[:MAX_NAMED])
        super().__init__(f"this model is not a {name}: {named}{more}.{advice}")


def export_config(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The config.json of this model as `family`; a UsageError names what cannot be represented."""
    if family.write_hf is None:
        raise UsageError(f"the {family.name} family can only be read. Choose another one.")
    try:
        values = family.write_hf(config)
        restored = family.read_hf(HFConfig(values, Path(family.name)))
    except WeftError as error:
        raise ExportMismatchError(family.name, [str(error).rstrip(".")], distance=100) from None
    names = config_differences(config, restored)
    if names:
        raise export_mismatch(family.name, config, restored, names)
    return values


def export_mismatch(
    family: str, config: ModelConfig, restored: ModelConfig, names: list[str]
) -> ExportMismatchError:
    """The error for settings that differ and, if changed settings can help, how to train a model
    that can be written."""
    if restored.kind != config.kind:
        problems = describe_differences(config, restored, names)
        return ExportMismatchError(family, problems, distance=1000 + len(names))
    changes = needed_changes(config, restored, names)
    options = " ".join(f"--set model.{key}={shell_value(v)}" for key, v in changes.items())
    advice = f" A model trained with {options} can be written as {family}." if changes else ""
    problems = describe_differences(config, restored, list(changes) or names)
    return ExportMismatchError(family, problems, len(names), advice)


def config_differences(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Names of the settings in which two models differ."""
    first, second = flatten(canonical(config)), flatten(canonical(other))
    names = [n for n in first.keys() | second.keys() if n not in NOT_COMPARED]
    return [name for name in sorted(names) if first.get(name) != second.get(name)]


def describe_differences(
    config: ModelConfig, other: ModelConfig, names: Sequence[str]
) -> list[str]:
    first, second = flatten(canonical(config)), flatten(canonical(other))
    return [f"{name} is {first.get(name)!r}, not {second.get(name)!r}" for name in names]


def needed_changes(config: ModelConfig, other: ModelConfig, names: list[str]) -> dict[str, Any]:
    """The fewest settings of `other` that make a model like it; empty if they do not suffice."""
    wanted = flatten(other.to_dict())
    changes = {name: wanted[name] for name in names if name in wanted}
    for name in names:
        # a setting may follow from another: post-norm models have no final norm
        fewer = {key: value for key, value in changes.items() if key != name}
        changes = fewer if is_like(config, fewer, other) else changes
    return changes if is_like(config, changes, other) else {}


def is_like(config: ModelConfig, changes: Mapping[str, Any], other: ModelConfig) -> bool:
    try:
        return not config_differences(config.with_changes(changes), other)
    except WeftError:
        return False


def shell_value(value: Any) -> str:
    """A value as written after --set in a shell, where the word none means no value."""
    if value == "none":
        return "'\"none\"'"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def canonical(config: ModelConfig) -> dict[str, Any]:
    """Settings in canonical form: derived defaults filled in, unused settings left out."""
    values, attention = config.to_dict(), config.attention
    values["final_norm"], values["encoder_layers"] = config.has_final_norm, None
    if config.kind == "encoder-decoder":
        values["encoder_layers"] = config.layers_of("encoder")
        values["source_vocab_size"] = config.source_vocab_size or config.vocab_size
    elif config.embedding.tied == "output":
        values["embedding"]["tied"] = "all"
    values["norm"]["bias"] = config.norm.has_bias
    heads = values["attention"]
    heads["out_bias"] = attention.bias if attention.out_bias is None else attention.out_bias
    heads["head_size"] = attention.query_size(config.width)
    heads["scale"] = attention.scale or attention.query_size(config.width) ** -0.5
    if attention.kind == "mla":
        heads["latent"] = canonical_latent(config)
    else:
        heads["kind"], heads["num_kv_heads"] = "heads", attention.kv_heads
        del heads["latent"]
    heads["pattern"], values["local_position"] = canonical_pattern(config)
    values["feedforward"] = canonical_feedforward(config.feedforward, config.width)
    if config.dense_layers:
        dense = canonical_feedforward(config.dense_feedforward, config.width)
        values["dense_feedforward"] = dense
    else:
        del values["dense_feedforward"]
    if config.position.max_cached_len is not None:
        # transformers knows the original length of dynamic RoPE scaling, and no maximum
        values["max_len"] = config.position.max_cached_len
    del values["init_std"]
    return values


def canonical_latent(config: ModelConfig) -> dict[str, Any]:
    """Sizes of MLA, with those that follow from the head size filled in."""
    latent = config.attention.latent
    return {
        **config.attention.latent_sizes(config.width)._asdict(),
        "query_rank": latent.query_rank,
        "norm_eps": latent.norm_eps or config.norm.eps,
    }


def canonical_pattern(config: ModelConfig) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The attention pattern, and the positions of layers without full attention."""
    pattern, values = config.attention.pattern, config.attention.pattern.to_dict()
    count = max(config.layers_of("encoder"), config.layers_of("decoder"))
    is_full = [pattern.is_full(layer) for layer in range(count)]
    if all(is_full):
        return {"kind": "full"}, None
    full_every = pattern.full_every if any(is_full) else None
    used = {name: values[name] for name in ("kind", *PATTERN_SETTINGS[pattern.kind])}
    local = config.local_position or config.position
    return {**used, "full_every": full_every}, local.to_dict()


def canonical_feedforward(config: FeedForwardConfig, width: int) -> dict[str, Any]:
    """Inner width filled in; groups of experts left out if a token may use all of them."""
    values = config.to_dict() | {"width": config.inner_width(width)}
    values.pop("dropout", None)
    if config.kind == "experts" and config.groups_per_token == config.num_groups:
        values |= {"num_groups": 1, "groups_per_token": 1, "group_score": "max"}
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
