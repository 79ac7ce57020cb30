"""`Family`: what is known of one kind of foreign checkpoint, in both directions.

    read_config    their settings -> ModelConfig
    write_config   ModelConfig -> their settings (None: this family is only read)
    rules          which of their tensors make which of ours (rules.py)

Whether a model can be written as a family is not asked of the family: its settings are written,
read again and compared, and what comes back different is what the family cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.checkpoint.rules import Rule
from weft.core.errors import DataError, UsageError, WeftError
from weft.models.config import ModelConfig
from weft.nn.feedforward import FeedForwardConfig

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


class Given:
    """Their settings, with clear errors: every value is asked for by name."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default where it is absent or null."""
        value = self.values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(name, default)
        if value is None:
            raise DataError(f"has no {name}, which this kind of model needs.", self.path)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise DataError(f"{name} is {value!r}: it must be a whole number above 0.", self.path)
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{name} is {value!r}: it must be a number.", self.path)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise DataError(f"{name} is {value!r}: it must be true or false.", self.path)
        return value

    def one_of(self, name: str, table: Mapping[str, Any], default: str) -> Any:
        """The entry of a table that a value names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            known = ", ".join(sorted(table))
            raise DataError(f"{name} is {value!r}: Weft knows {known}.", self.path)
        return table[value]

    def refuse(self, name: str, allowed: Any, default: Any = None) -> None:
        """A DataError unless the value is the one that Weft can compute."""
        value = self.get(name, default)
        if value != allowed and name in self.values:
            raise DataError(f"{name} is {value!r}: Weft computes {allowed!r} only.", self.path)


@dataclass(frozen=True)
class Use:
    """How a checkpoint is to be used, apart from its weights; None and (): as the tokenizer has
    it."""

    start: int | None = None
    """The first id that a decoder with a source reads."""
    ends: tuple[int, ...] = ()
    """Ids that end a text."""
    first: int | None = None
    """Id that every translation begins with (BART's forced_bos_token_id)."""
    banned: tuple[int, ...] = ()
    """Ids that are never written (Marian's padding)."""
    pooling: str = "mean"
    """mean or first: how the vectors of a text's tokens become one."""

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Use:
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fields)


def no_use(given: Given) -> Use:
    return Use()


@dataclass(frozen=True)
class Family:
    """One entry of FAMILIES."""

    name: str
    model_types: tuple[str, ...]
    """Values of config.json's model_type that mean this family."""
    read_config: Callable[[Given], ModelConfig]
    rules: Callable[[ModelConfig], list[Rule]]
    write_config: Callable[[ModelConfig], dict[str, Any]] | None = None
    """Everything that `transformers` needs, model_type and architectures included."""
    ignored: tuple[str, ...] = ()
    """Patterns (re.fullmatch) of tensors in their files that hold nothing learned."""
    prefixes: tuple[str, ...] = field(default=())
    """Beginnings that some files put before, or leave off, every name ('model.', 'bert.')."""
    read_use: Callable[[Given], Use] = no_use


class MisfitError(UsageError):
    """A model that a family cannot say; `distance` grows with what is in the way."""

    def __init__(self, name: str, wrong: Sequence[str], distance: int) -> None:
        self.distance = distance
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        super().__init__(f"this model is not a {name}: {'; '.join(wrong[:3])}{more}.")


def written(family: Family, config: ModelConfig) -> dict[str, Any]:
    """Their settings for this model; a UsageError names what the family cannot say."""
    if family.write_config is None:
        raise UsageError(f"the {family.name} family is only read. Choose another one.")
    try:
        values = family.write_config(config)
        other = family.read_config(Given(values, Path(family.name)))
    except WeftError as error:
        raise MisfitError(family.name, [str(error).rstrip(".")], distance=100) from None
    wrong = different(config, other)
    if wrong:
        far = 1000 if other.kind != config.kind else 0
        raise MisfitError(family.name, wrong, distance=far + len(wrong))
    return values


def different(config: ModelConfig, other: ModelConfig) -> list[str]:
    """The settings in which two models differ, as sentences."""
    ours, theirs = flat(canonical(config)), flat(canonical(other))
    names = [n for n in ours.keys() | theirs.keys() if n not in NOT_COMPARED]
    return [
        f"{name} would become {theirs.get(name)!r} from {ours.get(name)!r}"
        for name in sorted(names)
        if ours.get(name) != theirs.get(name)
    ]


def inner_width(config: ModelConfig) -> int:
    """Width inside the feed-forward layers."""
    return config.feedforward.inner_width(config.width)


def has_bias(config: ModelConfig) -> bool:
    """Whether the feed-forward layers have one; experts never do."""
    return bool(getattr(config.feedforward, "bias", False))


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


def family_of(families: Sequence[Family], model_type: Any, path: Path) -> Family:
    """The family that a config.json names; a DataError lists the known ones."""
    for family in families:
        if model_type in family.model_types:
            return family
    known = ", ".join(sorted(name for family in families for name in family.model_types))
    raise DataError(f"model_type is {model_type!r}: Weft reads {known}.", path)
