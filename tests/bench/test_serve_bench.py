"""`weft bench serve`: what a workload asks for, the numbers of a round, and a tiny model served by
Weft under load from the generator that needs no peers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_folder
from weft.bench import plots
from weft.bench.peers import servers
from weft.bench.peers.servers import ServerLimits, ServerStart, llama_command, quantized
from weft.bench.peers.systems import INT8, WEFT, PeerError
from weft.bench.serve import (
    GOALS,
    WORKLOADS,
    LoadResult,
    ServeBench,
    halves_of,
    measure,
    percentile,
    ratios_of,
)
from weft.cli.app import main
from weft.core.errors import ConfigError, UsageError


def test_prompts_are_new_in_each_round_and_share_what_they_should() -> None:
    ids = range(100, 5000)
    first, again, other = (WORKLOADS["prefixes"].prompts(ids, seed) for seed in (1, 1, 2))
    assert first == again and len(first) == 32 and {len(prompt) for prompt in first} == {544}
    assert len({tuple(prompt[:512]) for prompt in first}) == 4
    assert len({tuple(prompt) for prompt in first}) == 32 and first[0][:512] != other[0][:512]
    twice = WORKLOADS["cached"].prompts(ids, 0)
    assert len(twice) == 40 and twice[0] == twice[1] != twice[2] and len(twice[0]) == 2000
    assert (WORKLOADS["32 streams"].streams, WORKLOADS["32 streams"].new_tokens) == (32, 128)


def test_percentiles_are_interpolated() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0 and percentile([1.0, 2.0], 0.5) == 1.5
    assert percentile([0.0, 100.0], 0.99) == 99.0 and percentile([], 0.5) == 0.0


def test_ratios_say_how_much_faster_weft_is() -> None:
    ours = LoadResult(2.0, 0.5, 100, [0.1, 0.2, 0.3], [0.01, 0.02, 0.03], engine_seconds=1.5)
    theirs = LoadResult(4.0, 0.5, 100, [0.1, 0.1, 0.1], [0.04, 0.05, 0.06])
    result = ratios_of("32 streams", WORKLOADS["32 streams"], {INT8: [ours], "vllm": [theirs]}, 2)
    assert result["32 streams: weft int8/vllm, throughput"] == pytest.approx(2.0)
    assert result["32 streams: weft int8/vllm, TTFT p50"] == pytest.approx(0.5)
    assert result["32 streams: weft int8/vllm, TPOT p50"] == pytest.approx(2.5)
    assert result["32 streams: weft int8/engine alone"] == pytest.approx(0.75)
    assert set(result) < {goal.name for goal in GOALS} and len(result) == 5
    if len(os.sched_getaffinity(0)) <= 2:  # the generator used the CPUs of the server
        name = "32 streams: weft int8/engine alone, without the CPU time of the generator"
        assert result[name] == pytest.approx(1.5 / (2.0 - 0.25))
    cold, cached = halves_of(LoadResult(9.0, 0.1, 4, [4.0, 0.1, 5.0, 0.2], []))
    assert (cold.ttfts, cached.ttfts) == ([4.0, 5.0], [0.1, 0.2])


def test_a_tiny_model_served_by_weft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command, with rows, goals, versions and a plot."""
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64)
    drawing = tmp_path / "serve.png"
    command = ["bench", "serve", str(folder), "--systems", "weft,vllm", "--scale", "0.01"]
    command += ["--workloads", "32 streams,cached", "--repeats", "1", "--threads", "1"]
    command += ["--peers", str(tmp_path / "none"), "--json", "--plot", str(drawing)]
    assert main(command) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert "vllm is not installed: its rows are absent." in printed.err
    rows = {row["workload"]: row for row in result["rows"]}
    assert list(rows) == ["32 streams", "cold", "cached"]
    assert all(row["system"] == WEFT and row["ttft_p99"] > 0 for row in rows.values())
    (one,) = rows["32 streams"]["rounds"]
    assert one["num_tokens"] == 32 and len(one["ttfts"]) == 32
    assert rows["32 streams"]["engine_tokens_per_second"] > 0
    assert len(rows["cached"]["rounds"][0]["ttfts"]) == 20
    assert 0 < result["ratios"]["weft: seconds until ready"] < 120
    assert set(result["machine"]["versions"]) == {WEFT, "load generator"}
    assert drawing.stat().st_size > 0
    columns, cells = plots.system_table(result["rows"])
    assert {"TTFT p50, ms", "TTFT p99, ms", "ready, s"} <= set(columns) and len(cells) == 3


def test_a_server_that_ends_is_told_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        servers.SERVERS,
        WEFT,
        servers.ServedSystem(
            None, lambda start: ["sh", "-c", "echo no such instruction >&2; exit 3"]
        ),
    )
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64)
    with pytest.raises(PeerError, match=r"weft ended with exit code 3; .* no such instruction\."):
        servers.Server(WEFT, str(folder), ServerLimits(1, 8, 1), tmp_path, print)


def test_llama_server_has_a_slot_for_each_stream(tmp_path: Path) -> None:
    start = ServerStart(Path("bin"), Path("m.gguf"), 81, ServerLimits(2, 100, 32))
    command = llama_command(start)
    assert command[command.index("--parallel") + 1] == "32"
    assert int(command[command.index("--ctx-size") + 1]) >= 3200
    (tmp_path / "m.gguf").write_bytes(b"GGUF no more")
    (tmp_path / "llama-quantize").write_text("#!/bin/sh\necho cannot read it >&2\nexit 1\n")
    (tmp_path / "llama-quantize").chmod(0o755)
    with pytest.raises(PeerError, match="llama-quantize could not write Q4_0: cannot read it"):
        quantized(tmp_path / "m.gguf", "Q4_0", tmp_path, lambda line: None)


def test_weft_reads_the_file_of_llama_server_only_where_it_can_be_made(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "model", "decoder", max_len=64))
    assert servers.SERVERS[servers.INT8_Q4_0].quantization == "Q4_0"
    with pytest.raises(PeerError, match="a Q4_0 file needs llama-quantize, which is not installed"):
        servers.Server(servers.INT8_Q4_0, folder, ServerLimits(1, 8, 1), tmp_path, print)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "model", "decoder", max_len=64))
    with pytest.raises(UsageError, match=r"has 256 tokens, but max_len of .* is 64"):
        measure(ServeBench(folder, ["1 stream"]), print)
    with pytest.raises(ConfigError, match="'9 streams' is not a known workload"):
        measure(ServeBench(folder, ["9 streams"]), print)
    with pytest.raises(ConfigError, match="'lama' is not a known system"):
        measure(ServeBench(folder, ["1 stream"], ["lama"]), print)
    with pytest.raises(UsageError, match="generator is vllm, which is not installed"):
        measure(ServeBench(folder, ["1 stream"], [WEFT], "vllm", tmp_path, scale=0.01), print)
