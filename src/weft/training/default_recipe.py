"""The default recipe: size of the corpus and a probe -> settings of a run without a recipe.

    corpus                    tokenizer, width and layers, share of held-out lines
    corpus, time              size of a batch
    probe (training/probe.py) steps, warmup, evaluations, checkpoints, dropout

Small models are best for small corpora (Araabi and Monz 2020), and in a short time, many small
updates with Muon give the lowest loss. The learning rate is constant in the first part of a run and
then decays to zero (warmup-stable-decay), so that a new plan of the steps does not affect the first
part. Dropout increases with the number of epochs, against overfitting. Settings of the command line
(`--set`) override all of these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from weft.training.data.files import TrainingFiles
from weft.training.probe import PROBE_SECONDS, ProbeResult
from weft.training.recipe import Recipe
from weft.training.time_budget import TARGET

DEFAULT_MINUTES = 60.0
"""Approximate maximum duration of a run without `--time`."""
PATIENCE = 6
MAX_HELD_OUT = 1000
"""Maximum number of lines that are held out for validation if there are no validation files."""
MAX_EVALUATIONS, MIN_EVALUATIONS, EVALUATION_SHARE = 20, 3, 0.05
"""Limits of the number of evaluations, and the share of the time that they may take."""
NUM_SAVES, MIN_SAVE_STEPS, MAX_WARMUP = 40, 10, 200
"""Number of checkpoints of a run, minimum steps between two, and maximum warmup steps. The minimum
matters if other programs slow the probe down: a plan then has too few steps, and its checkpoints
would be less than a second apart."""
EPOCH_DROPOUT = ((8, 0.1), (20, 0.2))
"""(epochs, dropout): dropout of runs up to this number of epochs; longer ones have MAX_DROPOUT."""
MAX_DROPOUT = 0.3


@dataclass(frozen=True)
class CorpusSize:
    """Size of the training files."""

    num_lines: int
    """Number of pairs, or of lines of text."""
    num_characters: int
    """Characters of the target side, or of the text."""


def corpus_size(files: TrainingFiles) -> CorpusSize:
    """Count lines and characters. Reads the files once."""
    if files.task == "translate":
        lengths = [len(target) for _, target in files.pairs("train")]
    else:
        lengths = [len(line) for line in files.texts("train", "line")]
    return CorpusSize(len(lengths), sum(lengths))


def default_recipe(size: CorpusSize, files: TrainingFiles, minutes: float | None) -> dict[str, Any]:
    """The settings that depend on the corpus only, as nested values."""
    is_small = size.num_characters < 20_000_000
    width = 128 if is_small else 256
    is_pairs = files.task == "translate"
    values: dict[str, Any] = {
        "model": {
            "width": width,
            "num_layers": 3 if is_pairs else 4,
            "max_len": 256,
            "attention": {"kind": "mha", "num_heads": width // 32},
            "position": {"kind": "sinusoidal" if is_pairs else "rotary"},
            "feedforward": {"kind": "relu", "width": 4 * width},
            "norm": {"kind": "layernorm", "placement": "before"},
            "embedding": {"tied": "all", "scale": True},
        },
        "tokenizer": {"kind": "bpe", "vocab_size": vocab_size(size.num_characters)},
        "train": {
            "batch_tokens": batch_tokens(minutes or DEFAULT_MINUTES),
            "label_smoothing": 0.1 if is_pairs else 0.0,
            "average": 4,
            "patience": PATIENCE,
            "optimiser": {"kind": "muon", "lr": 0.004, "betas": [0.9, 0.98]},
            "schedule": {"kind": "wsd", "decay": 0.6},
        },
    }
    if not files.valid and size.num_lines > 1:
        values["train"]["valid_share"] = min(0.05, MAX_HELD_OUT / size.num_lines)
    return values


def vocab_size(num_characters: int) -> int:
    """Vocabulary size: small enough that each token occurs often enough to be learned."""
    limits = ((1_000_000, 2000), (20_000_000, 4000), (100_000_000, 8000))
    return next((size for limit, size in limits if num_characters < limit), 16_000)


def batch_tokens(minutes: float) -> int:
    """Tokens per update: few in short runs, which need many updates; more in long runs, where a
    token then costs less."""
    return 1024 if minutes <= 20 else 2048 if minutes <= 120 else 4096


def tune_default(recipe: Recipe, probe: ProbeResult, fixed: Collection[str]) -> Recipe:
    """Set the settings that depend on the probe, except those in `fixed`."""
    minutes = recipe.train.minutes
    seconds = 60 * (minutes or DEFAULT_MINUTES)
    changes = planned_lengths(recipe, probe, seconds)
    num_epochs = changes["train.steps"] / max(1, probe.epoch_steps)
    changes["model.dropout"] = dropout_for(num_epochs)
    return recipe.with_changes({name: v for name, v in changes.items() if name not in fixed})


def dropout_for(num_epochs: float) -> float:
    return next((rate for limit, rate in EPOCH_DROPOUT if num_epochs <= limit), MAX_DROPOUT)


def fit_to_time(recipe: Recipe, probe: ProbeResult) -> Recipe:
    """Fit a given recipe to train.minutes: scales steps, warmup, evaluations, checkpoints and the
    start of R-Drop."""
    assert recipe.train.minutes is not None, "only a recipe with train.minutes is fitted"
    train = recipe.train
    changes = planned_lengths(recipe, probe, 60 * recipe.train.minutes)
    scale = changes["train.steps"] / train.steps
    changes["train.schedule.warmup"] = min(
        train.schedule.warmup, max(1, round(train.schedule.warmup * scale))
    )
    if train.rdrop_from:
        changes["train.rdrop_from"] = round(train.rdrop_from * scale)
    return recipe.with_changes(changes)


def planned_lengths(recipe: Recipe, probe: ProbeResult, seconds: float) -> dict[str, Any]:
    """Steps, evaluations and checkpoints of a run that takes `seconds` in all."""
    # translations and the loss, as the loss alone is measured
    evaluation = 2 * probe.evaluation_seconds + (2.0 if recipe.train.translate_lines else 0.0)
    left = max(1.0, TARGET * seconds - probe.elapsed - 3 * evaluation)
    num_evaluations = MAX_EVALUATIONS
    if evaluation:
        affordable = int(EVALUATION_SHARE * left / evaluation)
        num_evaluations = max(MIN_EVALUATIONS, min(MAX_EVALUATIONS, affordable))
    training = max(1.0, left - num_evaluations * evaluation)
    return lengths_of(max(1, int(training / probe.step_seconds)), num_evaluations)


def lengths_of(steps: int, num_evaluations: int) -> dict[str, Any]:
    """The settings that are a share of the steps."""
    return {
        "train.steps": steps,
        "train.evaluate_every": max(1, steps // num_evaluations),
        "train.save_every": max(1, min(MIN_SAVE_STEPS, steps // 8), steps // NUM_SAVES),
        "train.schedule.warmup": min(MAX_WARMUP, steps // 20),
    }


def describe_plan(recipe: Recipe, probe: ProbeResult) -> list[str]:
    """Two lines that describe model and plan."""
    model, train = recipe.model, recipe.train
    epochs = train.steps / max(1, probe.epoch_steps)
    minutes = train.minutes or train.steps * probe.step_seconds / 60
    limit = (
        "" if train.patience is None else f", or until {train.patience} evaluations bring no gain"
    )
    return [
        f"model: {probe.num_parameters:,} parameters, width {model.width}, "
        f"{model.num_layers} layers, {recipe.tokenizer.kind} vocabulary, dropout {model.dropout:g}",
        f"plan: {train.steps:,} steps of {train.batch_tokens:,} tokens, {epochs:.1f} epochs, "
        f"{probe.step_seconds:.2f} s a step, about {minutes:.0f} minutes in all{limit}",
    ]


def describe_choice(recipe: Recipe, is_planned: bool) -> str:
    """A line that describes the model, as far as it is known before the files are encoded."""
    model, train, tokenizer = recipe.model, recipe.train, recipe.tokenizer
    length = f"{train.steps:,} steps"
    if is_planned:
        limit = f"{train.minutes:g}" if train.minutes else f"at most about {DEFAULT_MINUTES:g}"
        length = f"a probe of {PROBE_SECONDS:g} s will plan the steps for {limit} minutes"
    return (
        f"width {model.width}, {model.num_layers} layers, {tokenizer.kind} vocabulary of up to "
        f"{tokenizer.vocab_size:,}, {train.batch_tokens:,} tokens a step; {length}"
    )


def describe_changes(before: Recipe, after: Recipe) -> str:
    """'train.steps = 573, train.save_every = 14': the settings that a plan has changed."""
    changes = differing(before.to_dict(), after.to_dict())
    return ", ".join(f"{name} = {value}" for name, value in changes)


def differing(before: Any, after: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """(name, new value) of the leaves that differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            pair
            for name in after
            for pair in differing(before.get(name), after[name], f"{prefix}{name}.")
        ]
    return [] if before == after else [(prefix.rstrip("."), after)]
