"""The run: updates, checkpoints, evaluations, until the last step or the end of patience.

    batch -> loss -> gradients -> clipped -> new weights        once a step
    checkpoint                                                  every save_every steps
    evaluation                                                  every evaluate_every steps, after it

Saving comes before evaluating, and an evaluation that a kill cut off is done again, so that what a
run decides does not depend on where it was stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.checkpoint.weft_folder import unique_state
from weft.core.errors import WeftError
from weft.models.build import Model
from weft.training.data.base import Data
from weft.training.evaluate import Translate, validate
from weft.training.loss import LossRule
from weft.training.metrics import Metrics
from weft.training.optimiser import build_optimisers
from weft.training.processes import Processes, copy_whole, whole
from weft.training.resume import Checkpoints, Snapshot, optimiser_tensors, restore_optimisers
from weft.training.schedule import rate_factor
from weft.training.settings import TrainConfig
from weft.training.signals import StopRequest
from weft.training.state import RunState, seed_step


class NotANumberError(WeftError):
    """The loss left the numbers; the last checkpoint is from before that."""


@dataclass(frozen=True)
class Progress:
    """What is told after every step."""

    step: int
    steps: int
    loss: float
    rate: float
    tokens_per_second: float
    seconds_left: float
    scores: dict[str, float] = field(default_factory=dict)
    """Validation, after the steps that have one."""


Watch = Callable[[Progress], None]


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        data: Data,
        valid: Data | None,
        checkpoints: Checkpoints,
        metrics: Metrics,
        translate: Translate | None = None,
        processes: Processes | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.config, self.data, self.valid = model, config, data, valid
        self.processes = processes or Processes()
        self.loss_of = self.processes.spread(model, config.shard)
        self.checkpoints, self.metrics, self.translate, self.now = (
            checkpoints,
            metrics,
            translate,
            now,
        )
        self.optimisers = build_optimisers(model, config.optimiser)
        self.state = RunState()

    def resume(self) -> bool:
        """Take up the newest checkpoint; False where there is none."""
        snapshot = self.checkpoints.load()
        if snapshot is None:
            return False
        with torch.no_grad():
            for name, tensor in unique_state(self.model).items():
                copy_whole(tensor, snapshot.weights[name])
        restore_optimisers(self.optimisers, snapshot.optimiser)
        self.state = snapshot.state
        self.processes.first_does(lambda: self.metrics.cut_after(self.state.step))
        return True

    def weights(self) -> dict[str, Tensor]:
        """A copy of all weights, put together where they lie in parts; every process must ask."""
        return {name: whole(t).cpu().clone() for name, t in unique_state(self.model).items()}

    def save(self) -> None:
        snapshot = Snapshot(self.weights(), optimiser_tensors(self.optimisers), self.state)
        self.processes.first_does(lambda: self.checkpoints.save(snapshot))

    def run(self, watch: Watch, stop: StopRequest) -> RunState:
        """Train to the end. A stop request saves first and then raises."""
        self.model.train()
        self.evaluate_if_due(watch)
        for batches in self.updates():
            begin = self.now()
            loss, tokens = self.update(batches)
            self.state.seconds += self.now() - begin
            self.state.tokens += tokens
            self.report(loss, tokens / max(1e-9, self.now() - begin), watch)
            if self.state.step % self.config.save_every == 0 or self.is_over:
                self.save()
            if self.processes.any(stop.is_asked):
                self.save()
                stop.leave()
            self.evaluate_if_due(watch)
        self.save()
        return self.state

    @property
    def is_over(self) -> bool:
        return self.state.step >= self.config.steps or self.state.is_stopped

    def updates(self) -> Iterator[list[list[int]]]:
        """The batches of each update, from where the run stands; counts epochs and batches."""
        state, parts = self.state, self.config.accumulate
        while not self.is_over:
            plan = self.data.plan(state.epoch)
            while state.index < len(plan) and not self.is_over:
                chosen = plan[state.index : state.index + parts]
                state.index += len(chosen)
                state.step += 1
                yield chosen
            if state.index >= len(plan):
                state.epoch, state.index = state.epoch + 1, 0

    @property
    def rule(self) -> LossRule:
        """The loss of the step that is under way."""
        config = self.config
        is_agreed = self.state.step > config.rdrop_from
        return LossRule(config.label_smoothing, config.rdrop if is_agreed else 0.0)

    def update(self, batches: Sequence[list[int]]) -> tuple[float, int]:
        """One step: (mean loss of a token, tokens)."""
        config, state, epoch, rule = self.config, self.state, self.state.epoch, self.rule
        tokens = sum(self.data.count_targets(epoch, rows) for rows in batches)
        total = 0.0
        for part, rows in enumerate(batches):
            seed_step(config.seed, state.step, part, self.processes.rank)
            batch = self.data.load(epoch, rows).to(self.processes.device)
            loss = self.loss_of(batch, rule) / (tokens * (2 if rule.rdrop else 1))
            (loss * self.processes.world).backward()  # the exchange divides by it
            total += loss.item()
        total = self.processes.sum(total)
        if not math.isfinite(total):
            raise self.not_a_number(total)
        self.step_weights()
        return total, tokens

    def step_weights(self) -> None:
        """Clip the gradients, set the learning rate of this step, and move."""
        config = self.config
        if config.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.optimiser.clip)
        rate = config.optimiser.lr * rate_factor(self.state.step, config.steps, config.schedule)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def not_a_number(self, loss: float) -> NotANumberError:
        step, steps = self.state.step, self.checkpoints.steps()
        left = (
            f"the checkpoint of step {steps[-1]} is untouched" if steps else "nothing was saved yet"
        )
        return NotANumberError(
            f"the loss of step {step} is {loss}: training has come apart, and {left}. Use a lower "
            "train.optimiser.lr, a longer train.schedule.warmup or a lower train.optimiser.clip."
        )

    def report(self, loss: float, speed: float, watch: Watch) -> None:
        """Write the step down and tell whoever watches."""
        config, state = self.config, self.state
        rate = config.optimiser.lr * rate_factor(state.step, config.steps, config.schedule)
        left = state.seconds / state.step * (config.steps - state.step)
        if not self.processes.is_first:
            return
        self.metrics.write(state.step, {"loss": loss, "lr": rate, "tokens_per_second": speed})
        watch(Progress(state.step, config.steps, loss, rate, speed, left))

    def evaluate_if_due(self, watch: Watch) -> None:
        """Look at the validation data where this step asks for it and it was not done yet."""
        state, config = self.state, self.config
        is_due = state.step % config.evaluate_every == 0 or state.step == config.steps
        if self.valid is None or not is_due or state.evaluated == state.step or state.step == 0:
            return
        scores = validate(self.model, self.loss_of, self.valid, self.processes)
        state.judge(scores["loss"], config.patience)
        if not self.processes.is_first:
            return
        if self.translate is not None and not config.shard:
            scores |= self.translate(self.model)
        self.metrics.write(state.step, {f"valid_{name}": value for name, value in scores.items()})
        watch(Progress(state.step, config.steps, math.nan, 0.0, 0.0, 0.0, scores))
