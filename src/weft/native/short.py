"""The compiled attention over short sequences: q, k, v -> out_BHTU, lse_BHT, with gradients.

What kernels/short.py says in torch, in one call forward and one back. Tensors are read where they
lie; results lie as [B, T, H, ...], as the layers around want them, and dq, dk and dv side by side.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from weft.native.library import native
from weft.native.structs import ShortStruct, StridedStruct

VECTOR = 16
"""Head sizes that are multiples of this fill every processor's vectors."""


def can_compile(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor) -> bool:
    """Whether the library takes these."""
    tensors = (q_BHTC, k_BHSC, v_BHSU)
    is_plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    fills = all(x.shape[-1] % VECTOR == 0 and x.numel() > 0 for x in tensors)
    return is_plain and fills and native() is not None


class CompiledShort(torch.autograd.Function):
    """A query that sees nothing (all of `added` is -inf) comes out as 0 with lse 0."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTC: Tensor,
        k_BHSC: Tensor,
        v_BHSU: Tensor,
        added_BHTS: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        q_BHTC, k_BHSC, v_BHSU = (neighbours(x) for x in (q_BHTC, k_BHSC, v_BHSU))
        B, H, T, _ = q_BHTC.shape
        S, U = v_BHSU.shape[-2:]
        out_BHTU = torch.empty(B, T, H, U).transpose(1, 2)
        weights = torch.empty(B, H, T, -(-S // VECTOR) * VECTOR)
        lse_BHT = torch.empty(B, H, T)
        call = new_call(q_BHTC, k_BHSC, v_BHSU, scale)
        call.out, call.weights, call.lse = strided(out_BHTU), weights.data_ptr(), lse_BHT.data_ptr()
        if added_BHTS is not None:
            added_BHTS = neighbours(added_BHTS).expand(B, H, T, S)
            call.added = strided(added_BHTS)
        run(call, is_back=False)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BHTC, k_BHSC, v_BHSU, weights)
        ctx.scale = scale
        return out_BHTU, lse_BHT

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BHTC, k_BHSC, v_BHSU, weights = ctx.saved_tensors
        B, H, T, _ = q_BHTC.shape
        dout = torch.zeros(B, H, T, v_BHSU.shape[-1]) if dout is None else neighbours(dout)
        dlse = None if dlse is None else dlse.contiguous()
        slopes = beside(q_BHTC, k_BHSC, v_BHSU)
        call = new_call(q_BHTC, k_BHSC, v_BHSU, ctx.scale)
        call.weights, call.dout = weights.data_ptr(), strided(dout)
        call.dlse = None if dlse is None else dlse.data_ptr()
        call.dq, call.dk, call.dv = (strided(x) for x in slopes)
        run(call, is_back=True)
        return *slopes, None, None


def beside(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor) -> list[Tensor]:
    """Room for dq, dk and dv; where they have one shape in one block [B, T, 3 H, C], which is the
    gradient of a joint projection."""
    shapes = [x.transpose(1, 2).shape for x in (q_BHTC, k_BHSC, v_BHSU)]
    if shapes[0] == shapes[1] == shapes[2]:
        B, T, H, C = shapes[0]
        parts = torch.empty(B, T, 3 * H, C).split(H, dim=2)
        return [part.transpose(1, 2) for part in parts]
    return [torch.empty(shape).transpose(1, 2) for shape in shapes]


def new_call(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor, scale: float) -> ShortStruct:
    """What both ways need."""
    call = ShortStruct()
    call.q, call.k, call.v = strided(q_BHTC), strided(k_BHSC), strided(v_BHSU)
    call.batch, call.heads, call.queries, call.head_size = q_BHTC.shape
    call.keys, call.value_size = v_BHSU.shape[-2:]
    call.threads, call.scale = torch.get_num_threads(), scale
    return call


def run(call: ShortStruct, is_back: bool) -> None:
    library = native()
    assert library is not None, "can_compile was not asked"
    library.short_attention(ctypes.addressof(call), is_back)


def strided(x: Tensor) -> StridedStruct:
    return StridedStruct(x.data_ptr(), *x.stride()[:3])


def neighbours(x: Tensor) -> Tensor:
    """x with the numbers of a row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
