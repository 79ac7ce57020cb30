"""`weft bench engine`, `translate` and `peers`: Weft beside the programs that others use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.commas import numbers, words
from weft.cli.output import print_json, print_table, say

Peers = Annotated[
    Path, typer.Option("--peers", metavar="DIR", help="Where `make bench-peers` installed them.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the processor, for each system.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the rows: .png, .svg or .pdf.")
]
PEERS = Path(".peers")


def engine(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A decoder: a .gguf file, a folder or a name.")
    ] = "smollm2",
    workloads: Annotated[
        str, typer.Option(help="Of those above, with commas.")
    ] = "decode,prefill,shared,distinct,tree,mixed,waiting",
    systems: Annotated[
        str, typer.Option(help="Of weft, llama.cpp, vllm and transformers, with commas.")
    ] = "weft,llama.cpp,vllm,transformers",
    scale: Annotated[
        float, typer.Option(min=0.001, help="Prompts and texts so many times as long.")
    ] = 1.0,
    repeats: Repeats = 5,
    threads: Threads = 2,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 0,
    peers: Peers = PEERS,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Weft's engine beside llama.cpp, vLLM and transformers, in turns, on the same weights.

    \b
    Example:
      weft pull smollm2
      make bench-peers
      weft bench engine
      weft bench engine --workloads decode,prefill --systems weft,llama.cpp --json
      weft bench engine --scale 0.05 --repeats 1       # to see whether everything runs

    \b
    Workloads:
      decode    one stream of 128 new tokens
      prefill   1,024 tokens, one new
      shared    32 requests: 660 tokens in common, 16 of their own, 64 new
      distinct  32 requests with nothing in common: Weft's prefix cache against none
      tree      the scheduler alone: hits, and those of the best order
      mixed     the scheduler alone: the share of held memory that holds tokens
      waiting   the scheduler alone: what a plan costs with 1,000 requests waiting

    A system that is not installed or fails is named in one line; the others go on.
    """
    from weft.bench import engine as work

    plan = work.Plan(model, words(workloads), words(systems), peers, repeats, threads, seed, scale)
    show(work.measure(plan, say), json, plot)


def translate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An encoder-decoder of Marian's shape.")
    ],
    source: Annotated[
        Path, typer.Option(metavar="FILE", help="Lines to translate, plain or gzip.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Lines that are taken.")] = 1000,
    beams: Annotated[str, typer.Option(help="Widths of beams, with commas; 1: greedy.")] = "1,5",
    systems: Annotated[
        str, typer.Option(help="Of weft, ctranslate2 and transformers, with commas.")
    ] = "weft,ctranslate2,transformers",
    repeats: Repeats = 5,
    threads: Threads = 2,
    peers: Peers = PEERS,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Translation beside CTranslate2 and transformers, in turns, on the same weights.

    \b
    Example:
      make bench-peers
      weft bench translate runs/marian --source test.en.gz

    \b
    The others read Marian's shape. Speed asks for no quality: a thousand steps will do.
      weft train recipes/marian.toml --pairs train.en.gz train.de.gz --out runs/marian

    A system that is not installed or fails is named in one line; the others go on.
    """
    from weft.bench import translate as work

    widths = numbers(beams, "--beams", "1,5")
    plan = work.Plan(model, source, limit, widths, words(systems), peers, repeats, threads)
    show(work.measure(plan, say), json, plot)


def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="llama_cpp, vllm, transformers, ctranslate2."),
    ] = None,
    peers: Peers = PEERS,
) -> None:
    """Install the programs that Weft is measured against, each in an environment of its own.

    \b
    Example:
      weft bench peers
      weft bench peers llama_cpp ctranslate2

    What is there already is left alone. llama.cpp is compiled for this processor, which takes
    about ten minutes; all four take about six gigabytes.
    """
    from weft.bench.peers.install import RECIPES, install_all

    if install_all(names or list(RECIPES), peers, say):
        raise typer.Exit(1)


def show(found: dict[str, Any], json: bool, plot: Path | None) -> None:
    """Rows, goals and a drawing."""
    from weft.bench import bars

    if json:
        print_json(found)
    else:
        print_table(*bars.table(found["rows"]))
        if found["goals"]:
            print_table(*bars.goal_table(found["goals"]))
    if plot is not None:
        bars.plot(found["rows"], plot)
        say(f"drawn in {plot}")
