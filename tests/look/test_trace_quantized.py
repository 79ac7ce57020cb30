"""Quantized models: a trace has the weights of the packed modules, and says which they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from tests.checkpoint.gguf.test_quantized_model import write
from weft.engine.request import GenerationRequest

SMALL = {"page_size": 4, "cache_gib": 1e-3}
IDS = (5, 9, 30, 7, 8, 6, 40, 41, 9, 33, 21)


@pytest.mark.parametrize(
    ("activations", "tolerance"), [("float32", 1e-5), ("int8", 1e-3)], ids=["float32", "int8"]
)
@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_weights_are_those_of_the_serving_engine(
    name: str,
    activations: str,
    tolerance: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(tmp_path, monkeypatch, name, rest="Q8_0")
    with weft.load(path, engine={**SMALL, "activations": activations}) as model:
        engine = weft.Engine(model.model, model.tokenizer, model.engine_config)
        asked = engine.submit(GenerationRequest(IDS, 3))
        engine.step()
        trace = model.look(IDS)
        assert trace.model.weights == "q8"
        assert ("int8" in " ".join(trace.limits.notes)) == (activations == "int8")
        layers = list(range(trace.model.layers[0]))
        for query in range(len(IDS)):
            rows = engine.attention_of_layers(asked, query, 0, layers)
            for layer in layers:
                row_HS = trace.array(f"decoder.{layer}.attention.weights", row=query)
                expected_HS = rows.weights_LHS[layer].numpy()
                np.testing.assert_allclose(row_HS[:, : query + 1], expected_HS, atol=tolerance)
