"""A model's weights by name, each once and with its numbers: model -> {name: tensor}.

Layers that share a weight count once, under its first name. Weights of packed modules are
dequantized.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from weft.checkpoint.weight_rules import WeightRule
from weft.nn.packed_modules import PackedModule


def owners(model: nn.Module) -> dict[int, list[str]]:
    """Every weight and buffer that is saved, by identity, with all of its names."""
    found: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), []).append(name)
    return found


def unique_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights by name, each once: of tied ones, the first name. Of packed ones a copy is made."""
    first = {names[0] for names in owners(model).values()}
    state = model.state_dict(keep_vars=True)
    return {name: exact_tensor(model, name, state[name]) for name in state if name in first}


def exact_tensor(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """The tensor of this name; of a packed module the dequantized weight."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, PackedModule) and last in module.packed_names:
        return module.exact(last).detach()
    return tensor.detach()


def split_state(model: nn.Module, rules: Sequence[WeightRule]) -> dict[str, Tensor]:
    """The model's weights under their names: the way back."""
    state = unique_state(model)
    return {
        name: part.detach().cpu().contiguous()
        for rule in rules
        for name, part in zip(rule.file_names, rule.split(state[rule.target_name]), strict=True)
    }
