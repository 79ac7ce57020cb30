"""`weft bench`: benchmarks as a table, as JSON and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from weft.cli.options import parse_integers, parse_words
from weft.cli.output import print_json, print_table, progress, status

MANY = ("--text", "--pairs", "--valid")

Peers = Annotated[
    Path,
    typer.Option("--peers", metavar="DIR", help="Folder of the installed peers."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; the median is reported.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads per system.")]
Neighbors = Annotated[str, typer.Option(help="Numbers of busy processes, for busy.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Plot the results: .png, .svg or .pdf.")
]
PEERS = Path(".peers")

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory."""


@app.command("attention")
def attention(
    lengths: Annotated[
        str, typer.Option(help="Sequence lengths, comma-separated.")
    ] = "1024,4096,16384",
    kernels: Annotated[
        str, typer.Option(help="Any of reference, flash, sparse, auto.")
    ] = "reference,flash,sparse",
    patterns: Annotated[
        str,
        typer.Option(help="Any of causal, window, dilated, strided, global, documents."),
    ] = "causal,window,dilated,strided,global,documents",
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    head_size: Annotated[int, typer.Option(help="Head dimension.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the median is reported.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot the results: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Time and peak additional memory of attention kernels and patterns by length.

    Batch size 1, forward and backward. The reference runs only if its scores fit into memory.

    \b
    Example:
      weft bench attention
      weft bench attention --lengths 4096,16384 --kernels flash,sparse --patterns causal,window
      weft bench attention --json --plot attention.png
    """
    from weft.bench import attention as work
    from weft.bench import plots

    sizes = {"heads": heads, "head_size": head_size, "threads": threads, "seed": seed}
    tasks = work.workloads(
        parse_words(kernels),
        parse_words(patterns),
        parse_integers(lengths, "--lengths", "1024,4096"),
        **sizes,
    )
    with progress(f"{len(tasks)} workloads", len(tasks) * (repeats + 1)) as step:
        rows = work.measure(tasks, repeats, step)
    if json:
        print_json(work.to_json(rows, tasks[0], repeats))
    else:
        print_table(plots.ATTENTION_COLUMNS, plots.attention_table(rows))
    if plot is not None:
        plots.plot_attention(rows, plot)
        status(f"plot: {plot}")


@app.command("train")
def train(
    systems: Annotated[
        str | None, typer.Option(help="Any of weft, marian, torch; default: all installed.")
    ] = None,
    workload: Annotated[
        Literal["idle", "busy"], typer.Option(help="busy: beside 1, 2, 4 and 8 busy processes.")
    ] = "idle",
    neighbors: Neighbors = "1,2,4,8",
    batch_tokens: Annotated[int, typer.Option(min=64, help="Target tokens per batch.")] = 4096,
    batches: Annotated[int, typer.Option(min=1, help="Batches per round.")] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the median is reported.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of tokens, lengths and weights.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Training speed in target tokens per second, compared with transformers' Marian and torch.

    A model of the size of Transformer-Tiny; the same batches for all, measured alternately.

    \b
    Example:
      weft bench train
      weft bench train --systems weft,torch --json
      weft bench train --workload busy --systems weft
    """
    from weft.bench import train as work

    names = parse_words(systems) if systems else work.installed()
    names = ["weft", *(name for name in names if name != "weft")]
    load = work.TrainingWorkload(batch_tokens=batch_tokens, num_batches=batches, seed=seed)
    if workload == "busy":
        counts = parse_integers(neighbors, "--neighbors", "1,2,4,8")
        with progress(f"{len(names)} systems", len(names) * repeats * (1 + len(counts))) as step:
            results = work.measure_busy(names, load, repeats, threads, step, counts)
        show(results, json, None)
        return
    with progress(f"{len(names)} systems", len(names) * repeats) as step:
        results = work.measure(names, load, repeats, threads, step)
    if json:
        print_json(results)
        return
    ratios = results["ratios"]
    rows = [
        [row["system"], row["tokens_per_second"], ratios.get(f"weft/{row['system']}", 1.0)]
        for row in results["rows"]
    ]
    print_table(["system", "target tokens/s", "weft relative"], rows)


@app.command("switches")
def switches(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the runs.")],
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="Base recipe.")],
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE...", help="Text files, for a decoder."),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            "--pairs", metavar="SRC TGT", help="Two parallel files, for an encoder-decoder."
        ),
    ] = None,
    valid: Annotated[
        list[Path] | None, typer.Option("--valid", metavar="FILE...", help="Validation files.")
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Settings to compare; may be repeated. Default: 13 built-in changes.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of all runs."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Train one recipe with one setting changed at a time: quality, time and cache size.

    Running the same command again resumes.

    \b
    Example:
      weft bench switches recipes/shakespeare.toml --text input.txt --out runs/switches
      weft bench switches recipes/tiny.toml --pairs a b --switch model.norm.kind=rmsnorm --out out
    """
    from weft.bench import switches as work
    from weft.cli.train import choose_data, parse_changes, read_recipe
    from weft.training.run import training_files

    settings = read_recipe(recipe, parse_changes(change or []))
    data = choose_data(pairs, None, (1, 2), text, "lm", valid)
    files = training_files(data or settings.data)
    chosen = ["base", *switch] if switch else list(work.SWITCHES)
    results = work.measure(settings, files, out, chosen, lambda name: status(f"training {name}"))
    if json:
        print_json(results)
        return
    columns = ["switch", "validation loss", "seconds", "parameters", "cache bytes"]
    print_table(columns, [list(row.values()) for row in results["rows"]])


@app.command("engine")
def engine(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A decoder: .gguf file, model folder or name.")
    ] = "smollm2",
    workloads: Annotated[
        str, typer.Option(help="Workloads, comma-separated.")
    ] = "decode,prefill,shared,distinct,tree,mixed,waiting",
    systems: Annotated[
        str, typer.Option(help="Any of weft, llama.cpp, vllm, transformers.")
    ] = "weft,llama.cpp,vllm,transformers",
    scale: Annotated[
        float, typer.Option(min=0.001, help="Factor for the lengths of prompts and outputs.")
    ] = 1.0,
    repeats: Repeats = 5,
    threads: Threads = 2,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.")] = 0,
    neighbors: Neighbors = "1,2,4,8",
    peers: Peers = PEERS,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """The engine compared with llama.cpp, vLLM and transformers, measured alternately.

    \b
    Example:
      weft pull smollm2
      make bench-peers
      weft bench engine
      weft bench engine --workloads decode,prefill --systems weft,llama.cpp --json
      weft bench engine --scale 0.05 --repeats 1       # a quick check

    \b
    Workloads:
      decode    one request, 128 new tokens
      prefill   1,024 prompt tokens, 1 new token
      shared    32 requests: 660 shared prompt tokens, 16 others, 64 new tokens
      distinct  32 requests without shared prefixes: prefix cache on and off
      busy      decode beside 1, 2, 4 and 8 processes that use the CPUs
      latency   a stream while a prompt of 4,000 tokens arrives, Weft only
      tree      scheduler only: cache hits, and those of the best order
      mixed     scheduler only: the share of allocated cache rows that hold tokens
      waiting   scheduler only: cost of a plan with 1,000 waiting requests

    A system that is not installed or fails is reported in one line; the others continue.
    """
    from weft.bench import engine as work

    plan = work.EngineBench(
        *(model, parse_words(workloads), parse_words(systems), peers, repeats, threads, seed),
        *(scale, parse_integers(neighbors, "--neighbors", "1,2,4,8")),
    )
    show(work.measure(plan, status), json, plot)


@app.command("serve")
def serve(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A decoder: .gguf file, model folder or name.")
    ] = "smollm2",
    workloads: Annotated[
        str, typer.Option(help="Workloads, comma-separated.")
    ] = "1 stream,8 streams,32 streams,prefixes,cached",
    systems: Annotated[
        str,
        typer.Option(
            help="Any of weft int8, weft, weft int8 Q4_0, llama-server Q4_0, llama-server Q4_1, "
            "vllm."
        ),
    ] = "weft int8,weft,weft int8 Q4_0,llama-server Q4_0,llama-server Q4_1,vllm",
    generator: Annotated[
        Literal["auto", "vllm", "own"],
        typer.Option(help="Load generator: vllm bench serve, or one without vLLM."),
    ] = "auto",
    scale: Annotated[
        float, typer.Option(min=0.001, help="Factor for the lengths of prompts and outputs.")
    ] = 1.0,
    repeats: Repeats = 3,
    threads: Threads = 2,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.")] = 0,
    peers: Peers = PEERS,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """The server compared with llama-server and vLLM, measured alternately by one load generator.

    \b
    Example:
      weft pull smollm2
      weft bench peers llama_server vllm
      weft bench serve
      weft bench serve --systems "weft int8,vllm" --workloads "8 streams" --json
      weft bench serve --scale 0.05 --repeats 1       # a quick check

    \b
    Workloads:
      1 stream     4 requests, one after the other: 128 prompt tokens, 128 new tokens
      8 streams    16 requests, 8 at a time
      32 streams   32 requests at once
      prefixes     32 requests, 8 at a time: 4 prefixes of 512 tokens, 32 other tokens, 32 new ones
      cached       Weft only: 20 prompts of 2,000 tokens, each sent twice

    A system that is not installed or fails is reported in one line; the others continue.
    """
    from weft.bench import plots
    from weft.bench import serve as work

    plan = work.ServeBench(
        *(model, parse_words(workloads), parse_words(systems), generator, peers, repeats),
        *(threads, seed, scale),
    )
    results = work.measure(plan, status)
    show(results, json, None)
    if plot is not None:
        plots.plot_servers(results["rows"], plot)
        status(f"plot: {plot}")


@app.command("translate")
def translate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An encoder-decoder with Marian's architecture.")
    ],
    source: Annotated[
        Path, typer.Option(metavar="FILE", help="Lines to translate; plain or gzip.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Number of lines.")] = 1000,
    beams: Annotated[str, typer.Option(help="Beam widths, comma-separated; 1: greedy.")] = "1,5",
    systems: Annotated[
        str, typer.Option(help="Any of weft, ctranslate2, transformers.")
    ] = "weft,ctranslate2,transformers",
    repeats: Repeats = 5,
    threads: Threads = 2,
    peers: Peers = PEERS,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Translation speed compared with CTranslate2 and transformers, measured alternately.

    \b
    Example:
      make bench-peers
      weft bench translate runs/marian --source test.en.gz

    \b
    The peers need Marian's architecture. For speed, a thousand training steps are enough.
      weft train recipes/marian.toml --pairs train.en.gz train.de.gz --out runs/marian

    A system that is not installed or fails is reported in one line; the others continue.
    """
    from weft.bench import translate as work

    widths = parse_integers(beams, "--beams", "1,5")
    plan = work.TranslationBench(
        model, source, limit, widths, parse_words(systems), peers, repeats, threads
    )
    show(work.measure(plan, status), json, plot)


@app.command("peers")
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="llama_cpp, llama_server, vllm, transformers, ctranslate2."
        ),
    ] = None,
    peers: Peers = PEERS,
) -> None:
    """Install the programs that Weft is compared with, each in its own environment.

    \b
    Example:
      weft bench peers
      weft bench peers llama_cpp ctranslate2

    Existing installations are kept. llama.cpp and llama-server are compiled for this processor,
    which takes about ten minutes each; all five need about six gigabytes.
    """
    from weft.bench.peers.install import PEER_PACKAGES, install_all

    if install_all(names or list(PEER_PACKAGES), peers, status):
        raise typer.Exit(1)


def show(results: dict[str, Any], json: bool, plot: Path | None) -> None:
    """Print results and goals, and plot the results."""
    from weft.bench import plots

    if json:
        print_json(results)
    else:
        print_table(*plots.system_table(results["rows"]))
        if results["goals"]:
            print_table(*plots.goal_table(results["goals"]))
    if plot is not None:
        plots.plot_systems(results["rows"], plot)
        status(f"plot: {plot}")
