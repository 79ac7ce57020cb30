"""`weft bench`: measured numbers, as a table, as JSON and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli import bench_peers
from weft.cli.commas import numbers, words
from weft.cli.output import print_json, print_table, progress, say

MANY = ("--text", "--pairs", "--valid")

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory."""


app.command("engine")(bench_peers.engine)
app.command("translate")(bench_peers.translate)
app.command("peers")(bench_peers.install)


@app.command("attention")
def attention(
    lengths: Annotated[str, typer.Option(help="Tokens, with commas.")] = "1024,4096,16384",
    kernels: Annotated[
        str, typer.Option(help="Of reference, flash, sparse and auto, with commas.")
    ] = "reference,flash,sparse",
    patterns: Annotated[
        str,
        typer.Option(help="Of causal, window, dilated, strided, global, documents, with commas."),
    ] = "causal,window,dilated,strided,global,documents",
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    head_size: Annotated[int, typer.Option(help="Numbers in a head.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of the processor.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the rows: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Seconds and peak extra bytes of every attention kernel and pattern, over lengths.

    Batch 1, forward and backward. The reference runs only where its scores fit into memory.

    \b
    Example:
      weft bench attention
      weft bench attention --lengths 4096,16384 --kernels flash,sparse --patterns causal,window
      weft bench attention --json --plot attention.png
    """
    from weft.bench import attention as work
    from weft.bench import report

    sizes = {"heads": heads, "head_size": head_size, "threads": threads, "seed": seed}
    tasks = work.workloads(
        words(kernels), words(patterns), numbers(lengths, "--lengths", "1024,4096"), **sizes
    )
    with progress(f"{len(tasks)} workloads", len(tasks) * (repeats + 1)) as step:
        rows = work.measure(tasks, repeats, step)
    if json:
        print_json(work.to_json(rows, tasks[0], repeats))
    else:
        print_table(report.COLUMNS, report.table(rows))
    if plot is not None:
        report.plot(rows, plot)
        say(f"drawn in {plot}")


@app.command("train")
def train(
    systems: Annotated[
        str | None, typer.Option(help="Of weft, marian and torch; by default all installed.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=64, help="Target tokens in a batch.")] = 4096,
    batches: Annotated[int, typer.Option(min=1, help="Batches in a round.")] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the processor.")] = 2,
    seed: Annotated[int, typer.Option(help="Of words, lengths and weights.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Target tokens a second of a training step, beside transformers' Marian and torch's own.

    Transformer-Tiny's size; the same batches for all, in turns.

    \b
    Example:
      weft bench train
      weft bench train --systems weft,torch --json
    """
    from weft.bench import train as work

    names = words(systems) if systems else work.installed()
    names = ["weft", *(name for name in names if name != "weft")]
    load = work.Workload(batch_tokens=batch_tokens, num_batches=batches, seed=seed)
    with progress(f"{len(names)} systems", len(names) * repeats) as step:
        found = work.measure(names, load, repeats, threads, step)
    if json:
        print_json(found)
        return
    ratios = found["ratios"]
    rows = [
        [row["system"], row["tokens_per_second"], ratios.get(f"weft/{row['system']}", 1.0)]
        for row in found["rows"]
    ]
    print_table(["system", "target tokens/s", "weft is faster by"], rows)


@app.command("switches")
def switches(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder for the runs.")],
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="What is changed.")],
    text: Annotated[
        list[Path] | None, typer.Option("--text", metavar="FILE...", help="For a decoder.")
    ] = None,
    pairs: Annotated[
        list[Path] | None, typer.Option("--pairs", metavar="SRC TGT", help="For a pair model.")
    ] = None,
    valid: Annotated[
        list[Path] | None, typer.Option("--valid", metavar="FILE...", help="Validation files.")
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only these; may be repeated. By default 13."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change the recipe for all of them."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Train one recipe with one switch changed at a time: quality, time and cache, side by side.

    The same command again goes on where it stopped.

    \b
    Example:
      weft bench switches recipes/shakespeare.toml --text input.txt --out runs/switches
      weft bench switches recipes/tiny.toml --pairs a b --switch model.norm.kind=rmsnorm --out out
    """
    from weft.bench import switches as work
    from weft.cli.train import choose_data, read_recipe
    from weft.training.run import training_files

    settings = read_recipe(recipe, change or [])
    files = training_files(choose_data(settings, pairs, None, (1, 2), text, "lm", valid))
    chosen = ["base", *switch] if switch else list(work.SWITCHES)
    found = work.measure(settings, files, out, chosen, lambda name: say(f"training {name}"))
    if json:
        print_json(found)
        return
    columns = ["switch", "validation loss", "seconds", "parameters", "cache bytes"]
    print_table(columns, [list(row.values()) for row in found["rows"]])
