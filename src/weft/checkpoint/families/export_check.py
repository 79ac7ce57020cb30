"""Whether a model can be written as a family: its settings are written, read again and compared,
and what comes back different is what the family cannot say.

Before they are compared, settings are brought into one spelling, so that a default and the same
value given by name are equal. A model that does not fit is told with which settings one would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.checkpoint.families.base import Family, HFConfig
from weft.core.errors import UsageError, WeftError
from weft.models.config import ModelConfig
from weft.nn.feedforward import FeedForwardConfig

MOST = 6
"""Settings that a message names."""
NOT_COMPARED = ("dropout", "attention.dropout", "attention.kernel", "attention.latent.form")
"""Settings that do not change what a trained model computes; `canonical` drops init_std too."""
PATTERN_READS = {
    "window": ("window",),
    "dilated": ("window", "step"),
    "strided": ("stride",),
    "global": ("window", "global_tokens"),
    "blocks": ("block_size", "blocks"),
}
"""What each kind of attention.pattern reads, besides kind and full_every."""


class ExportMismatchError(UsageError):
    """A model that a family cannot say; `distance` grows with what is in the way."""

    def __init__(self, name: str, wrong: Sequence[str], distance: int, advice: str = "") -> None:
        self.distance = distance
        more = f" and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
        super().__init__(f"this model is not a {name}: {'; '.join(wrong[:MOST])}{more}.{advice}")


def export_config(family: Family, config: ModelConfig) -> dict[str, Any]:
    """Their settings for this model; a UsageError names what the family cannot say."""
    if family.write_config is None:
        raise UsageError(f"the {family.name} family is only read. Choose another one.")
    try:
        values = family.write_config(config)
        other = family.read_config(HFConfig(values, Path(family.name)))
    except WeftError as error:
        raise ExportMismatchError(family.name, [str(error).rstrip(".")], distance=100) from None
    wrong = config_differences(config, other)
    if wrong:
        raise export_mismatch(family.name, config, other, wrong)
    return values


def export_mismatch(
    name: str, config: ModelConfig, other: ModelConfig, wrong: list[str]
) -> ExportMismatchError:
    """What is in the way and, where settings can clear it, how to train a model that fits."""
    if other.kind != config.kind:
        return ExportMismatchError(
            name, sentences(config, other, wrong), distance=1000 + len(wrong)
        )
    changes = needed_changes(config, other, wrong)
    told = " ".join(f"--set model.{key}={spelled(value)}" for key, value in changes.items())
    advice = f" A model trained with {told} can be written as {name}." if changes else ""
    shown = list(changes) or wrong
    return ExportMismatchError(name, sentences(config, other, shown), len(wrong), advice)


def config_differences(config: ModelConfig, other: ModelConfig) -> list[str]:
    """The names of the settings in which two models differ."""
    ours, theirs = flat(canonical(config)), flat(canonical(other))
    names = [n for n in ours.keys() | theirs.keys() if n not in NOT_COMPARED]
    return [name for name in sorted(names) if ours.get(name) != theirs.get(name)]


def sentences(config: ModelConfig, other: ModelConfig, names: Sequence[str]) -> list[str]:
    ours, theirs = flat(canonical(config)), flat(canonical(other))
    return [f"{name} is {ours.get(name)!r}, not {theirs.get(name)!r}" for name in names]


def needed_changes(config: ModelConfig, other: ModelConfig, wrong: list[str]) -> dict[str, Any]:
    """The fewest settings of `other` that make a model like it; none where they do not suffice."""
    wanted = flat(other.to_dict())
    changes = {name: wanted[name] for name in wrong if name in wanted}
    for name in wrong:
        # a setting may follow from another: a norm after each layer has none at the end
        fewer = {key: value for key, value in changes.items() if key != name}
        changes = fewer if is_like(config, fewer, other) else changes
    return changes if is_like(config, changes, other) else {}


def is_like(config: ModelConfig, changes: Mapping[str, Any], other: ModelConfig) -> bool:
    try:
        return not config_differences(config.with_changes(changes), other)
    except WeftError:
        return False


def spelled(value: Any) -> str:
    """A value as a shell hands it to --set, where the word none means no value."""
    if value == "none":
        return "'\"none\"'"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def canonical(config: ModelConfig) -> dict[str, Any]:
    """Settings in one spelling: defaults that follow from others filled in, unread ones left
    out."""
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
    del values["init_std"]
    return values


def canonical_latent(config: ModelConfig) -> dict[str, Any]:
    """Sizes of latent heads, those that follow from the head size filled in."""
    latent = config.attention.latent
    return {
        **config.attention.latent_sizes(config.width)._asdict(),
        "query_rank": latent.query_rank,
        "norm_eps": latent.norm_eps or config.norm.eps,
    }


def canonical_pattern(config: ModelConfig) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Which keys the layers see, and the positions of those that do not see all."""
    pattern, told = config.attention.pattern, config.attention.pattern.to_dict()
    count = max(config.layers_of("encoder"), config.layers_of("decoder"))
    is_full = [pattern.is_full(layer) for layer in range(count)]
    if all(is_full):
        return {"kind": "full"}, None
    full_every = pattern.full_every if any(is_full) else None
    read = {name: told[name] for name in ("kind", *PATTERN_READS[pattern.kind])}
    local = config.local_position or config.position
    return {**read, "full_every": full_every}, local.to_dict()


def canonical_feedforward(config: FeedForwardConfig, width: int) -> dict[str, Any]:
    """Its inner width filled in; groups of experts left out where a token may use all of them."""
    values = config.to_dict() | {"width": config.inner_width(width)}
    values.pop("dropout", None)
    if config.kind == "experts" and config.groups_per_token == config.num_groups:
        values |= {"num_groups": 1, "groups_per_token": 1, "group_score": "max"}
    return values


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found
