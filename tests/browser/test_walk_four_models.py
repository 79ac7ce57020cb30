"""The panel matrix: the demo translator, SmolLM2, MiniLM and a random model with latent attention,
experts and windows, each with two texts. The line of every panel has the numbers of Python's trace,
and they differ between the texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

import weft.demo.demo as demo_task
from tests.browser.harness import Tab
from tests.browser.test_walk import open_all, open_walk
from tests.browser.test_walk_models import LINES, MODELS
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.hub import pull
from weft.checkpoint.weft_folder import Checkpoint
from weft.cli.app import main
from weft.look.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TEXTS = ("我吃了苹果，它很甜", "The keys to the cabinet are on the table.")
DATES = ("The 3rd of May 2024", "2. Februar 1998")
SAME_FOR_ALL_TEXTS = {"projections", "position", "kinds"}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def demo_model(folder: Path) -> Checkpoint:
    """The model of `weft demo`, after a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in (("NUM_TRAIN", 310), ("NUM_VALID", 31), ("NUM_TEST", 62)):
            patch.setattr(demo_task, name, number)
        assert main(["demo", "--out", str(folder / "demo"), "--steps", "2"]) == 0
    return load_checkpoint(folder / "demo")


def pulled(name: str) -> Callable[[Path], Checkpoint]:
    def load(folder: Path) -> Checkpoint:
        pull(name, print)
        return load_checkpoint(name)

    return load


MAKERS: dict[str, Callable[[Path], Checkpoint]] = {
    "demo": demo_model,
    "smollm2": pulled("smollm2"),
    "minilm": pulled("minilm"),
    "latent": lambda folder: tiny("decoder", max_len=200, **MODELS["latent"]),
}


def numbers(line: str) -> list[float]:
    """The numbers of a line; "<0.01" is 0.005 and ">0.99" is 0.995."""
    line = line.replace("\u2212", "-").replace("<0.01", "0.005").replace(">0.99", "0.995")
    return [float(one.replace(",", "")) for one in NUMBER.findall(line)]


def expected_numbers(trace: Trace, part: str, layer: int, head: int, token: int) -> Any:
    """By panel: the last numbers of its line."""
    stack = "decoder" if part == "cross" else part
    side = "tgt" if trace.model.kind == "encoder-decoder" and stack == "decoder" else "src"
    prefix = f"{part}.{layer}.attention"
    row = trace.array(f"{prefix}.weights", head, token)
    embedding = trace.array(f"{stack}.embedding", row=token)
    residual = f"{prefix}.residual"
    before, after = (
        trace.array(name, row=token).astype(np.float64)
        for name in (trace.stage(residual).inputs[0], residual)
    )
    cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
    hidden = f"{stack}.{layer}.feedforward.hidden"
    q, k = (trace.stage(f"{prefix}.{name}").shape for name in ("q", "k"))
    panels = {
        "ids": [trace.tokens[side][token].id, trace.model.vocab],
        "embedding": [len(embedding), *embedding[:3]],
        "projections": [q[0], k[0], q[-1]],
        "attention": [row.max(), layer, head],
        "residual": [layer, np.linalg.norm(before), np.linalg.norm(after), cosine],
    }
    if trace.has(hidden):
        values = trace.array(hidden, row=token)
        unit = int(np.abs(values).argmax())
        panels["units"] = [unit, len(values), values[unit]]
    else:
        panels["units"] = [*trace.array(f"{stack}.{layer}.feedforward.experts", row=token)]
    if "decoder" in trace.candidates:
        place = token if side == "tgt" or trace.model.kind == "decoder" else 0
        best = trace.candidates["decoder"][place][0]
        panels["output"] = [best.p, trace.model.vocab, trace.model.vocab]
    return panels


def check_line(panel: str, line: str, expected: list[float]) -> None:
    shown = numbers(line)
    if panel == "projections":
        shown = shown[:3]  # the line of latent attention goes on
    if panel == "units":
        shown = shown[: len(expected)] if line.startswith("Unit") else shown[-len(expected) :]
    np.testing.assert_allclose(
        shown[-len(expected) :], np.array(expected, float), atol=0.006, err_msg=f"{panel}: {line}"
    )


def check_score(trace: Trace, line: str, fields: dict[str, str]) -> None:
    """weight = softmax(score), of the chosen pair."""
    layer, head, token = (int(fields[name]) for name in ("layer", "head", "token"))
    prefix = f"{fields['stack']}.{layer}.attention"
    weights, scores = (
        trace.array(f"{prefix}.{name}", head, token) for name in ("weights", "scores")
    )
    key = int(weights.argmax())
    np.testing.assert_allclose(numbers(line), [weights[key], scores[key]], atol=0.006)


@pytest.mark.parametrize("name", MAKERS)
def test_every_panel_has_the_numbers_of_this_model_and_text(tab, tmp_path, name):
    shown: list[dict[str, str]] = []
    with TraceServer({name: MAKERS[name](tmp_path)}) as server:
        for text in DATES if name == "demo" else TEXTS:
            target = "2024" if name == "demo" else ""
            one: Tab = open_walk(tab(server.url), name, text, target)
            open_all(one.page)
            if server.last.has("decoder.logits"):
                one.page.locator("#lens .lens-cell").first.wait_for()
            one.page.wait_for_function(f"{LINES}.every((line) => line !== '')")
            names = one.page.locator(".panel[id]").evaluate_all("(all) => all.map((p) => p.id)")
            lines = dict(zip(names, one.page.evaluate(LINES), strict=True))
            fields = dict(parse_qsl(urlsplit(one.page.url).fragment.partition("?")[2]))
            layer, head, token = (int(fields[key]) for key in ("layer", "head", "token"))
            trace = server.last
            expected = expected_numbers(trace, fields["stack"], layer, head, token)
            for panel, values in expected.items():
                check_line(panel, lines[panel], values)
            check_score(trace, lines["score"], fields)
            assert one.page.locator("main [data-state=error]").count() == 0
            one.check_quiet()
            shown.append(lines)
    assert shown[0].keys() == shown[1].keys()
    same = {panel for panel in shown[0] if shown[0][panel] == shown[1][panel]}
    assert same <= SAME_FOR_ALL_TEXTS
