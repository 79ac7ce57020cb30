"""Layers with weights that can be packed: their numbers are in one place, the packed form.

The parameter of a packed weight is hollow (hollow.py). Products take the numbers from the packed
form; gradients, other dtypes and whoever asks for `whole()` or for a state dict get the exact
weight back for the moment, and training, moving and loading for good. Without the compiled library
there is nothing to let go: the packed form is the parameter's own memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from weft.native.kernels import is_inference_float32
from weft.native.packed import PackedMatrix, dequantize, pack
from weft.nn.hollow import Whole, check_unwritten, hollow, hollow_out, is_hollow, refill


class Packable(nn.Module):
    """Base of the layers whose weights can be packed. Training, moving or loading unpacks."""

    packable: tuple[str, ...] = ("weight",)
    """Names of these weights: matrices, or stacks of matrices."""
    forms: Mapping[str, PackedMatrix] = MappingProxyType({})
    """Packed weights by name; a stack is packed as one matrix, all of its rows below each other."""

    @property
    def packed(self) -> PackedMatrix | None:
        return self.forms.get("weight")

    def current(self, name: str = "weight") -> PackedMatrix | None:
        """The packed weight, as long as the numbers are there: another layer with the same weight
        may have been unpacked, and its weight changed."""
        packed = self.forms.get(name)
        # each layer asks this for each token: an attribute would take three times as long
        if packed is None or not packed.is_native or is_hollow(self._parameters[name]):
            return packed
        return None

    def packs(self, x: Tensor) -> bool:
        """Whether packed weights are used for this input."""
        return is_inference_float32(x) and all(
            self.current(name) is not None for name in self.packable
        )

    def pack(self, packed: PackedMatrix | None = None, name: str = "weight") -> PackedMatrix:
        """Let this packed weight hold the numbers from now on; None: one made of them, unless
        there is one."""
        weight = self.get_parameter(name)
        if packed is None:
            packed = self.current(name) or pack(self.whole(name).flatten(0, -2))
        found, own = (packed.outputs, packed.inputs), tuple(weight.shape)
        is_same = found[0] * found[1] == weight.numel() and found[1] == own[-1]
        assert is_same, f"a packed weight of {found} for one of {own}"
        self.forms = {**self.forms, name: packed}
        if packed.is_native:
            hollow_out(weight)
        return packed

    def unpack(self) -> None:
        """Have the numbers in the weights again."""
        for name in self.packable:
            weight = self._parameters[name]
            if weight is not None and is_hollow(weight):
                refill(weight, self.numbers(name))
        self.forms = {}

    def numbers(self, name: str) -> PackedMatrix:
        """The packed form of a weight that is hollow."""
        assert name in self.forms, f"{name} is hollow and has no packed form"
        check_unwritten(self.get_parameter(name))
        return self.forms[name]

    def whole(self, name: str = "weight") -> Tensor:
        """A weight with its numbers, made for the moment where it is hollow. Gradients with regard
        to it reach the parameter."""
        # not get_parameter: torch.func puts plain tensors in their places
        weight: Tensor = getattr(self, name)
        if not is_hollow(weight):
            return weight
        if torch.is_grad_enabled():
            made: Tensor = Whole.apply(weight, self.numbers(name))
            return made
        return dequantize(self.numbers(name)).view(weight.shape)

    def train(self, mode: bool = True) -> Self:
        if mode:
            self.unpack()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.unpack()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unpack()
        super()._load_from_state_dict(*args, **kwargs)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Numbers; with `keep_vars` the parameters themselves, hollow or not."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in () if keep_vars else self.packable:
            if is_hollow(self._parameters[name]):
                destination[prefix + name] = self.whole(name).detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that is packed too. torch would give a hollow parameter's copy memory."""
        for name in self.packable:
            weight = self.get_parameter(name)
            if is_hollow(weight) and id(weight) not in memo:
                memo[id(weight)] = nn.Parameter(hollow(weight.shape), weight.requires_grad)
        copied = self.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))
        return copied
