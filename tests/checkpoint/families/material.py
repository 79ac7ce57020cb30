"""What the tests of every family do: a tiny `transformers` model with random weights, through our
import and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel

from weft.checkpoint.families.base import Family
from weft.checkpoint.families.export_check import config_differences, export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import InMemorySource, build_from_source, split_state
from weft.checkpoint.weight_rules import names_in_file
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel
from weft.models.config import ModelConfig

PLACE = Path("tiny/config.json")


def shake(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Random values everywhere, so that no zero bias or unit norm hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def imported(family: Family, original: PreTrainedModel) -> AnyModel:
    """Our model with the weights and settings of theirs."""
    config = family.read_hf(HFConfig(original.config.to_dict(), PLACE))
    source = InMemorySource(saved_state(original), PLACE)
    return build_from_source(config, family.rules(config), source, family.ignored)


def saved_state(original: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What `save_pretrained` would write: tied weights once."""
    tied = set(getattr(original, "all_tied_weights_keys", {}) or {})
    return {n: t for n, t in original.state_dict().items() if n not in tied}


def exported(family: Family, model: AnyModel, like: PreTrainedModel) -> PreTrainedModel:
    """A fresh `transformers` model with what we wrote, loaded by its own strict rules."""
    values: dict[str, Any] = export_config(family, model.config)
    config = type(like.config)(**values, attn_implementation="eager")
    fresh = type(like)(config)
    state = split_state(model, family.rules(model.config))
    missing, unexpected = fresh.load_state_dict(state, strict=False)
    tied = set(getattr(fresh, "all_tied_weights_keys", {}) or {})
    assert not unexpected, unexpected
    assert set(missing) <= tied, missing
    fresh.tie_weights()
    return fresh.eval()


def assert_every_tensor_is_used_once(
    family: Family, model: AnyModel, like: PreTrainedModel
) -> None:
    names = [name for rule in family.rules(model.config) for name in rule.file_names]
    assert len(names) == len(set(names))
    assert names_in_file(family.rules(model.config)) == saved_state(like).keys()


def both_ways(
    family: Family, original: PreTrainedModel, folder: Path, length: int = 40
) -> tuple[AnyModel, PreTrainedModel]:
    """Through files: what `save_pretrained` writes becomes our model, what we write becomes theirs
    again, every tensor of the files is used exactly once, and the logits stay the same."""
    original.save_pretrained(folder / "theirs")
    values = json.loads((folder / "theirs" / "config.json").read_text(encoding="utf-8"))
    state = load_file(folder / "theirs" / "model.safetensors")
    config = family.read_hf(HFConfig(values, PLACE))
    rules = family.rules(config)
    names = [name for rule in rules for name in rule.file_names]
    assert sorted(names) == sorted(state)
    model = build_from_source(config, rules, InMemorySource(state, PLACE), family.ignored)
    again = loaded_by_them(family, model, original, folder / "ours")
    vocab_size = original.config.vocab_size
    ids_BT = torch.randint(0, vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = original(ids_BT).logits
        ours, back = model(ForwardBatch(ids_BT)), again(ids_BT).logits
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(back, expected, atol=1e-4, rtol=1e-4)
    return model, again


def loaded_by_them(
    family: Family, model: AnyModel, like: PreTrainedModel, folder: Path
) -> PreTrainedModel:
    """What `from_pretrained` makes of the files that we write: nothing missing, nothing left."""
    folder.mkdir()
    values = export_config(family, model.config)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    state = split_state(model, family.rules(model.config))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    again, result = type(like).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(result.values()), result
    return again.eval()


def assert_both_spellings_are_read_alike(
    family: Family, values: dict[str, Any], theirs: type[PreTrainedConfig]
) -> ModelConfig:
    """A config.json as it is on the hub, and the same as `transformers` writes it today."""
    old = family.read_hf(HFConfig(values, PLACE))
    new = family.read_hf(HFConfig(theirs.from_dict(values).to_dict(), PLACE))
    assert not config_differences(old, new)
    return old
