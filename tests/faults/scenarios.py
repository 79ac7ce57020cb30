"""The operations whose crash points are tested, each with the commands that prepare it, read its
result and repeat it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .recorder import CrashPoint

Command = tuple[str, ...]
"""A function of `actions` and its arguments."""


def one_phase(points: Sequence[CrashPoint]) -> list[str]:
    return [""] * len(points)


def phases_of_run(points: Sequence[CrashPoint]) -> list[str]:
    """Start: until the first checkpoint begins. End: from the last checkpoint on."""
    made = [
        n for n, p in enumerate(points) if p.call.name == "mkdir" and "/checkpoints/" in p.label
    ]
    first, last = made[0], made[-1]
    return [
        "start" if n < first else "checkpoint" if n < last else "end" for n in range(len(points))
    ]


@dataclass(frozen=True)
class Scenario:
    """One operation."""

    name: str
    command: Command
    """Repeated after a crash; it must then give the same result as if there had been none."""
    prepare: tuple[Command, ...] = ()
    """What is in the folder before."""
    describe: Command | None = None
    """Reads the result. After a crash, before anything is repeated, it must print what it printed
    before the operation or after it; None: an unfinished result is never read."""
    phases: Callable[[Sequence[CrashPoint]], list[str]] = one_phase
    refuses_existing: bool = False
    """The command refuses to run again if its result is there already."""


def changes(*settings: str) -> Command:
    """Options that change settings of a recipe."""
    return tuple(part for setting in settings for part in ("--set", f"train.{setting}"))


MODEL = ("save_model", "model", "3")
TRAIN = ("weft", "train", "recipe.toml", "--text", "corpus.txt", "--out", "runs/lm")
TRANSLATE = ("weft", "train", "recipe.toml", "--pairs", "pairs.en", "pairs.de", "--out", "runs/mt")
HF = ("weft", "convert", "model", "new/out", "--to", "hf", "--max-shard-size", "20KB")
SCENARIOS = [
    Scenario("save", ("save_model", "new/model", "4"), (), ("describe_model", "new/model")),
    Scenario("save again", ("save_model", "model", "4"), (MODEL,), ("describe_model", "model")),
    Scenario(
        "save another model",
        ("save_model", "model", "4", "24"),
        ((*MODEL, "16", "{{ messages }}"),),  # the other one has no template
        ("describe_model", "model"),
    ),
    Scenario("pull again", ("pull_model", "model", "4"), (MODEL,), ("describe_model", "model")),
    Scenario("pull repository", ("pull_repository", "4"), (), ("describe_pulled",)),
    Scenario(
        "pull another commit",
        ("pull_repository", "4"),
        (("pull_repository", "3"),),
        ("describe_pulled",),
    ),
    Scenario(
        "train",
        TRAIN,
        (("write_inputs",),),
        phases=phases_of_run,
    ),
    Scenario(
        "train translator",
        # shorter than `train`, with every kind of call of it: only the data are read differently
        (*TRANSLATE, "--set", "model.kind=encoder-decoder", *changes("steps=2", "average=1")),
        (("write_inputs",),),
        phases=phases_of_run,
    ),
    Scenario(
        "extend",
        ("weft", "train", "--out", "runs/lm", *changes("steps=4", "save_every=3")),
        (
            ("write_inputs",),
            (*TRAIN, *changes("steps=2", "evaluate_every=1")),
        ),
        phases=phases_of_run,
    ),
    Scenario("convert to hf", HF, (MODEL,), ("describe_model", "new/out"), refuses_existing=True),
    Scenario(
        "convert to gguf",
        ("weft", "convert", "model", "new/out.gguf", "--to", "gguf"),
        (MODEL,),
        ("describe_model", "new/out.gguf"),
        refuses_existing=True,
    ),
    Scenario(
        "convert to weft",
        ("weft", "convert", "model", "new/out", "--to", "weft"),
        (MODEL,),
        ("describe_model", "new/out"),
        refuses_existing=True,
    ),
    Scenario("cache", ("save_cache", "new/cache", "2"), (), ("describe_cache", "new/cache")),
    Scenario(
        "cache again",
        ("save_cache", "cache", "2"),
        (("save_cache", "cache", "1"),),
        ("describe_cache", "cache"),
    ),
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
