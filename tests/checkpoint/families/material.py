"""What the tests of every family do: a tiny `transformers` model with random weights, through our
import and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from weft.checkpoint.families.base import Family, Given, written
from weft.checkpoint.rules import their_names
from weft.checkpoint.tensors import InMemory, build_from, split_state
from weft.models.build import Model

PLACE = Path("tiny/config.json")


def shake(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Random values everywhere, so that no zero bias or unit norm hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def imported(family: Family, original: PreTrainedModel) -> Model:
    """Our model with the weights and settings of theirs."""
    config = family.read_config(Given(original.config.to_dict(), PLACE))
    source = InMemory(saved_state(original), PLACE)
    return build_from(config, family.rules(config), source, family.ignored)


def saved_state(original: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What `save_pretrained` would write: tied weights once."""
    tied = set(getattr(original, "all_tied_weights_keys", {}) or {})
    return {n: t for n, t in original.state_dict().items() if n not in tied}


def exported(family: Family, model: Model, like: PreTrainedModel) -> PreTrainedModel:
    """A fresh `transformers` model with what we wrote, loaded by its own strict rules."""
    values: dict[str, Any] = written(family, model.config)
    config = type(like.config)(**values, attn_implementation="eager")
    fresh = type(like)(config)
    state = split_state(model, family.rules(model.config))
    missing, unexpected = fresh.load_state_dict(state, strict=False)
    tied = set(getattr(fresh, "all_tied_weights_keys", {}) or {})
    assert not unexpected, unexpected
    assert set(missing) <= tied, missing
    fresh.tie_weights()
    return fresh.eval()


def assert_every_tensor_is_used_once(family: Family, model: Model, like: PreTrainedModel) -> None:
    names = [name for rule in family.rules(model.config) for name in rule.theirs]
    assert len(names) == len(set(names))
    assert their_names(family.rules(model.config)) == saved_state(like).keys()
