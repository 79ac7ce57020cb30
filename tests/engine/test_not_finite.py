"""Logits that are NaN or infinite end the request that they belong to with an error, wherever
tokens are chosen; the other requests of the batch do not change by a bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.checkpoint.weft_folder import Checkpoint, save_folder
from weft.cli.app import main
from weft.core.errors import DataError
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.audit import audit
from weft.models.build import AnyModel
from weft.sampling.params import SamplingParams

from .tiny import tiny, tiny_folder

WRONG = 55
"""The token whose embedding is not a number in the tests of one request."""
NAN, INF = float("nan"), float("inf")
END = frozenset([2])
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": SamplingParams(temperature=0.9, seed=1)},
    "top-k": {"sampling": SamplingParams(temperature=0.9, top_k=5, seed=1)},
    "penalty": {"sampling": SamplingParams(temperature=0, repetition_penalty=1.2)},
    "banned": {"sampling": SamplingParams(temperature=0, banned=(3, 4))},
    "samples": {"sampling": SamplingParams(temperature=0.9, seed=1), "n": 3},
    "grammar": {"grammar": make_grammar("regex", "[a-z ]{20}"), "ends": END},
    "beam 1": {"beam": BeamConfig(1), "ends": END},
    "beam 3": {"beam": BeamConfig(3), "ends": END},
    "beam 1 without an end": {"beam": BeamConfig(1)},
    "beam 3 without an end": {"beam": BeamConfig(3)},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "one step": {"num_steps": 1},
    "multi-step": {},
    "drafts": {"speculate": True},
    "small budget": {"token_budget": 8, "max_running": 8},
}


def engine_of(checkpoint: Any, **config: Any) -> Engine:
    settings = EngineConfig(**{"page_size": 4, "cache_gib": 1e-3, **config})
    return Engine(checkpoint.model, checkpoint.tokenizer, settings)


def spoil(model: AnyModel, number: float) -> None:
    """Make the embedding of one token, which is not that of the LM head, another number."""
    with torch.no_grad():
        model.decoder.embedding.words.weight[WRONG, 3] = number  # type: ignore[union-attr]


def results(engine: Engine, asked: list[GenerationRequest]) -> list[list[Any]]:
    found: dict[str, list[Any]] = {engine.submit(one): [] for one in asked}
    while not engine.is_idle:
        for output in engine.step():
            beams = [(one.ids, one.score.hex()) for one in output.hypotheses]
            logprobs = [one.logprob.hex() for one in output.logprobs]
            found[output.request_id].append(
                [output.index, output.tokens, output.text, logprobs, beams, output.error]
            )
        audit(engine.scheduler.state)
    return list(found.values())


@pytest.mark.parametrize(
    ("position", "config", "number"),
    [
        *(("rotary", config, NAN) for config in CONFIGS),
        *(("rotary", "multi-step", number) for number in (INF, -INF)),
        *(("alibi", config, NAN) for config in ("one step", "multi-step")),
    ],
)
def test_a_token_that_is_no_number_fails_its_request_alone(
    position: str, config: str, number: float
) -> None:
    """`alibi` runs through the modules, `rotary` through the compiled stack."""
    changes = {"position": {"kind": position}, "embedding": {"tied": "none"}}
    checkpoint = tiny("decoder", **changes)
    spoil(checkpoint.model, number)
    start = (5, 9, 30, 7)  # a page, which all requests share
    good = [
        GenerationRequest((*start, 8, 9)[:n], 6, **KINDS[kind]) for kind in KINDS for n in (4, 6)
    ]
    bad = [
        GenerationRequest((*start, WRONG, 9)[:n], 6, **KINDS[kind])
        for kind in KINDS
        for n in (5, 6)
    ]
    both = [one for pair in zip(good, bad, strict=True) for one in pair]
    engine = engine_of(checkpoint, **CONFIGS[config])
    found = results(engine, both)
    for outputs in found[1::2]:
        assert (
            outputs[-1][-1] is not None
            and "not finite (NaN or infinity) at token 1 of the output" in outputs[-1][-1]
        )
        assert not any(one[1] for one in outputs), "a token was chosen"
    expected = results(engine_of(checkpoint, **CONFIGS[config]), good)
    assert found[::2] == expected
    assert results(engine, good) == expected, "pages that held NaN are used again"


def first_tokens(checkpoint: Checkpoint, request: GenerationRequest) -> list[int]:
    """The tokens that the first sample or the best beam of a request gets."""
    (outputs,) = results(engine_of(checkpoint), [request])
    if request.beam:
        ids: list[int] = outputs[-1][4][0][0]
        return ids
    return [token for one in outputs if one[0] == 0 for token in one[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_names_the_token(kind: str) -> None:
    """The embedding of a generated token is made NaN: the one after it cannot be computed."""
    changes = {"embedding": {"tied": "none"}}
    for start in range(10, 60):
        request = GenerationRequest((5, start), 6, **KINDS[kind])
        tokens = first_tokens(tiny("decoder", **changes), request)
        new = [n for n in (1, 2, 3) if tokens[n] not in (5, start, *tokens[:n])]
        if new:
            break
    checkpoint = tiny("decoder", **changes)
    with torch.no_grad():
        checkpoint.model.decoder.embedding.words.weight[tokens[new[0]]] = NAN
    for config in ({}, {"num_steps": 1}, {"speculate": True}):
        (outputs,) = results(engine_of(checkpoint, **config), [request])
        errors = [one[-1] for one in outputs if one[-1] is not None]
        assert len(errors) == 1, outputs
        number = int(errors[0].split("at token ")[1].split(" ")[0])
        # other beams and samples may reach that token earlier
        assert number == new[0] + 2 or (kind not in ("greedy", "beam 1") and number < new[0] + 2)


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_hidden_states_and_scores_that_are_no_numbers_are_errors(kind: str, number: float) -> None:
    checkpoint = tiny(kind, embedding={"tied": "none"})
    stack = checkpoint.model.decoder if kind == "decoder" else checkpoint.model.encoder
    with torch.no_grad():
        stack.embedding.words.weight[WRONG, 3] = number
    engine = engine_of(checkpoint)
    ids = [engine.submit_embedding(text) for text in ((5, 6), (5, WRONG), (7, 8))]
    if kind == "decoder":
        ids += [engine.submit_score(text) for text in ((5, 6, 7), (5, WRONG, 7))]
    errors: dict[str, str | None] = {}
    while not engine.is_idle:
        errors |= {output.request_id: output.error for output in engine.step()}
    assert [errors[one] is not None for one in ids] == [False, True, False, False, True][: len(ids)]
    assert "hidden states are not finite" in str(errors[ids[1]])


def test_a_head_that_is_no_number_is_an_error_of_the_score() -> None:
    checkpoint = tiny("decoder", embedding={"tied": "none"})
    with torch.no_grad():
        checkpoint.model.head.weight[WRONG] = NAN
    with pytest.raises(DataError, match="logits are not finite .* at token 2 of the output"):
        LoadedModel(checkpoint).perplexity(["the cat sat"])


COMMANDS = {
    "greedy": ["generate", "the cat"],
    "sampled": ["generate", "the cat", "--temperature", "1"],
    "json": ["generate", "the cat", "--json", "--logprobs", "2"],
    "regex": ["generate", "the cat", "--regex", "[a-z]{3}"],
    "many": ["generate", "the cat", "--n", "2", "--temperature", "1"],
}


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("command", COMMANDS)
def test_weights_that_are_no_numbers_are_one_error_of_a_command(
    command: str, number: float, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tiny("decoder")
    with torch.no_grad():
        for weight in checkpoint.model.parameters():
            weight.fill_(number)
    save_folder(tmp_path, checkpoint)
    name, *rest = COMMANDS[command]
    assert main([name, str(tmp_path), *rest]) == 1
    told = capsys.readouterr()
    assert told.out.strip() == "" and told.err.count("\n") == 1
    assert "logits are not finite (NaN or infinity) at token 1" in told.err


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_with_such_weights_is_one_error(
    beam: int, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder(tmp_path / "model")
    checkpoint = tiny()
    with torch.no_grad():
        checkpoint.model.head.weight[WRONG] = NAN
    save_folder(folder, checkpoint)
    (tmp_path / "lines").write_text("the cat\n")
    assert main(["translate", str(folder), str(tmp_path / "lines"), "--beam", str(beam)]) == 1
    assert "logits are not finite (NaN or infinity) at token 1" in capsys.readouterr().err
