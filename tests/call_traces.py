"""Files of Weft that one decode step and one training step run through, in order of first call.

    python -m tests.call_traces [--json]

Four traces, each of a tiny model:

    compiled   one `Engine.step()` in steady state, one sampled request, Llama-shaped model
    modules    the same step with forward hooks on all layers, so that they run as modules
    training   one iteration of the training loop, from one progress report to the next (the model
               of recipes/dates.toml)
    request    classes of Weft that are constructed once or more for each request, from the prompt
               to the printed JSON (`weft generate --prompts FILE --json`); found by serving one
               prompt and then five in the same number of steps

A file counts when any of its functions runs; modules imported before the step do not. The numbers
show how many files a reader has to open; tests/test_call_traces.py keeps them from growing.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import weft
from weft.engine.engine import Engine

SOURCE = Path(weft.__file__).parent
NUM_STEPS = 5
"""The step that is traced: the prompt is computed, and no page begins or ends with this token (one
step in 16 also allocates a page: kv_cache_manager.py, page_pool.py and the prefix cache)."""
DECODER = {
    "model": {
        "width": 32,
        "num_layers": 2,
        "max_len": 64,
        "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2},
        "position": {"kind": "rotary"},
        "feedforward": {"kind": "swiglu", "width": 48},
        "norm": {"kind": "rmsnorm", "placement": "before"},
    },
    "tokenizer": {"kind": "byte"},
    "train": {"steps": 4, "batch_tokens": 64, "sample_len": 16},
}
TRANSLATOR = {
    "model": {
        "width": 32,
        "num_layers": 2,
        "max_len": 64,
        "dropout": 0.0,
        "attention": {"kind": "mha", "num_heads": 4},
        "position": {"kind": "rotary"},
        "feedforward": {"kind": "relu", "width": 48},
        "norm": {"kind": "layernorm", "placement": "before"},
        "embedding": {"tied": "all"},
    },
    "tokenizer": {"kind": "byte"},
    "train": {"steps": 6, "batch_tokens": 64, "label_smoothing": 0.0},
}


class FileTrace:
    """Files of Weft whose functions are called while a trace is active, and how often."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> FileTrace:
        sys.setprofile(self.count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            self.calls[str(Path(frame.f_code.co_filename).relative_to(SOURCE))] += 1


class ConstructionTrace:
    """Classes of Weft that are constructed while a trace is active, and how often: in this thread,
    and in those that start meanwhile, as the engine thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> ConstructionTrace:
        threading.setprofile(self.count)
        sys.setprofile(self.count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_argcount == 0:
            return
        first = frame.f_locals.get(code.co_varnames[0])
        if code.co_name == "__init__":
            made = type(first)
        elif code.co_filename.startswith("<string>") or "namedtuple" in code.co_filename:
            made = first if code.co_name in ("__new__", "<lambda>") else None
        else:
            return
        if isinstance(made, type) and made.__module__.startswith("weft."):
            self.calls[f"{made.__module__}.{made.__qualname__}"] += 1


def write_models(folder: Path) -> list[str]:
    """A decoder in folder/decoder, and the files of a training step of a translator."""
    lines = [f"{n} squared is {n * n}" for n in range(60)]
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(lines) + "\n")
    weft.train({**DECODER, "data": {"text": [str(folder / "source")]}}, folder / "decoder")
    files = [str(folder / "source"), str(folder / "target")]
    trace, is_active = FileTrace(), False

    def watch(progress: Any) -> None:
        nonlocal is_active
        if is_active:
            trace.__exit__()
        is_active = progress.step == TRANSLATOR["train"]["steps"] - 3
        if is_active:
            trace.__enter__()

    weft.train({**TRANSLATOR, "data": {"pairs": files}}, folder / "translator", watch)
    return list(trace.calls)


def traced_step(model: Any) -> list[str]:
    """Files of the NUM_STEPS-th step of a sampled request."""
    trace, step, seen = FileTrace(), Engine.step, 0

    def traced(engine: Engine) -> Any:
        nonlocal seen
        seen += 1
        if seen != NUM_STEPS:
            return step(engine)
        with trace:
            return step(engine)

    with replaced(Engine, "step", traced):
        model.generate("7 squared", max_tokens=NUM_STEPS + 4, temperature=0.9, seed=1)
    assert seen > NUM_STEPS, f"the text ended after {seen} steps, before step {NUM_STEPS}"
    return list(trace.calls)


@contextlib.contextmanager
def replaced(owner: type, name: str, value: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def request_classes(folder: Path) -> list[str]:
    """Classes with more instances for five requests than for one, all served in one batch."""
    one, five = (constructed(folder, num) for num in (1, 5))
    return sorted(name for name in five if five[name] - one[name] >= 4)


def constructed(folder: Path, num_prompts: int) -> Counter[str]:
    from weft.cli import main

    prompts = folder / "prompts.txt"
    prompts.write_text("7 squared is\n" * num_prompts)
    arguments = ["generate", str(folder / "decoder"), "--prompts", str(prompts), "--json"]
    arguments += ["--temperature", "0.9", "--max-tokens", "6"]
    out = io.StringIO()
    with (
        replaced_arguments(arguments),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
        ConstructionTrace() as trace,
    ):
        main()
    assert len(out.getvalue().splitlines()) == num_prompts, out.getvalue()
    return trace.calls


@contextlib.contextmanager
def replaced_arguments(arguments: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, ["weft", *arguments]
    try:
        yield
    finally:
        sys.argv = before


def trace_all() -> dict[str, list[str]]:
    """The four traces by name."""
    with tempfile.TemporaryDirectory(prefix="weft-traces-") as name:
        folder = Path(name)
        training = write_models(folder)
        compiled = traced_step(weft.load(folder / "decoder"))
        model = weft.load(folder / "decoder")
        for module in model.model.modules():
            module.register_forward_hook(lambda module, inputs, output: None)
        return {
            "compiled": compiled,
            "modules": traced_step(model),
            "training": training,
            "request": request_classes(folder),
        }


def main() -> None:
    torch.set_num_threads(1)
    traces = trace_all()
    if "--json" in sys.argv[1:]:
        print(json.dumps(traces))
        return
    for name, names in traces.items():
        print(f"{name}: {len(names)} {'classes' if name == 'request' else 'files'}")
        print("\n".join(f"    {one}" for one in names))


if __name__ == "__main__":
    main()
