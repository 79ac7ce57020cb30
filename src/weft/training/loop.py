"""The training loop: updates, checkpoints and evaluations until the last step or an early stop.

    batch -> loss -> gradients -> clipping -> optimizer step    every step
    checkpoint                                                  every save_every steps, before
                                                                each evaluation, and by time
    new plan of the steps that are left                         with each checkpoint of save_every
                                                                steps, if the run has train.minutes
    evaluation on the validation data                           every evaluate_every steps

A checkpoint is saved before the evaluation of the same step, and an evaluation that a kill cut off
is repeated on resume, so that the result of a run does not depend on where it was stopped. The last
step is evaluated too; a run that is extended beyond it continues from the state before that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from weft.checkpoint.run_selection import EVALUATION
from weft.checkpoint.tensor_source import unique_state
from weft.core.errors import WeftError
from weft.models.build import AnyModel
from weft.native.contention import contention
from weft.training.checkpointing import (
    RunCheckpoints,
    RunSnapshot,
    RunState,
    non_finite_name,
    optimizer_tensors,
    restore_optimizers,
)
from weft.training.distributed import DistributedContext, LossFunction, copy_full, full_tensor
from weft.training.loss import LossConfig
from weft.training.metrics_log import MetricsLog
from weft.training.objective import Batch
from weft.training.optimizer import build_optimizers, lr_factor
from weft.training.recipe import TrainConfig
from weft.training.signals import StopRequest
from weft.training.time_budget import TimeBudget, is_worth_it, steps_after


class Data(Protocol):
    """A corpus. Its batches are a pure function of its config, its seed and the epoch."""

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch as row numbers, over all processes."""

    def load(self, epoch: int, rows: list[int]) -> Batch:
        """The rows of a batch that belong to this process; `empty_batch` if none does."""

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        """Number of target tokens of a batch, over all processes."""


class NonFiniteLossError(WeftError):
    """The loss or a weight became NaN or infinite. Such weights are not saved."""


@dataclass(frozen=True)
class Progress:
    """Reported after every step, and after every evaluation."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens_per_second: float
    seconds_left: float
    scores: dict[str, float] = field(default_factory=dict)
    """Validation scores; empty in the report of a step."""


ProgressCallback = Callable[[Progress], None]
ScoreTranslations = Callable[[AnyModel], dict[str, float]]
"""Translates validation lines with a model and scores them: {"bleu": ..., "chrf": ...}."""


class Trainer:
    """One run, in one of its processes."""

    def __init__(
        self,
        model: AnyModel,
        config: TrainConfig,
        data: Data,
        valid: Data | None,
        checkpoints: RunCheckpoints,
        metrics: MetricsLog,
        score_translations: ScoreTranslations | None = None,
        distributed: DistributedContext | None = None,
        now: Callable[[], float] = time.perf_counter,
        budget: TimeBudget | None = None,
    ) -> None:
        """`budget`: time budget of a run with train.minutes; None: train.steps counts."""
        self.budget = budget
        self.model, self.config, self.data, self.valid = model, config, data, valid
        self.checkpoints, self.metrics, self.now = checkpoints, metrics, now
        self.score_translations = score_translations
        self.distributed = distributed or DistributedContext()
        self.loss_function = self.distributed.wrap(model, config.shard)
        self.optimizers = build_optimizers(model, config.optimiser)
        self.state = RunState()
        self.last_save = now()

    def run(self, watch: ProgressCallback, stop: StopRequest) -> RunState:
        """Train to the end. On a stop request, save a checkpoint and raise StoppedBySignal."""
        self.model.train()
        self.evaluate_if_due(watch)  # on resume: the evaluation that a kill cut off
        for batches in self.updates():
            begin = self.now()
            loss, num_tokens = self.train_step(batches)
            seconds = self.now() - begin
            contention().update()
            self.state.seconds += seconds
            self.state.tokens += num_tokens
            if self.budget is not None:
                self.budget.step_seconds.append(seconds)
            self.report(loss, num_tokens / max(1e-9, seconds), watch)
            is_stopping = self.save_if_due(stop)
            if is_stopping:
                stop.raise_stopped()
            self.evaluate_if_due(watch)
        self.save()
        return self.state

    def save_if_due(self, stop: StopRequest) -> bool:
        """Save a checkpoint if one is due by step, time or stop request. Returns whether any
        process has a stop request. Collective."""
        minutes = self.config.save_minutes
        is_time = minutes is not None and self.now() - self.last_save >= 60 * minutes
        is_regular = self.state.step % self.config.save_every == 0
        if is_regular and not self.is_finished:
            self.plan_steps()
        if is_regular or self.is_finished or self.is_evaluation_due:
            self.save()
            is_time = False
        if not self.distributed.any(stop.is_set or is_time):
            return False
        self.save()
        return self.distributed.any(stop.is_set)

    def plan_steps(self) -> None:
        """Update the total number of steps of a run with a time budget. Collective."""
        if self.budget is None:
            return
        config, step = self.config, self.state.step
        num_candidates = 2 if config.average > 1 and self.valid is not None else 1
        planned = self.budget.plan(step, config.evaluate_every, config.save_every, num_candidates)
        # all processes train the same number of steps
        planned = int(self.distributed.sum(self.distributed.is_rank_zero * (planned or 0)))
        if planned and is_worth_it(step, self.num_steps, planned):
            self.set_steps(planned)

    def set_steps(self, num_steps: int) -> None:
        """Plan how many steps the run has in all, from the current step on."""
        plans = [plan for plan in self.state.replans if plan[0] < self.state.step]
        self.state.replans = [*plans, (self.state.step, num_steps)]

    @property
    def num_steps(self) -> int:
        """Total number of steps of the run, by its last plan."""
        return self.steps_planned_at(self.state.step)

    def steps_planned_at(self, step: int) -> int:
        """Total number of steps of the run, by the plans made up to `step`."""
        return steps_after(step, self.config.steps, [*self.config.replans, *self.state.replans])

    @property
    def is_finished(self) -> bool:
        return self.state.step >= self.num_steps or self.state.is_stopped

    def updates(self) -> Iterator[list[list[int]]]:
        """The batches of each update (`accumulate` of them), as row numbers. Advances step, epoch
        and index of the state."""
        state, accumulate = self.state, self.config.accumulate
        while True:
            plan = self.data.plan(state.epoch)
            while state.index < len(plan) and not self.is_finished:
                batches = plan[state.index : state.index + accumulate]
                state.index += len(batches)
                state.step += 1
                yield batches
            if state.index >= len(plan):
                # also in a finished run that was killed between the last step and this line
                state.epoch, state.index = state.epoch + 1, 0
            if self.is_finished:
                return

    def train_step(self, batches: Sequence[list[int]]) -> tuple[float, int]:
        """One update of the weights: (mean loss per token, target tokens), over all processes."""
        loss_config = self.loss_config()
        num_tokens = sum(self.data.count_targets(self.state.epoch, rows) for rows in batches)
        num_losses = num_tokens * (2 if loss_config.rdrop else 1)
        mean_loss = 0.0
        for part, rows in enumerate(batches):
            seed_random(self.config.seed, self.state.step, part, self.distributed.rank)
            batch = self.data.load(self.state.epoch, rows).to(self.distributed.device)
            loss = self.loss_function(batch, loss_config) / num_losses
            # DDP and FSDP average gradients over processes; the sum is wanted
            (loss * self.distributed.world_size).backward()
            mean_loss += loss.item()
        mean_loss = self.distributed.sum(mean_loss)
        if not math.isfinite(mean_loss):
            raise self.non_finite_loss(mean_loss)
        if self.config.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimiser.clip)
        lr = self.learning_rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return mean_loss, num_tokens

    def loss_config(self) -> LossConfig:
        """The loss of the current step."""
        has_rdrop = self.state.step > self.config.rdrop_from
        return LossConfig(self.config.label_smoothing, self.config.rdrop if has_rdrop else 0.0)

    def learning_rate(self) -> float:
        """The learning rate of the current step."""
        config = self.config
        num_steps = self.steps_planned_at(self.state.step - 1)
        return config.optimiser.lr * lr_factor(self.state.step, num_steps, config.schedule)

    def non_finite_loss(self, loss: float) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"the loss of step {self.state.step} is {loss}: the loss is not finite. "
            f"{self.checkpoints.describe_finite()} Use a lower train.optimiser.lr, a longer "
            "train.schedule.warmup or a lower train.optimiser.clip."
        )

    def check_finite(self, weights: Mapping[str, Tensor]) -> None:
        """Raise a NonFiniteLossError for weights with NaN or infinity, which must not replace
        earlier ones."""
        name = non_finite_name(weights)
        if name is not None:
            raise NonFiniteLossError(
                f"the weights after step {self.state.step} are not finite: {name} contains NaN or "
                f"infinity. They are not saved. {self.checkpoints.describe_finite()} Use a lower "
                "train.optimiser.lr, a longer train.schedule.warmup or a lower "
                "train.optimiser.clip."
            )

    def report(self, loss: float, tokens_per_second: float, watch: ProgressCallback) -> None:
        """Log the metrics of a step and report progress; rank 0 only."""
        if not self.distributed.is_rank_zero:
            return
        state, num_steps, lr = self.state, self.num_steps, self.learning_rate()
        values = {"loss": loss, "lr": lr, "tokens_per_second": tokens_per_second}
        self.metrics.append(state.step, values)
        seconds_left = state.seconds / state.step * (num_steps - state.step)
        watch(Progress(state.step, num_steps, loss, lr, tokens_per_second, seconds_left))

    def evaluate_if_due(self, watch: ProgressCallback) -> None:
        """Evaluate on the validation data if an evaluation of this step is due."""
        state, config = self.state, self.config
        if not self.is_evaluation_due:
            return
        begin = self.now()
        scores = self.evaluate(self.model, self.loss_function)
        if self.budget is not None:
            self.budget.evaluation_seconds = self.now() - begin
        state.record_evaluation(scores[config.best_by], config.best_by, config.patience)
        if self.distributed.is_rank_zero:
            values = {f"{EVALUATION}{name}": value for name, value in scores.items()}
            self.metrics.append(state.step, values)
            watch(Progress(state.step, self.num_steps, math.nan, 0.0, 0.0, 0.0, scores))

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the current step has to be evaluated and was not evaluated yet."""
        step, config = self.state.step, self.config
        is_due = step % config.evaluate_every == 0 or step == self.num_steps
        return self.valid is not None and is_due and 0 < step != self.state.evaluated

    def evaluate(self, model: AnyModel, loss_function: LossFunction) -> dict[str, float]:
        """The validation scores of a model. Those of translations are in rank 0 only, except the
        one that checkpoints are compared by. Collective."""
        assert self.valid is not None, "only a run with validation data is evaluated"
        scores = validate(model, loss_function, self.valid, self.distributed)
        if self.score_translations is not None and not self.config.shard:
            metric, translated = self.config.best_by, dict[str, float]()
            if self.distributed.is_rank_zero:
                translated = self.score_translations(model)
            if metric != "loss":
                translated[metric] = self.distributed.sum(translated.get(metric, 0.0))
            scores |= translated
        return scores

    def save(self) -> None:
        """Save a checkpoint of the current step. Collective."""
        begin = self.now()
        if self.budget is not None:
            self.state.elapsed = self.budget.elapsed
        snapshot = RunSnapshot(self.weights(), optimizer_tensors(self.optimizers), self.state)
        self.distributed.on_rank_zero(lambda: self.save_snapshot(snapshot))
        self.last_save = self.now()
        if self.budget is not None:
            self.budget.save_seconds = self.last_save - begin

    def save_snapshot(self, snapshot: RunSnapshot) -> None:
        """Write a checkpoint, after the metrics of its steps; rank 0 only."""
        self.check_finite(snapshot.weights)
        self.metrics.sync()
        self.checkpoints.save(snapshot)

    def weights(self) -> dict[str, Tensor]:
        """A copy of all weights on the CPU, gathered if they are sharded. Collective."""
        return {name: full_tensor(t).cpu().clone() for name, t in unique_state(self.model).items()}

    def resume(self) -> bool:
        """Load the newest checkpoint; False if there is none. The metrics continue after it."""
        snapshot = self.checkpoints.load()
        if snapshot is not None:
            with torch.no_grad():
                for name, tensor in unique_state(self.model).items():
                    copy_full(tensor, snapshot.weights[name])
            restore_optimizers(self.optimizers, snapshot.optimizer)
            self.state = snapshot.state
        state, config = self.state, self.config
        is_loss = config.best_by == "loss"
        state.compare_by("loss" if is_loss else f"{config.best_by} of {config.translate_lines}")
        if self.budget is not None:
            self.budget.used_before = state.elapsed or state.seconds  # without a time before
        self.distributed.on_rank_zero(lambda: self.metrics.start(state.step, state.evaluated))
        return snapshot is not None


@torch.no_grad()
def validate(
    model: AnyModel, loss_function: LossFunction, data: Data, distributed: DistributedContext
) -> dict[str, float]:
    """Mean loss per token without label smoothing, and perplexity. Keeps the mode of the model."""
    was_training = model.training
    model.eval()
    total, num_tokens = 0.0, 0
    for rows in data.plan(0):
        total += loss_function(data.load(0, rows).to(distributed.device), LossConfig()).item()
        num_tokens += data.count_targets(0, rows)
    model.train(was_training)
    loss = distributed.sum(total) / num_tokens
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def seed_random(seed: int, step: int, part: int = 0, rank: int = 0) -> None:
    """Seed torch for one batch of one update in one process."""
    mixed = np.random.SeedSequence([seed, step, part, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
