"""Attention by a schedule of fused calls: the cost is that of the tiles that the mask leaves.

The schedule (schedule.py) says which keys each tile of queries needs; each of its calls runs the
fused kernel (fused.py) on them. Parts of the mask are merged by their lse. The way back uses the
*merged* out and lse for every call, so no gradient has to pass through the merging (as in Ring
Attention, Liu 2023). Differs from FlexAttention, which has no backward on a CPU and cannot shrink
the work of dilated and strided patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels import fused
from weft.nn.attention.kernels.merge import merge
from weft.nn.attention.kernels.schedule import Answer, Call, Schedule, schedule_of
from weft.nn.attention.masks.dense import Grid


def scheduled(
    q_BTHC: Tensor, view: KVView, mask: Mask, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention by the mask's schedule of fused calls."""
    plan = Plan(
        schedule_of(mask, Grid.of(q_BTHC, view)),
        mask,
        q_BTHC.shape[-1] ** -0.5 if scale is None else scale,
    )
    out_BTHU, lse_BHT = ScheduledAttention.apply(q_BTHC, view.k_BSKC, view.v_BSKU, plan)
    return out_BTHU, lse_BHT


class Plan(NamedTuple):
    """What the calls share besides tensors."""

    schedule: Schedule
    mask: Mask
    scale: float

    def steps(self) -> Iterator[tuple[Call, Answer | None]]:
        for number, call in enumerate(self.schedule.calls):
            yield call, self.schedule.answer(number, self.mask)


class ScheduledAttention(torch.autograd.Function):
    """All calls of a schedule as one step: it keeps q, k, v, out and lse, and no scores."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q_BTHC: Tensor, k_BSKC: Tensor, v_BSKU: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        (B, T, H, _), U = q_BTHC.shape, v_BSKU.shape[-1]
        wide = torch.promote_types(q_BTHC.dtype, torch.float32)
        # one row more than there are queries: places of a tile that stand for no query write there
        out_rows = q_BTHC.new_zeros(B * T + 1, H, U)
        lse_rows = q_BTHC.new_full((B * T + 1, H), -torch.inf, dtype=wide)
        inputs = Inputs(*(x.flatten(0, 1) for x in (q_BTHC, k_BSKC, v_BSKU)))
        for call, answer in plan.steps():
            run_forward(call, answer, inputs, plan.scale, out_rows, lse_rows)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BTHC, k_BSKC, v_BSKU, out_rows, lse_rows)
        ctx.plan = plan  # type: ignore[attr-defined]
        return out_rows[:-1].view(B, T, H, U), lse_rows[:-1].view(B, T, H).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dout_BTHU: Tensor | None, dlse_BHT: Tensor | None) -> tuple[Any, ...]:
        q_BTHC, k_BSKC, v_BSKU, out_rows, lse_rows = ctx.saved_tensors
        inputs = Inputs(*(x.flatten(0, 1) for x in (q_BTHC, k_BSKC, v_BSKU)))
        # exp(s - inf) = 0: rows without keys, and places without a query, leave no gradient
        lse_rows = lse_rows.masked_fill(lse_rows == -torch.inf, torch.inf)
        lse_rows[-1] = torch.inf
        dout_rows = torch.zeros_like(out_rows) if dout_BTHU is None else dout_BTHU.flatten(0, 1)
        dlse_rows = None if dlse_BHT is None else dlse_BHT.transpose(1, 2).flatten(0, 1)
        results = Results(out_rows, lse_rows, dout_rows, dlse_rows)
        dq_rows = q_BTHC.new_zeros(len(out_rows), *q_BTHC.shape[2:])
        grads = Inputs(dq_rows, *(x.new_zeros(x.shape) for x in inputs[1:]))
        for call, answer in ctx.plan.steps():
            run_backward(call, answer, inputs, results, ctx.plan.scale, grads)
        dq_BTHC = grads.q[:-1].view(q_BTHC.shape)
        return dq_BTHC, grads.k.view(k_BSKC.shape), grads.v.view(v_BSKU.shape), None


class Inputs(NamedTuple):
    """Queries, keys and values, or their gradients, as rows: [rows, heads, size]."""

    q: Tensor
    k: Tensor
    v: Tensor


class Results(NamedTuple):
    """What came out, and its gradients, as rows."""

    out: Tensor
    lse: Tensor
    dout: Tensor
    dlse: Tensor | None


def run_forward(
    call: Call,
    answer: Answer | None,
    inputs: Inputs,
    scale: float,
    out_rows: Tensor,
    lse_rows: Tensor,
) -> None:
    """Compute one call and write, or merge, its results into the rows of out and lse."""
    q, k, v = call.q_rows.take(inputs.q), call.k_rows.take(inputs.k), call.k_rows.take(inputs.v)
    added = None if answer is None else answer.added(q.dtype)
    out_BHTU, lse_BHT = fused.forward(q, k, v, added, scale)
    if answer is not None and answer.empty_BT is not None:
        lse_BHT = lse_BHT.masked_fill(answer.empty_BT[:, None], -torch.inf)
    if call.part > 0:
        before = call.q_rows.take(out_rows).transpose(1, 2), call.q_rows.take(lse_rows)
        out_BTHU, lse_BHT = merge(*before, out_BHTU.transpose(1, 2), lse_BHT)
        out_BHTU = out_BTHU.transpose(1, 2)
    call.q_rows.put(out_rows, out_BHTU)
    call.q_rows.put(lse_rows, lse_BHT)


def run_backward(
    call: Call,
    answer: Answer | None,
    inputs: Inputs,
    results: Results,
    scale: float,
    grads: Inputs,
) -> None:
    """Add the gradients of one call to the rows of dq, dk and dv."""
    q, k, v = call.q_rows.take(inputs.q), call.k_rows.take(inputs.k), call.k_rows.take(inputs.v)
    out, lse, dout = (call.q_rows.take(x) for x in (results.out, results.lse, results.dout))
    dlse = None if results.dlse is None else call.q_rows.take(results.dlse)
    added = None if answer is None else answer.added(q.dtype)
    dq, dk, dv = fused.backward(dout, dlse, (q, k, v, out, lse), added, scale)
    call.q_rows.add(grads.q, dq)
    call.k_rows.add(grads.k, dk)  # what stands for no key has gradient 0
    call.k_rows.add(grads.v, dv)
