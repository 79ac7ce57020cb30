"""Translation speed: lines of a file through Weft, CTranslate2 and transformers -> rows and ratios.

Greedy and with beam search, on the same weights: the model is converted to a Marian-shaped Hugging
Face folder for the others. All get the same ids and the same maximum number of new tokens;
tokenizing and detokenizing are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from weft.bench.comparison import BenchResults, Goal, Responses, run_rounds
from weft.bench.peers.systems import (
    SYSTEMS,
    WEFT,
    Report,
    model_in_format,
    peers_for,
    start_systems,
)
from weft.checkpoint.description import describe
from weft.checkpoint.formats import load_tokenizer
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.text.corpus import read_lines


@dataclass(frozen=True)
class TranslationBench:
    """Settings of a benchmark."""

    model: str
    source: Path
    limit: int = 1000
    beams: Sequence[int] = (1, 5)
    systems: Sequence[str] = (WEFT, *peers_for("translate"))
    peers: Path = Path(".peers")
    repeats: int = 5
    threads: int = 2

    def system_names(self) -> list[str]:
        """Weft, then the others."""
        for name in self.systems:
            if "translate" not in pick(SYSTEMS, name, "system").skills:
                known = ", ".join([WEFT, *peers_for("translate")])
                raise UsageError(f"{name} does not translate. Choose from: {known}.")
        return list(dict.fromkeys([WEFT, *self.systems]))

    def workloads(self) -> dict[str, int]:
        """Beam width by the name of the workload."""
        return {"greedy" if beam == 1 else f"beam {beam}": beam for beam in self.beams}

    def sources(self) -> list[list[int]]:
        """Ids of the lines, without empty ones."""
        max_len = describe(self.model).config.max_len
        lines = (line for line in read_lines(self.source) if line.strip())
        texts = list(islice(lines, self.limit))
        return load_tokenizer(self.model).encode_batch(texts, max_len=max_len)


def measure(bench: TranslationBench, report: Report) -> dict[str, Any]:
    """{"rows", "ratios", "goals", "machine", "settings"}; see docs/bench.md."""
    names, config = bench.system_names(), describe(bench.model).config
    if config.kind != "encoder-decoder":
        raise UsageError(
            f"{bench.model} is of kind {config.kind}: bench translate needs an encoder-decoder. "
            "`weft bench engine` measures a decoder."
        )
    if len(names) > 1:
        # before anything is started: it may not be possible to convert the model
        model_in_format(bench.model, "hf", report)
    sources = bench.sources()
    max_tokens = min(2 * max(map(len, sources)) + 10, config.max_len - 1)
    results = BenchResults()
    with start_systems(
        names, bench.model, bench.threads, config.max_len, bench.peers, report
    ) as peers:
        for name, beam in bench.workloads().items():
            report(f"{name}: {', '.join(peers)}; {len(sources)} lines, rounds: {bench.repeats}")
            request = {
                "do": "translate",
                "sources": sources,
                "beam": beam,
                "max_tokens": max_tokens,
            }
            responses = run_rounds(peers, cycle([request]), bench.repeats, report)
            results.add(name, responses)
            add_sentences(results.rows[-len(responses) :], responses)
    settings = {"model": bench.model, "source": str(bench.source), "lines": len(sources)}
    settings |= {"max_tokens": max_tokens, "repeats": bench.repeats}
    goals = [Goal(f"{name}: weft/ctranslate2", 1.0) for name in bench.workloads()]
    return results.to_dict(goals, bench.threads, settings)


def add_sentences(rows: list[dict[str, Any]], responses: Responses) -> None:
    """Sentences per second, and how many translations equal Weft's."""
    expected = responses[WEFT][-1].outputs
    for row in rows:
        outputs = responses[row["system"]][-1].outputs
        row["sentences_per_second"] = len(expected) / row["seconds"]
        row["identical"] = sum(a == b for a, b in zip(expected, outputs, strict=True))
