"""Activations whose rows do not know each other: x -> act(x), or act(x) * up. [..., F] -> [..., F].

torch rounds the last numbers of an array differently from the others in sigmoid, SiLU and GELU, and
each thread has last numbers: a row's bits then depend on how many rows are beside it, unless its
size is a multiple of the vectors'. These are computed here, by the compiled kernel or by torch on
rows filled up to such a size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.choices import pick
from weft.native.library import Native, native

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}
COMPILED = {"sigmoid": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}
"""The library's numbers for those that it computes."""
FULL = 64
"""A row whose size is a multiple of this has no last numbers: it fills all vectors."""
MOST = 2**15
"""Numbers that torch computes on one thread."""


def activate(kind: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """act(x), times `up` where it is given. Gradients and other dtypes go through torch alone."""
    function = pick(ACTIVATIONS, kind, "activation")
    tensors = (x,) if up is None else (x, up)
    is_plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if kind not in COMPILED or not is_plain or needs_grad or x.numel() == 0:
        y = function(x)
        return y if up is None else y * up
    library = native()
    if library is None:
        y = filled_up(function, x)
        return y if up is None else y * up
    return compiled(library, COMPILED[kind], x, up)


def compiled(library: Native, kind: int, x: Tensor, up: Tensor | None) -> Tensor:
    """By the library. x and up may be the two halves of one tensor."""
    is_alike = x.dim() == 2 and x.stride(1) == 1 and (up is None or up.stride() == x.stride())
    if not is_alike:
        x, up = x.contiguous(), None if up is None else up.contiguous()
    size = x.shape[-1]
    y = x.new_empty(x.shape)
    stride = x.stride(0) if is_alike else size
    up_pointer = None if up is None else up.data_ptr()
    sizes = (x.numel() // size, size, stride, torch.get_num_threads())
    library.activate(kind, x.data_ptr(), up_pointer, y.data_ptr(), *sizes)
    return y


def filled_up(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """By torch, on rows that fill its vectors, so few at a time that no thread gets a part."""
    size = x.shape[-1]
    wide = F.pad(x.reshape(-1, size), (0, -size % FULL))
    parts = [function(part) for part in wide.split(max(1, MOST // wide.shape[1]))]
    return torch.cat(parts)[:, :size].reshape(x.shape)
