"""`weft info`: what a recipe's or any checkpoint's model is made of and what it costs, without
building it in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from weft.cli.output import print_json, print_table, say
from weft.core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from weft.models.config import ModelConfig
    from weft.models.cost import Cost


def command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A recipe (.toml), a model folder, .gguf or name."),
    ],
    compare: Annotated[
        Literal["heads"] | None,
        typer.Option(help="heads: the same settings as MHA, GQA, MQA and MLA, side by side."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: model.width=512."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Keys that a token sees; by default the model's max_len."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Number format that bytes are counted in.")
    ] = "float32",
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Parameters, cache bytes and FLOPs per token of a recipe or a trained model.

    \b
    Example:
      weft info recipes/tiny.toml
      weft info recipes/tiny.toml --compare heads
      weft info recipes/tiny.toml --set model.attention.kind=mla --json
      weft info runs/demo
      weft info smollm2

    Of a model only headers are read, never its weights.
    """
    from weft.core.choices import pick
    from weft.core.device import DTYPES
    from weft.models.cost import compare_heads, cost_of

    config = read_model(model, change or [])
    chosen = pick(DTYPES, dtype, "dtype")
    if compare is not None:
        costs = compare_heads(config, context, chosen)
        print_json({"rows": [cost.to_dict() for cost in costs]}) if json else print_comparison(
            costs
        )
        return
    cost = cost_of(config, context, chosen)
    if json:
        print_json({**cost.to_dict(), "model": config.to_dict()})
    else:
        print_cost(config, cost)


def read_model(model: str, changes: list[str]) -> ModelConfig:
    """The model settings of a recipe, or of any model from its headers, with `--set` on top."""
    from weft.core.config import parse_override

    base = read_recipe(Path(model)) if model.endswith(".toml") else read_headers(model)
    overrides = dict(parse_override(change) for change in changes)
    other = [name for name in overrides if not name.startswith("model.")]
    if other:
        raise UsageError(f"--set {other[0]} is not about the model: begin its name with 'model.'.")
    model_changes = {name.removeprefix("model."): value for name, value in overrides.items()}
    return base.with_changes(model_changes)


def read_recipe(path: Path) -> ModelConfig:
    from weft.core.config import read_settings
    from weft.models.config import ModelConfig

    values = read_settings(path)
    if not isinstance(values.get("model"), dict):
        raise ConfigError([f"{path} has no [model] section: `weft info` needs one. Add it."])
    return ModelConfig.from_dict(values["model"], where=str(path))


def read_headers(model: str) -> ModelConfig:
    from weft.checkpoint.formats import describe

    found = describe(model)
    say(f"{model}: {found.format}" + (f", {found.family}" if found.family else ""))
    return found.config


def print_cost(config: ModelConfig, cost: Cost) -> None:
    """One fact a line."""
    layers = f"{config.num_layers}"
    if config.kind == "encoder-decoder":
        layers = f"{config.layers_of('encoder')}+{config.layers_of('decoder')}"
    rows: list[tuple[str, object]] = [
        ("kind", cost.kind),
        ("layers", layers),
        ("width", config.width),
        ("heads", f"{config.attention.num_heads} ({cost.heads})"),
        ("positions", config.position.kind),
        ("feed-forward", config.feedforward.kind),
        ("norm", f"{config.norm.kind}, {config.norm.placement}"),
        ("vocabulary", config.vocab_size),
        ("parameters", cost.parameters),
        ("active parameters", cost.active_parameters),
        (f"weight bytes ({cost.dtype})", cost.weight_bytes),
        (f"cache bytes per token ({cost.dtype})", cost.kv_bytes_per_token),
    ]
    if cost.kv_bytes_per_source_token:
        rows.append(
            (f"cache bytes per source token ({cost.dtype})", cost.kv_bytes_per_source_token)
        )
    rows.append((f"FLOPs per token ({cost.context:,} keys in sight)", cost.flops_per_token))
    if cost.flops_per_source_token:
        rows.append(("FLOPs per source token", cost.flops_per_source_token))
    print_table(["", "value"], rows)


def print_comparison(costs: list[Cost]) -> None:
    """One kind of heads a line, with the cache as a share of MHA's."""
    most = costs[0].kv_bytes_per_token or 1
    columns = ["heads", "parameters", "cache bytes per token", "share of mha", "FLOPs per token"]
    rows = [
        [
            c.heads,
            c.parameters,
            c.kv_bytes_per_token,
            f"{c.kv_bytes_per_token / most:.0%}",
            c.flops_per_token,
        ]
        for c in costs
    ]
    print_table(columns, rows, title=f"{costs[0].context:,} keys in sight, {costs[0].dtype}")
