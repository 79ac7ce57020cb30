"""Attention by a schedule of fused calls: the cost is that of the nonempty tiles of the mask.

The schedule (schedule.py) lists which keys each tile of queries needs; each of its calls runs the
fused kernel (../flash.py) on them. Parts of the mask are merged by their lse. The backward pass
uses the *merged* out and lse for every call, so no gradient has to flow through the merging (as in
Ring Attention, Liu 2023). It is linear in the length for a window, a dilated window or documents.
Differs from FlexAttention, which has no backward on a CPU and cannot skip the work of dilated and
strided patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.shapes import check_shapes
from weft.nn.attention.base import DenseCall, Mask
from weft.nn.attention.kernels.flash import fused_backward, fused_forward
from weft.nn.attention.kernels.reference import merge
from weft.nn.attention.kernels.sparse.schedule import (
    KernelCall,
    SparseSchedule,
    TileMask,
    schedule_of,
)
from weft.nn.attention.masks.algebra import Full
from weft.nn.attention.masks.dense import Grid


def scheduled_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT) of a call without bias, softcap and dropout."""
    q_BTHC, kv = call.q_BTHC, call.kv
    assert call.bias is None and call.softcap is None, "tiled attention computes bias and softcap"
    check_shapes(q_BTHC=q_BTHC, k_BSKC=kv.k_BSKC, v_BSKU=kv.v_BSKU)
    mask = call.mask or Full()
    plan = ScheduledCall(schedule_of(mask, Grid.of(q_BTHC, kv)), mask, call.softmax_scale)
    out_BTHU, lse_BHT = ScheduledAttention.apply(q_BTHC, kv.k_BSKC, kv.v_BSKU, plan)
    return out_BTHU, lse_BHT


class ScheduledCall(NamedTuple):
    """What the kernel calls share besides tensors."""

    schedule: SparseSchedule
    mask: Mask
    scale: float

    def steps(self) -> Iterator[tuple[KernelCall, TileMask | None]]:
        for index, call in enumerate(self.schedule.calls):
            yield call, self.schedule.tile_mask(index, self.mask)


class ScheduledAttention(torch.autograd.Function):
    """All calls of a schedule as one operation: it saves q, k, v, out and lse, and no scores."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q_BTHC: Tensor, k_BSKC: Tensor, v_BSKU: Tensor, plan: ScheduledCall
    ) -> tuple[Tensor, Tensor]:
        (B, T, H, _), U = q_BTHC.shape, v_BSKU.shape[-1]
        lse_dtype = torch.promote_types(q_BTHC.dtype, torch.float32)
        # one row more than there are queries: padding of the tiles is written there
        out_rows = q_BTHC.new_zeros(B * T + 1, H, U)
        lse_rows = q_BTHC.new_full((B * T + 1, H), -torch.inf, dtype=lse_dtype)
        inputs = FlatQKV(*(x.flatten(0, 1) for x in (q_BTHC, k_BSKC, v_BSKU)))
        for call, mask in plan.steps():
            run_forward(call, mask, inputs, plan.scale, out_rows, lse_rows)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BTHC, k_BSKC, v_BSKU, out_rows, lse_rows)
        ctx.plan = plan  # type: ignore[attr-defined]
        return out_rows[:-1].view(B, T, H, U), lse_rows[:-1].view(B, T, H).transpose(1, 2)

    @staticmethod
    def backward(
        ctx: Any, dout_BTHU: Tensor | None, dlse_BHT: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q_BTHC, k_BSKC, v_BSKU, out_rows, lse_rows = ctx.saved_tensors
        inputs = FlatQKV(*(x.flatten(0, 1) for x in (q_BTHC, k_BSKC, v_BSKU)))
        # exp(s - inf) = 0: queries without keys, and padding, have no gradient
        lse_rows = lse_rows.masked_fill(lse_rows == -torch.inf, torch.inf)
        lse_rows[-1] = torch.inf
        dout_rows = torch.zeros_like(out_rows) if dout_BTHU is None else dout_BTHU.flatten(0, 1)
        dlse_rows = None if dlse_BHT is None else dlse_BHT.transpose(1, 2).flatten(0, 1)
        outputs = FlatOutputs(out_rows, lse_rows, dout_rows, dlse_rows)
        dq_rows = q_BTHC.new_zeros(len(out_rows), *q_BTHC.shape[2:])
        grads = FlatQKV(dq_rows, *(x.new_zeros(x.shape) for x in inputs[1:]))
        for call, mask in ctx.plan.steps():
            run_backward(call, mask, inputs, outputs, ctx.plan.scale, grads)
        dq_BTHC = grads.q[:-1].view(q_BTHC.shape)
        return dq_BTHC, grads.k.view(k_BSKC.shape), grads.v.view(v_BSKU.shape), None


class FlatQKV(NamedTuple):
    """Queries, keys and values, or their gradients, as rows: [rows, heads, size]."""

    q: Tensor
    k: Tensor
    v: Tensor


class FlatOutputs(NamedTuple):
    """Outputs and their gradients as rows."""

    out: Tensor
    lse: Tensor
    dout: Tensor
    dlse: Tensor | None


def run_forward(
    call: KernelCall,
    mask: TileMask | None,
    inputs: FlatQKV,
    scale: float,
    out_rows: Tensor,
    lse_rows: Tensor,
) -> None:
    """Compute one call and write, or merge, its results into the rows of out and lse."""
    q = call.q_rows.gather(inputs.q)
    k, v = call.k_rows.gather(inputs.k), call.k_rows.gather(inputs.v)
    added = None if mask is None else mask.additive(q.dtype)
    out_BHTU, lse_BHT = fused_forward(q, k, v, added, scale)
    if mask is not None and mask.empty_BT is not None:
        lse_BHT = lse_BHT.masked_fill(mask.empty_BT[:, None], -torch.inf)
    if call.part > 0:
        before = call.q_rows.gather(out_rows).transpose(1, 2), call.q_rows.gather(lse_rows)
        out_BTHU, lse_BHT = merge(*before, out_BHTU.transpose(1, 2), lse_BHT)
        out_BHTU = out_BTHU.transpose(1, 2)
    call.q_rows.scatter(out_rows, out_BHTU)
    call.q_rows.scatter(lse_rows, lse_BHT)


def run_backward(
    call: KernelCall,
    mask: TileMask | None,
    inputs: FlatQKV,
    outputs: FlatOutputs,
    scale: float,
    grads: FlatQKV,
) -> None:
    """Add the gradients of one call to the rows of dq, dk and dv."""
    q = call.q_rows.gather(inputs.q)
    k, v = call.k_rows.gather(inputs.k), call.k_rows.gather(inputs.v)
    out, lse, dout = (call.q_rows.gather(x) for x in (outputs.out, outputs.lse, outputs.dout))
    dlse = None if outputs.dlse is None else call.q_rows.gather(outputs.dlse)
    added = None if mask is None else mask.additive(q.dtype)
    dq, dk, dv = fused_backward(dout, dlse, (q, k, v, out, lse), added, scale)
    call.q_rows.scatter_add(grads.q, dq)
    call.k_rows.scatter_add(grads.k, dk)  # the gradient of padding is 0
    call.k_rows.scatter_add(grads.v, dv)
