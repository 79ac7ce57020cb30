"""Translation speed: lines of a file through Weft, CTranslate2 and transformers -> rows and ratios.

Greedy and with beams, on the same weights: the model is written as a Marian-shaped Hugging Face
folder, which the others read. All get the same ids and the same limit for new tokens; reading and
writing texts is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from weft.bench import turns
from weft.bench.goals import Goal
from weft.bench.peers.forms import in_form
from weft.bench.peers.systems import SYSTEMS, WEFT, Say, peers_for, started
from weft.checkpoint.formats import describe, load_tokenizer
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.text.corpus import read_lines


@dataclass(frozen=True)
class Plan:
    """What is measured, and how."""

    model: str
    source: Path
    limit: int = 1000
    beams: Sequence[int] = (1, 5)
    systems: Sequence[str] = (WEFT, *peers_for("translate"))
    peers: Path = Path(".peers")
    repeats: int = 5
    threads: int = 2

    def names(self) -> list[str]:
        """Weft, then the others."""
        for name in self.systems:
            if "translate" not in pick(SYSTEMS, name, "system").skills:
                able = ", ".join([WEFT, *peers_for("translate")])
                raise UsageError(f"{name} does not translate. Choose from: {able}.")
        return list(dict.fromkeys([WEFT, *self.systems]))

    def workloads(self) -> dict[str, int]:
        """The width of the beam by the name of its workload."""
        return {"greedy" if beam == 1 else f"beam {beam}": beam for beam in self.beams}

    def sources(self) -> list[list[int]]:
        """The ids of the lines; empty ones are left out."""
        max_len = describe(self.model).config.max_len
        lines = (line for line in read_lines(self.source) if line.strip())
        texts = list(islice(lines, self.limit))
        return load_tokenizer(self.model).encode_batch(texts, max_len=max_len)


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """{"rows", "ratios", "goals", "machine", "settings"}; see docs/bench.md."""
    names, config = plan.names(), describe(plan.model).config
    if config.kind != "encoder-decoder":
        raise UsageError(
            f"{plan.model} is of kind {config.kind}: bench translate needs an encoder-decoder. "
            "`weft bench engine` measures a decoder."
        )
    if len(names) > 1:
        in_form(plan.model, "hf", say)  # before anything is started: it may not be writable
    sources = plan.sources()
    max_tokens = min(2 * max(map(len, sources)) + 10, config.max_len - 1)
    results = turns.Results()
    with started(names, plan.model, plan.threads, config.max_len, plan.peers, say) as peers:
        for name, beam in plan.workloads().items():
            say(f"{name}: {', '.join(peers)}; {len(sources)} lines, rounds: {plan.repeats}")
            asked = {"do": "translate", "sources": sources, "beam": beam, "max_tokens": max_tokens}
            found = turns.in_rounds(peers, cycle([asked]), plan.repeats, say)
            results.add(name, found)
            add_sentences(results.rows[-len(found) :], found)
    settings = {"model": plan.model, "source": str(plan.source), "lines": len(sources)}
    settings |= {"max_tokens": max_tokens, "repeats": plan.repeats}
    goals = [Goal(f"{name}: weft/ctranslate2", 1.0) for name in plan.workloads()]
    return results.to_dict(goals, plan.threads, settings)


def add_sentences(rows: list[dict[str, Any]], found: turns.Found) -> None:
    """Sentences a second, and how many translations are Weft's to the last token."""
    ours = found[WEFT][-1].outputs
    for row in rows:
        theirs = found[row["system"]][-1].outputs
        row["sentences_per_second"] = len(ours) / row["seconds"]
        row["identical"] = sum(a == b for a, b in zip(ours, theirs, strict=True))
