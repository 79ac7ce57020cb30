"""The weights that a run delivers: those of its best checkpoint, or the mean of its last ones.

    best checkpoint           the step of the best evaluation, by train.best_by
    mean of the last ones     train.average regular checkpoints (checkpointing.py)

When the run ends, both are scored on the validation data and the better one is delivered; in a tie,
the checkpoint. Without validation data the mean is delivered, which is the last checkpoint if
train.average is 1. scores.json has both scores.

Runs that were started by an earlier version deliver the mean, as that version did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.checkpoint.run_files import read_run
from weft.checkpoint.run_selection import Metric, is_better
from weft.checkpoint.weft_folder import copy_state
from weft.models.build import AnyModel, build_model
from weft.training.loop import Trainer
from weft.training.objective import batch_loss


@dataclass(frozen=True)
class Candidate:
    """The mean of the weights of some checkpoints, and its validation scores."""

    steps: tuple[int, ...]
    scores: dict[str, float] = field(default_factory=dict)

    def to_dict(self, metric: Metric) -> dict[str, Any]:
        score = {str(metric): self.scores[metric]} if self.scores else {}
        return {"steps": list(self.steps), **score}


@dataclass(frozen=True)
class Delivery:
    """The model of a run, and what it was chosen from."""

    model: AnyModel
    chosen: Candidate
    others: tuple[Candidate, ...] = ()

    def to_dict(self, metric: Metric) -> dict[str, Any]:
        """For scores.json."""
        others = [other.to_dict(metric) for other in self.others]
        return {"by": metric, **self.chosen.to_dict(metric), "others": others}


def describe_delivery(delivered: Mapping[str, Any]) -> str:
    """'the model is that of step 400 (loss 0.256); the mean of steps 300 and 400 has loss 0.444',
    from the values in scores.json."""
    metric = delivered["by"]

    def name(candidate: Mapping[str, Any], verb: str) -> str:
        *others, last = map(str, candidate["steps"])
        steps = f"the mean of steps {', '.join(others)} and {last}" if others else f"step {last}"
        score = f"{metric} {candidate[metric]:.4g}" if metric in candidate else ""
        return steps + (verb.format(score) if score else "")

    others = [name(other, " has {}") for other in delivered["others"]]
    return "; ".join([f"the model is that of {name(delivered, ' ({})')}", *others])


def choose_weights(trainer: Trainer, candidates: Sequence[tuple[int, ...]]) -> Delivery:
    """The best of some candidates: the checkpoints whose weights are averaged. Collective."""
    metric, checkpoints = trainer.config.best_by, trainer.checkpoints
    model = build_model(trainer.model.config).to(trainer.distributed.device)
    measured, loaded = list[Candidate](), None
    for steps in candidates:
        weights = checkpoints.mean_weights(steps)
        trainer.check_finite(weights)
        copy_state(weights, model, checkpoints.folder.parent)
        loaded = steps
        scores = {}
        if trainer.valid is not None:
            scores = trainer.evaluate(model, partial(batch_loss, model))
        measured.append(Candidate(steps, scores))
    chosen = measured[0]
    for other in measured[1:]:
        if is_better(other.scores[metric], chosen.scores[metric], metric):
            chosen = other
    if loaded != chosen.steps:
        copy_state(checkpoints.mean_weights(chosen.steps), model, checkpoints.folder.parent)
    return Delivery(model, chosen, tuple(each for each in measured if each is not chosen))


def delivery_candidates(trainer: Trainer) -> list[tuple[int, ...]]:
    """What `choose_weights` compares at the end of a run."""
    state, checkpoints = trainer.state, trainer.checkpoints
    mean = tuple(checkpoints.kept_averaged_steps(state.step))
    best = (state.best_step,)
    is_kept = checkpoints.path(state.best_step).is_dir()
    if trainer.valid is None or not is_kept or is_of_earlier_version(trainer):
        return [mean]
    return [best, mean] if trainer.config.average > 1 and mean != best else [best]


def is_of_earlier_version(trainer: Trainer) -> bool:
    """Whether the run was started by a version that always delivered the mean."""
    recipe = read_run(trainer.checkpoints.folder.parent)["recipe"]
    return "best_by" not in recipe.get("train", {})
