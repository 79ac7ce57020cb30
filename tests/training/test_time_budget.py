"""Runs of a given time: the plan of their steps, and a recipe that repeats them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from weft.cli.app import main
from weft.core.errors import ConfigError
from weft.training.data.files import TrainingFiles
from weft.training.default_recipe import (
    CorpusSize,
    default_recipe,
    describe_changes,
    dropout_for,
    fit_to_time,
    lengths_of,
    tune_default,
)
from weft.training.loop import Progress
from weft.training.probe import ProbeResult
from weft.training.recipe import Recipe
from weft.training.run import run_training
from weft.training.run_plan import Invocation
from weft.training.time_budget import TimeBudget, steps_after

from .material import files, recipe


class CountingClock:
    """Every call takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def probe(step_seconds: float = 0.5, **values: Any) -> ProbeResult:
    return replace(ProbeResult(step_seconds, 1.0, 20_000, 100, 1_000_000, 20.0), **values)


def test_the_steps_are_those_of_the_last_plan() -> None:
    replans = [(10, 50), (20, 45)]
    assert [steps_after(step, 60, replans) for step in (0, 9, 10, 19, 20, 44)] == [
        *(60, 60, 50, 50, 45, 45)
    ]


def test_a_plan_leaves_time_for_evaluations_checkpoints_and_the_end() -> None:
    clock = CountingClock(0.0)
    budget = TimeBudget(1000, now=clock)
    assert budget.plan(0, 10, 10, 1) is None, "no step was measured"
    budget.step_seconds.extend([1.0, 3.0])
    assert budget.plan(100, 10, 10, 1) == 100 + 970 // 2
    budget.evaluation_seconds, budget.save_seconds = 20.0, 10.0
    clock.time = 300.0
    # 970 - 300 - (10 + 3 * 20) are left, and a step takes 2 + 20 / 10 + 10 / 10
    assert budget.plan(100, 10, 10, 2) == 100 + 600 // 5


def timed_run(folder: Path, out: Path, **train: Any) -> CountingClock:
    """A run of two minutes by a clock that becomes slower in the middle of the run."""
    clock = CountingClock(0.2)

    def watch(progress: Progress) -> None:
        if progress.step == 40:
            clock.step = 0.3

    invocation = Invocation(began=0.0, now=clock)
    settings = recipe(minutes=2, save_minutes=None, **train)
    run_training(settings, files(folder), out, watch, invocation=invocation)
    return clock


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = (load_file(out / "model.safetensors") for out in (first, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("schedule", ["wsd", "inverse_sqrt"])
def test_a_run_takes_the_given_time_and_its_recipe_repeats_its_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str
) -> None:
    out = tmp_path / "run"
    settings = {"schedule": {"kind": schedule, "warmup": 4}, "patience": None}
    clock = timed_run(tmp_path, out, **settings)
    assert 0.85 * 120 <= clock.time <= 1.05 * 120
    stored = json.loads((out / "recipe.json").read_text())
    assert stored["train"]["minutes"] is None
    assert len(stored["train"]["replans"]) >= 1, "the clock became slower"
    scores = json.loads((out / "scores.json").read_text())
    assert scores["steps"] == stored["train"]["replans"][-1][1]
    assert main(["status", str(out), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["step"] == status["steps"] == scores["steps"]
    again = tmp_path / "again"
    run_training(Recipe.from_dict(stored), files(tmp_path), again)
    assert_same_weights(out, again)
    values = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [v["step"] for v in values if "loss" in v] == list(range(1, scores["steps"] + 1))


def test_a_step_that_another_program_slowed_down_does_not_count(tmp_path: Path) -> None:
    class InterruptedClock(CountingClock):
        """Every seventh call takes half a minute."""

        calls = 0

        def __call__(self) -> float:
            self.calls += 1
            self.time += 30.0 if self.calls % 7 == 0 else 1.0
            return self.time

    seen = list[ProbeResult]()

    def tune(recipe: Recipe, probe: ProbeResult) -> Recipe:
        seen.append(probe)
        return recipe

    clock = InterruptedClock(1.0)
    invocation = Invocation(tuning=tune, began=0.0, now=clock)
    run_training(recipe(), files(tmp_path), tmp_path / "run", invocation=invocation)
    assert [probe.step_seconds for probe in seen] == [1.0]


def test_the_same_command_resumes_a_planned_run(tmp_path: Path) -> None:
    out = tmp_path / "run"

    class StoppedError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.step == 30:
            raise StoppedError

    settings, clock = recipe(minutes=2, save_minutes=None), CountingClock(0.25)
    with pytest.raises(StoppedError):
        invocation = Invocation(began=0.0, now=clock)
        run_training(settings, files(tmp_path), out, stop, invocation=invocation)
    used = json.loads(max((out / "checkpoints").glob("*/state.json")).read_text())["elapsed"]
    assert 0 < used < clock.time
    later = CountingClock(0.25)
    run_training(settings, files(tmp_path), out, invocation=Invocation(began=0.0, now=later))
    assert 0.85 * 120 <= used + later.time <= 1.05 * 120
    saved = json.loads((out / "run.json").read_text())
    assert saved["requested"]["train"]["steps"] == 12 != saved["recipe"]["train"]["steps"]
    assert "recipe.json" in (out / "README.md").read_text()


def test_a_run_of_some_time_goes_on_to_the_steps_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And recipe.json repeats the bits of both parts."""
    out, again = tmp_path / "run", tmp_path / "again"
    timed_run(tmp_path, out, schedule={"kind": "wsd", "warmup": 4})
    steps = json.loads((out / "scores.json").read_text())["steps"]
    assert main(["train", "--out", str(out), "--set", f"train.steps={steps + 20}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == steps + 20
    stored = json.loads((out / "recipe.json").read_text())
    assert stored["train"]["replans"][-1] == [steps, steps + 20]
    run_training(Recipe.from_dict(stored), files(tmp_path), again)
    assert_same_weights(out, again)
    assert main(["train", "--out", str(again), "--set", f"train.steps={steps + 21}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == steps + 21


@pytest.mark.parametrize("minutes", [2, None])
def test_a_finished_run_goes_on_for_the_time_that_it_is_given(
    tmp_path: Path, minutes: float | None
) -> None:
    """The time is that of the whole run."""
    out, used, before = tmp_path / "run", 0.0, 12
    if minutes is None:
        run_training(recipe(save_minutes=None), files(tmp_path), out)
    else:
        used = timed_run(tmp_path, out).time
        before = json.loads((out / "scores.json").read_text())["steps"]
    stored = Recipe.from_dict(json.loads((out / "run.json").read_text())["recipe"])
    longer, clock = stored.with_changes({"train.minutes": 4.0}), CountingClock(0.25)
    invocation = Invocation(began=0.0, now=clock)
    scores = run_training(longer, files(tmp_path), out, invocation=invocation)
    assert scores["steps"] > before
    assert 0.85 * 240 <= used + clock.time <= 1.05 * 240
    again = run_training(longer, files(tmp_path), out, invocation=Invocation(now=clock))
    assert again == scores


def test_a_run_whose_plan_grew_accepts_other_changes(tmp_path: Path) -> None:
    """The steps of its first plan are fewer than those that it has done."""
    out = tmp_path / "run"
    clock = CountingClock(0.5)

    def watch(progress: Progress) -> None:
        clock.step = 0.2

    invocation = Invocation(began=0.0, now=clock)
    run_training(recipe(minutes=2, save_minutes=None), files(tmp_path), out, watch,
                 invocation=invocation)  # fmt: skip
    stored = Recipe.from_dict(json.loads((out / "run.json").read_text())["recipe"])
    scores = json.loads((out / "scores.json").read_text())
    assert scores["steps"] > stored.train.steps
    later = run_training(stored.with_changes({"train.average": 3}), files(tmp_path), out,
                         invocation=Invocation(began=0.0, now=clock))  # fmt: skip
    assert later["steps"] == scores["steps"] and later["changes"] == 1


def test_a_recipe_is_fitted_to_the_time_in_all_its_lengths() -> None:
    long = Recipe.from_dict(
        {"train": {"steps": 4300, "minutes": 10, "rdrop": 3.0, "rdrop_from": 3400,
                   "schedule": {"kind": "wsd", "warmup": 2000}}}
    )  # fmt: skip
    planned = fit_to_time(long, probe(1.0)).train
    assert 450 < planned.steps < 580
    scale = planned.steps / 4300
    assert planned.schedule.warmup == pytest.approx(2000 * scale, abs=1)
    assert planned.rdrop_from == pytest.approx(3400 * scale, abs=1)
    assert planned.save_every * 20 < planned.steps and planned.evaluate_every < planned.steps
    assert not list(planned.contradictions())
    changes = describe_changes(long, fit_to_time(long, probe(1.0)))
    assert f"train.steps = {planned.steps}, " in changes
    assert "train.schedule.warmup = " in changes and "model" not in changes


@pytest.mark.parametrize(("steps", "save_every"), [(4, 1), (40, 5), (81, 10), (4000, 100)])
def test_checkpoints_are_some_steps_apart(steps: int, save_every: int) -> None:
    assert lengths_of(steps, 20)["train.save_every"] == save_every


def test_the_default_recipe_follows_the_corpus_and_the_settings_win() -> None:
    pairs = TrainingFiles("translate", (Path("a"), Path("b")))
    small = default_recipe(CorpusSize(3_000, 100_000), pairs, 10)
    large = default_recipe(CorpusSize(2_000_000, 90_000_000), pairs, 600)
    for section, name in (
        ("model", "width"),
        ("tokenizer", "vocab_size"),
        ("train", "batch_tokens"),
    ):
        assert small[section][name] < large[section][name]
    assert 0 < large["train"]["valid_share"] < small["train"]["valid_share"] <= 0.05
    settings = Recipe.from_dict(small)
    planned = tune_default(settings, probe(), frozenset())
    assert planned.train.steps * 0.5 == pytest.approx(0.95 * 3600, rel=0.1)
    assert not list(planned.contradictions())
    kept = tune_default(settings, probe(), {"model.dropout", "train.save_every"})
    assert kept.model.dropout == settings.model.dropout
    assert kept.train.save_every == settings.train.save_every
    assert kept.train.steps == planned.train.steps


def test_a_model_that_sees_its_lines_often_has_more_dropout() -> None:
    assert [dropout_for(epochs) for epochs in (3, 15, 90)] == [0.1, 0.2, 0.3]
    pairs = TrainingFiles("translate", (Path("a"), Path("b")))
    settings = Recipe.from_dict(default_recipe(CorpusSize(30_000, 2_000_000), pairs, 10))
    tune = partial(tune_default, settings, fixed=())
    assert tune(probe(0.1)).model.dropout > tune(probe(10.0)).model.dropout


def test_plans_that_cannot_be_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match="plans: those of an earlier run"):
        recipe(minutes=5, replans=[[4, 20]])
    with pytest.raises(ConfigError, match="no plan has fewer steps than were done"):
        recipe(replans=[[8, 20], [4, 30]])
    with pytest.raises(ConfigError, match="no plan has fewer steps than were done"):
        recipe(replans=[[8, 7]])
    assert recipe(replans=[[8, 8]]).train.replans == ((8, 8),), "it ends there"
    with pytest.raises(ConfigError, match="minutes"):
        recipe(minutes=1)
