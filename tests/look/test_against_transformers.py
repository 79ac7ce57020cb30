"""Hidden states and attention weights of every family, against `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from tests.checkpoint.families import test_bart, test_marian
from tests.checkpoint.families.folders import load, save
from tests.checkpoint.families.material import shake
from tests.checkpoint.gguf.tiny import MODELS, SIZES
from weft.checkpoint.families import FAMILIES, family_of
from weft.look.recorder import record
from weft.look.trace import Trace
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

ALL: dict[str, tuple[type[PreTrainedModel], Any]] = {
    **MODELS,
    "mistral window": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=4)),
    "bart": (BartForConditionalGeneration, BartConfig(**test_bart.SIZES)),
    "marian": (MarianMTModel, MarianConfig(**test_marian.SIZES)),
}
QUICK = ("llama", "mistral window", "qwen3", "gemma3", "deepseek 3", "gpt2", "t5", "bert", "bart")
"""One model of each kind of layer; the others are slow."""
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["a"], TokenizerConfig(kind="byte"))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALL]
)
def test_hidden_states_and_attentions_are_those_of_transformers(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    kind, config = ALL[name]
    torch.manual_seed(0)
    # Marian's positions are a formula: they are not shaken
    original = test_marian.tiny() if name == "marian" else shake(kind(config))
    original.set_attn_implementation("eager")
    family = family_of(save(original, tmp_path)["model_type"], tmp_path)
    model = load(family, tmp_path).model
    source = torch.randint(5, 60, (1, 13), generator=torch.Generator().manual_seed(1))
    target = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(2))
    is_pair = model.config.kind == "encoder-decoder"
    inputs = {"decoder_input_ids": target} if is_pair else {}
    with torch.no_grad():
        theirs = original(source, **inputs, output_attentions=True, output_hidden_states=True)
    trace = record(model, tokenizer, source[0].tolist(), target[0].tolist() if is_pair else None)
    if is_pair:
        same_stack(trace, "encoder", theirs.encoder_hidden_states, theirs.encoder_attentions)
        same_stack(trace, "decoder", theirs.decoder_hidden_states, theirs.decoder_attentions)
        same_weights(trace, "cross", theirs.cross_attentions)
    else:
        same_stack(trace, model.config.kind, theirs.hidden_states, theirs.attentions)
    if trace.candidates:
        logits_TV = theirs.logits[0].numpy()
        np.testing.assert_allclose(
            trace.array(f"{trace.model.main_part}.logits"), logits_TV, **CLOSE
        )
    assert max(trace.check.values()) < 1e-4, trace.check


def same_stack(trace: Trace, stack: str, states: Any, attentions: Any) -> None:
    """The input, the outputs of all layers, and the weights of a stack."""
    L = trace.model.stacks[stack]
    names = [f"{stack}.input", *(f"{stack}.{layer}.output" for layer in range(L))]
    if trace.has(f"{stack}.norm"):
        names[-1] = f"{stack}.norm"  # theirs are after the final norm
    assert len(states) == len(names)
    for name, state in zip(names, states, strict=True):
        assert state.std() > 0.05, name
        np.testing.assert_allclose(trace.array(name), state[0].numpy(), **CLOSE, err_msg=name)
    same_weights(trace, "attention", attentions, stack)


def same_weights(trace: Trace, part: str, attentions: Any, stack: str = "decoder") -> None:
    assert len(attentions) == trace.model.stacks[stack]
    for layer, weights in enumerate(attentions):
        name = f"{stack}.{layer}.{part}.weights"
        np.testing.assert_allclose(trace.array(name), weights[0].numpy(), **CLOSE, err_msg=name)


def test_every_family_is_compared() -> None:
    """Except fairseq, which transformers does not read."""
    kinds = {config.model_type for _, config in ALL.values()}
    missing = [one.name for one in FAMILIES if not kinds & set(one.model_types)]
    assert missing == ["fairseq"]
