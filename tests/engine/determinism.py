"""Runs a random case of determinism: every way to serve a request must give the same bits.

    run_case(seed)                                   one case; an AssertionError names a failure
    python -m tests.soak determinism --count 1000    a campaign

Expected are the results of each request alone: nothing cached, one thread. A serving runs the
requests together with others, in chunks, preempted, with drafts or with a warm cache, by the
compiled stack or the modules, on 1 to 4 threads. A test replays CASES, which have failed before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.quantized import GROUP
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest, RequestOutput
from weft.models.build import AnyModel, build_model
from weft.models.config import ModelConfig
from weft.native.packed import PackedMatrix, pack_blocks
from weft.nn.linear import Linear
from weft.nn.packed_modules import adopt_matrices, use_int8_activations
from weft.sampling.params import SamplingParams

from .determinism_cases import Json, make_case

CASES = Path(__file__).with_name("determinism_cases.jsonl")
"""Cases that have failed, one JSON object per line."""
CACHE_GIB = 1e-3
REFERENCE: Json = {"engine": {"prefix_cache": "none", "page_size": 16}, "group": 1}

describe = make_case
"""For tests/soak: a case as JSON. `replay` runs it."""

Results = list[list[Any]]
"""Of each request, the contents of its outputs."""


def run_case(seed: int) -> None:
    """Generate the case of a seed and run it. Raises an AssertionError where bits differ."""
    check_case(make_case(seed))


def check_case(case: Json) -> None:
    """Serve the requests of a case in all its ways and compare the results."""
    model, requests = make_model(case), case["requests"]
    expected = serve(model, requests, REFERENCE)
    for serving in case["servings"]:
        engine = make_engine(model, serving)
        for state in ("cold", "warm"):
            order = random.Random(f"{serving['order']} {state}").sample(
                range(len(requests)), len(requests)
            )
            found = serve(model, [requests[i] for i in order], serving, engine)
            for i, result in zip(order, found, strict=True):
                compare(case, serving, f"{state}, request {i}", result, expected[i])


def compare(case: Json, serving: Json, name: str, found: list[Any], expected: list[Any]) -> None:
    """Raise an AssertionError that names the first difference."""
    if found == expected:
        return
    pairs = enumerate(zip(found, expected, strict=False))
    where = next((f"output {i}: {a} != {b}" for i, (a, b) in pairs if a != b), "number of outputs")
    settings = {key: case["model"][key] for key in ("kind", "attention", "position", "head")}
    raise AssertionError(f"seed {case['seed']}, {serving}, {name}: {where[:400]}\n{settings}")


def saved_cases() -> list[Json]:
    return [json.loads(line) for line in CASES.read_text().splitlines()]


def make_model(case: Json) -> AnyModel:
    """Weights are larger than fresh ones, so that the next tokens are far from equally likely."""
    model = build_model(ModelConfig.from_dict(case["model"]), seed=case["seed"] % 2**32).eval()
    source = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(2.0)
            else:
                weight.add_(0.1 * torch.randn(weight.shape, generator=source))
    if case.get("quantization"):
        quantize(model, **case["quantization"])
    return model


@torch.no_grad()
def quantize(model: AnyModel, bits: int, int8_activations: bool) -> None:
    """Quantize all layers whose inputs are whole groups, as in GGUF files."""
    layers = [one for one in model.modules() if type(one) is Linear]
    matrices = {
        id(layer.weight): quantized(layer.weight, bits)
        for layer in layers
        if layer.in_features % GROUP == 0
    }
    adopt_matrices(model, matrices)
    if int8_activations:
        use_int8_activations(model)


def quantized(weight_OI: Tensor, bits: int) -> PackedMatrix:
    groups = weight_OI.unflatten(1, (-1, GROUP))
    if bits == 8:
        scales = (groups.abs().amax(-1) / 127).half().float()
        return pack_blocks((groups / scales[..., None]).round().flatten(1).char(), scales)
    low, high = groups.amin(-1).half().float(), groups.amax(-1)
    scales = ((high - low) / 15).half().float()
    quants = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15)
    return pack_blocks(quants.flatten(1).char(), scales, low)


def make_engine(model: AnyModel, serving: Json) -> Engine:
    engine = Engine(model, None, EngineConfig(cache_gib=CACHE_GIB, **serving["engine"]))
    engine.threads.is_enabled = False  # the threads of the case, whatever else the machine does
    return engine


def serve(
    model: AnyModel, requests: list[Json], serving: Json, engine: Engine | None = None
) -> Results:
    """The results of the requests, `group` of them submitted at a time."""
    engine = engine or make_engine(model, serving)
    outputs: dict[str, list[Any]] = {}
    with num_threads(serving.get("threads", 1)), hooked(model, serving.get("modules", False)):
        for start in range(0, len(requests), serving["group"]):
            for request in requests[start : start + serving["group"]]:
                outputs[submit(engine, request)] = []
            while not engine.is_idle:
                for output in engine.step():
                    outputs[output.request_id] += contents(output)
    # by sample; the outputs of a sample are in order already
    return [sorted(one, key=itemgetter(0)) for one in outputs.values()]


def submit(engine: Engine, request: Json) -> str:
    kind, prompt = request["kind"], tuple(request["prompt"])
    if kind == "embed":
        return engine.submit_embedding(prompt)
    if kind == "score":
        return engine.submit_score(prompt)
    source = tuple(request["source"]) if "source" in request else None
    sampling = SamplingParams(logprobs=2, **request.get("sampling", {"temperature": 0.0}))
    beam = None
    if kind == "beam":
        beam, sampling = BeamConfig(request["width"]), SamplingParams()
    return engine.submit(
        GenerationRequest(
            prompt,
            request["max_tokens"],
            source,
            sampling,
            ends=frozenset({0}),
            n=request.get("n", 1),
            beam=beam,
        )
    )


def contents(output: RequestOutput) -> list[Any]:
    """The bits of an output as tuples that begin with the number of the sample; floats in hex."""
    assert output.error is None, output.error
    values: list[Any] = []
    if output.vectors_TD is not None:
        rows = output.vectors_TD.float().cpu()
        values += [(0, t, row.numpy().tobytes().hex()) for t, row in enumerate(rows)]
    for rank, one in enumerate(output.hypotheses):
        values.append((rank, one.ids, one.score.hex()))
    for one in output.logprobs:
        values.append((output.index, one.id, one.logprob.hex(), str(one.top)))
    return values


@contextmanager
def num_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def hooked(model: AnyModel, is_hooked: bool) -> Iterator[None]:
    """With a hook anywhere, the modules run instead of the compiled stack."""
    if not is_hooked:
        yield
        return
    handle = model.register_forward_hook(lambda module, args, output: None)
    try:
        yield
    finally:
        handle.remove()


replay = check_case
