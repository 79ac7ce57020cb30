"""`weft info`: parameters, cache bytes and FLOPs of a recipe or a checkpoint, without building the
model in memory; with `--verify`, a comparison of its files with their SHA-256."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from weft.cli.output import print_json, print_table, status
from weft.cli.recipe_names import find_recipe, packaged_recipe
from weft.core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from weft.checkpoint.stored_size import StoredSize
    from weft.models.config import ModelConfig
    from weft.models.cost import Cost

SENTENCES = {"differs": "was changed", "missing": "is missing"}


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Recipe or its name, model folder, .gguf file or name."
        ),
    ],
    compare: Annotated[
        Literal["heads"] | None,
        typer.Option(help="heads: compare MHA, GQA, MQA and MLA with the same settings."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: model.width=512."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Context length in tokens; default: the model's max_len."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Data type of weights and cache.")] = "float32",
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare all files with their recorded SHA-256."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Parameters, cache bytes and FLOPs per token of a recipe or a trained model.

    \b
    Example:
      weft info tiny
      weft info recipes/tiny.toml --compare heads
      weft info recipes/tiny.toml --set model.attention.kind=mla --json
      weft info runs/demo
      weft info smollm2
      weft info runs/demo --verify

    Only the headers of a model are read, not its weights. Of a model there are also the number
    formats of its weights (quantization), and its bytes on disk and in memory, where quantized
    matrices stay quantized. --verify reads everything, for a training run all checkpoints too, and
    exits with 1 if a file is missing or was changed.
    """
    if verify:
        verify_files(model, json)
        return
    from weft.models.cost import compare_heads, cost_of

    config = read_model(model, change or [])
    if compare is not None:
        costs = compare_heads(config, context, dtype)
        print_json({"rows": [cost.to_dict() for cost in costs]}) if json else print_comparison(
            costs
        )
        return
    cost = cost_of(config, context, dtype)
    stored = None if change or is_recipe(model) else read_stored_size(model, cost)
    print_cost(config, cost, stored, json)


def verify_files(model: str, is_json: bool) -> None:
    """Print the result for each file; exit code 1 unless all are as they were written."""
    from weft.checkpoint.verification import verify

    checks = verify(model)
    wrong = [check for check in checks if check.result in ("differs", "missing")]
    if is_json:
        print_json({"ok": not wrong, "files": {check.file: check.result for check in checks}})
    else:
        print_table(["file", "SHA-256"], [(check.file, check.result) for check in checks])
    if wrong:
        names = ", ".join(f"{check.file} {SENTENCES[check.result]}" for check in wrong)
        status(f"{model}: {names}. {remedy(model)}")
        raise typer.Exit(1)


def remedy(model: str) -> str:
    """What to do about a damaged model."""
    from weft.checkpoint.pulled_models import pulled_folder

    if not Path(model).exists() and pulled_folder(model).is_dir():
        return f"`weft pull {model}` downloads it again."
    return "Copy the model again, or train or convert it again."


def read_model(model: str, changes: list[str]) -> ModelConfig:
    """The model settings of a recipe or of a model's headers, changed by `--set`."""
    from weft.core.config import parse_override

    base = read_recipe(find_recipe(model)) if is_recipe(model) else read_headers(model)
    overrides = dict(parse_override(change) for change in changes)
    other = [name for name in overrides if not name.startswith("model.")]
    if other:
        raise UsageError(
            f"--set {other[0]} is not a model setting: its name must begin with 'model.'."
        )
    model_changes = {name.removeprefix("model."): value for name, value in overrides.items()}
    return base.with_changes(model_changes, prefix="model")


def is_recipe(model: str) -> bool:
    """Whether a name means a recipe: a TOML file, or a packaged recipe if no model has the name."""
    from weft.checkpoint.pulled_models import resolve

    return model.endswith(".toml") or (
        not resolve(model).exists() and packaged_recipe(model) is not None
    )


def read_recipe(path: Path) -> ModelConfig:
    from weft.core.config import read_settings
    from weft.models.config import ModelConfig

    values = read_settings(path)
    if not isinstance(values.get("model"), dict):
        raise ConfigError([f"{path} has no [model] section: `weft info` needs one. Add it."])
    return ModelConfig.from_dict(values["model"], where=str(path), prefix="model")


def read_headers(model: str) -> ModelConfig:
    from weft.checkpoint.description import describe

    description = describe(model)
    family = f", {description.family}" if description.family else ""
    status(f"{model}: {description.format}{family}")
    return description.config


def read_stored_size(model: str, cost: Cost) -> StoredSize | None:
    """How the weights of a model are stored; None for a folder that has no weights."""
    from weft.checkpoint.folder_files import CONFIG_FILE
    from weft.checkpoint.pulled_models import resolve
    from weft.checkpoint.stored_size import stored_size

    folder = resolve(model)
    has_only_settings = folder.is_dir() and [path.name for path in folder.iterdir()] == [
        CONFIG_FILE
    ]
    return None if has_only_settings else stored_size(model, cost)


def print_cost(config: ModelConfig, cost: Cost, stored: StoredSize | None, is_json: bool) -> None:
    """One property per line, or one JSON object."""
    if is_json:
        sizes = stored.to_dict() if stored else {}
        print_json({**cost.to_dict(), **sizes, "model": config.to_dict()})
        return
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
        *stored_rows(cost, stored),
        (f"cache bytes per token ({cost.dtype})", cost.kv_bytes_per_token),
    ]
    if cost.kv_bytes_per_source_token:
        rows.append(
            (f"cache bytes per source token ({cost.dtype})", cost.kv_bytes_per_source_token)
        )
    rows.append((f"FLOPs per token ({cost.context:,} tokens of context)", cost.flops_per_token))
    if cost.flops_per_source_token:
        rows.append(("FLOPs per source token", cost.flops_per_source_token))
    print_table(["", "value"], rows)


def stored_rows(cost: Cost, stored: StoredSize | None) -> list[tuple[str, object]]:
    """How large the weights are, and of a model how they are stored."""
    if stored is None:
        return [(f"weight bytes ({cost.dtype})", cost.weight_bytes)]
    return [
        ("weights stored as", stored.describe() or None),
        ("bytes on disk", stored.disk_bytes),
        (f"weight bytes in memory ({cost.dtype})", stored.memory_bytes),
    ]


def print_comparison(costs: list[Cost]) -> None:
    """One attention kind per line, with its cache size relative to MHA."""
    mha_bytes = costs[0].kv_bytes_per_token or 1
    columns = ["heads", "parameters", "cache bytes per token", "relative to mha", "FLOPs per token"]
    rows = [
        [
            c.heads,
            c.parameters,
            c.kv_bytes_per_token,
            f"{c.kv_bytes_per_token / mha_bytes:.0%}",
            c.flops_per_token,
        ]
        for c in costs
    ]
    print_table(columns, rows, title=f"{costs[0].context:,} tokens of context, {costs[0].dtype}")
