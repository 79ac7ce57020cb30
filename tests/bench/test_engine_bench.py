"""`weft bench engine`: what a workload asks for, rows and ratios of a tiny model, the scheduler
alone, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.shapes import GPT2, own_cache
from tests.engine.tiny import tiny_folder
from weft.bench import plots, scheduling
from weft.bench.comparison import Goal, check_goals
from weft.bench.engine import GOALS, NAMES, WORKLOADS, EngineBench, measure
from weft.bench.peers.systems import INT8, WEFT, WITHOUT_CACHE, model_in_format
from weft.bench.peers.transformers import System as Transformers
from weft.bench.peers.weft import System as Weft
from weft.core.errors import ConfigError, UsageError


def test_prompts_share_their_beginning_and_every_round_has_new_ones() -> None:
    shared = WORKLOADS["shared"]
    first, again, other = (shared.prompts(49152, seed) for seed in (1, 1, 2))
    assert first == again and len(first) == 32 and {len(prompt) for prompt in first} == {676}
    assert len({tuple(prompt[:660]) for prompt in first}) == 1
    assert len({tuple(prompt[660:]) for prompt in first}) == 32
    assert first[0][:660] != other[0][:660]
    assert min(map(min, first)) >= 100, "special tokens lie below"
    assert shared.num_counted == 32 * 64 and WORKLOADS["prefill"].num_counted == 1024


def test_a_smaller_scale_keeps_a_token_of_each_part() -> None:
    small = WORKLOADS["shared"].scaled(0.01)
    assert (small.shared_len, small.own_len, small.new_tokens) == (7, 1, 1)
    assert WORKLOADS["decode"].scaled(0.5).shared_len == 0


def test_who_takes_part() -> None:
    plan = EngineBench("m", ["decode", "shared"])
    assert plan.system_names() == [WEFT, INT8, "llama.cpp", "vllm", "transformers"]
    assert EngineBench("m", ["shared"]).system_names() == [WEFT, INT8, "vllm", "transformers"]
    assert EngineBench("m", ["distinct"]).system_names() == [WEFT, WITHOUT_CACHE]
    assert EngineBench("m", ["decode"], ["vllm"]).system_names() == [WEFT, "vllm"], "Weft always"


def test_a_tiny_model_through_every_workload(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64)
    said: list[str] = []
    plan = EngineBench(str(folder), ["decode", "prefill", "shared", "distinct"], [WEFT, "vllm"],
                tmp_path / "none", repeats=1, threads=1, scale=0.05)  # fmt: skip
    result = measure(plan, said.append)
    rows = {(row["workload"], row["system"]): row for row in result["rows"]}
    assert list(rows) == [
        ("decode", WEFT),
        ("prefill", WEFT),
        ("shared", WEFT),
        ("distinct", WEFT),
        ("distinct", WITHOUT_CACHE),
    ]
    for name, tokens in (("decode", 6), ("prefill", 51), ("shared", 32 * 3), ("distinct", 32 * 2)):
        row = rows[name, WEFT]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"])
    assert len(rows["distinct", WEFT]["rounds"]) == 3 and len(rows["decode", WEFT]["rounds"]) == 1
    assert rows["distinct", WITHOUT_CACHE]["same_as_weft"] == 1.0
    assert list(result["ratios"]) == [f"distinct: weft/{WITHOUT_CACHE}"]
    assert [goal["goal"] for goal in result["goals"]] == list(result["ratios"])
    assert result["machine"]["threads"] == 1 and WEFT in result["machine"]["versions"]
    assert sum("vllm is not installed" in line for line in said) == 1


def test_transformers_writes_what_weft_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer's own file, on the folder that it would be given."""
    own_cache(tmp_path / "cache", monkeypatch)
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64, **GPT2)
    theirs = Transformers(str(model_in_format(folder, "hf", print)), 1, 64)
    prompts = WORKLOADS["shared"].scaled(0.03).prompts(300, 0)
    expected = Weft(str(folder), 1, 64).generate(prompts, 6)
    assert theirs.generate(prompts, 6) == expected
    assert {len(output) for output in expected} == {6}


def test_the_scheduler_alone_reaches_its_goals() -> None:
    """Hit rates and memory are the same on every machine; milliseconds are only bounded."""
    rows = [*scheduling.tree(1), *scheduling.mixed(1, 150), *scheduling.waiting(1)]
    ratios = scheduling.ratios(rows)
    assert 0.5 < rows[0]["hit_rate"] <= rows[0]["optimal_hit_rate"] < 1
    assert ratios["tree: hits/optimal order's"] >= 0.95
    assert ratios["mixed: rows with tokens/rows held"] >= 0.96
    assert rows[1]["system"] == WITHOUT_CACHE and rows[1]["row_share"] < rows[2]["row_share"] <= 1
    assert 0 < ratios["waiting: milliseconds a plan"] < 50
    columns, cells = plots.system_table(rows)
    assert "optimal hit rate" in columns and [row[3] for row in cells][-1].endswith("per plan")


def test_goals_are_met_from_one_side() -> None:
    goals = [Goal("speed", 1.2), Goal("cost", 1.0, is_maximum=True), Goal("unmeasured", 1.0)]
    assert [one["is_met"] for one in check_goals(goals, {"speed": 1.2, "cost": 1.1})] == [
        True,
        False,
    ]
    assert [one["is_met"] for one in check_goals(goals, {"speed": 1.1, "cost": 1.0})] == [
        False,
        True,
    ]
    assert {goal.name.partition(":")[0] for goal in GOALS} == set(NAMES)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "model", "decoder", max_len=64))
    with pytest.raises(
        UsageError, match=r"has 1025 tokens, but max_len of .* is 64. Use --scale 0.06"
    ):
        measure(EngineBench(folder, ["prefill"]), print)
    with pytest.raises(ConfigError, match="'decoed' is not a known workload. Did you mean"):
        measure(EngineBench(folder, ["decoed"]), print)
    with pytest.raises(ConfigError, match="'lama' is not a known system"):
        measure(EngineBench(folder, ["tree"], ["lama"]), print)
    pair = str(tiny_folder(tmp_path / "pair"))
    with pytest.raises(UsageError, match="of kind encoder-decoder: bench engine needs a decoder"):
        measure(EngineBench(pair, ["decode"]), print)
