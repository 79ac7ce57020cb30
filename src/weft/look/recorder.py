"""Records a trace: model, tokenizer, text -> Trace, through hooks from outside.

    record(model, tokenizer, text, target=None, task=None, ablate=(), detail="auto") -> Trace
    trace_units(the same, unit_ms=10) -> Generator[None, None, Trace]

`trace_units` is the same work in units of about `unit_ms` milliseconds, for a model that serves
requests: call next() between engine steps, on the thread that steps; the value of StopIteration is
the trace.

    units = trace_units(model, tokenizer, text)
    while True:
        try:
            next(units)
        except StopIteration as stop:
            return stop.value

Between two units no hook is registered and no state of torch is changed. To cancel, close or drop
the generator. Calls of the model by other threads are not recorded.

What is kept depends on the length: up to 64 tokens, all arrays; up to 512, the inputs of the
layers, K, V, and block means of the weights; beyond, K, V, and block means of some rows.
`Trace.array` recomputes all other values (stored_rows.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from weft.core.device import device_of
from weft.core.forward_batch import ForwardBatch
from weft.look.formulas import Formulas
from weft.look.logit_lens import lens_units
from weft.look.next_tokens import candidates_of, sample_next
from weft.look.part_recorder import PartRecorder, StageArrays, to_array
from weft.look.stack_pass import StackPass
from weft.look.stages import Wiring, kind_of
from weft.look.stored_rows import StoredRows
from weft.look.trace import Trace
from weft.look.trace_data import Array, Detail, Form, HeadName, NextToken, Stage, TraceLimits
from weft.look.trace_input import TextOrIds, TraceInput, trace_input
from weft.look.trace_model import trace_model, weight_notes
from weft.models.build import AnyModel
from weft.models.stack import Stack
from weft.models.transformer import EncoderDecoder
from weft.nn.positions.base import Position
from weft.nn.positions.rope_scaling import inv_freq
from weft.nn.positions.rotary import Rotary
from weft.sampling.params import SamplingParams
from weft.text.tokenizer import Tokenizer

MAX_INLINE, MAX_INPUTS = 64, 512
"""Maximum number of tokens of a trace that keeps all arrays, and of one that keeps the inputs of
the layers."""
MAX_LOGITS = 1 << 22
"""Maximum number of logits that are kept; of more, only those of the last position."""
MAX_LENS_PRODUCTS = 1 << 30
"""Maximum multiply-accumulates of a logit lens that is computed with every trace."""
TOLERANCE = 1e-3
"""Differences in `check` above this are reported in the notes."""


def record(
    model: AnyModel,
    tokenizer: Tokenizer,
    text: TextOrIds,
    target: TextOrIds | None = None,
    task: str | None = None,
    ablate: Iterable[object] = (),
    detail: Detail = "auto",
    *,
    window: tuple[int, int] | None = None,
    start: int | None = None,
    sampling: SamplingParams | None = None,
    name: str = "",
    unit_ms: float = 1000.0,
) -> Trace:
    """The trace of one pass. `text` and `target` may be ids, as the stacks read them. `target`:
    what the decoder of an encoder-decoder reads after its start token; None: nothing. `ablate`:
    heads whose output is set to zero, "2.3", (2, 3) or "cross.2.3". `start`: the decoder's start
    token. `sampling`: chooses `sampled`; None: greedy."""
    units = trace_units(
        *(model, tokenizer, text, target, task, ablate, detail),
        window=window,
        start=start,
        sampling=sampling,
        name=name,
        unit_ms=unit_ms,
    )
    while True:
        try:
            next(units)
        except StopIteration as stop:
            trace: Trace = stop.value
            return trace


def trace_units(
    model: AnyModel,
    tokenizer: Tokenizer,
    text: TextOrIds,
    target: TextOrIds | None = None,
    task: str | None = None,
    ablate: Iterable[object] = (),
    detail: Detail = "auto",
    *,
    window: tuple[int, int] | None = None,
    start: int | None = None,
    sampling: SamplingParams | None = None,
    name: str = "",
    unit_ms: float = 10.0,
) -> Generator[None, None, Trace]:
    """`record` in units of work. Errors of the arguments are raised here, not by the first unit."""
    heads = tuple(sorted({HeadName.parse(one, model.config) for one in ablate}))
    source = trace_input(model, tokenizer, text, target, task, start, window)
    recording = Recording(model, tokenizer, source, heads, detail, sampling, unit_ms, name)
    return in_eval_mode(model, recording.units())


@torch.inference_mode()
def in_eval_mode(
    model: AnyModel, units: Generator[None, None, Trace]
) -> Generator[None, None, Trace]:
    """Each unit in inference mode and with the model in eval mode; between units, as before. (The
    decorator leaves inference mode at each yield.)"""
    while True:
        was_training = model.training
        try:
            if was_training:
                model.eval()
            next(units)
        except StopIteration as stop:
            trace: Trace = stop.value
            return trace
        finally:
            if was_training:
                model.train()
        yield


class Recording:
    """One recording: what is known so far."""

    def __init__(
        self,
        model: AnyModel,
        tokenizer: Tokenizer,
        source: TraceInput,
        ablated: Sequence[HeadName],
        detail: Detail,
        sampling: SamplingParams | None,
        unit_ms: float,
        name: str,
    ) -> None:
        self.model, self.tokenizer, self.source = model, tokenizer, source
        self.ablated, self.detail, self.unit_ms, self.name = ablated, detail, unit_ms, name
        self.sampling = sampling or SamplingParams(temperature=0.0)
        self.arrays = StageArrays(self.form_of(source.num_tokens))
        self.passes: dict[str, StackPass] = {}
        self.candidates: dict[str, tuple[tuple[NextToken, ...], ...]] = {}
        self.last_logits_V: Tensor | None = None
        self.final: dict[str, Tensor] = {}
        self.unablated_1TD: Tensor | None = None

    @staticmethod
    def form_of(num_tokens: int) -> Form:
        if num_tokens <= MAX_INLINE:
            return "inline"
        return "thumbnails" if num_tokens <= MAX_INPUTS else "keys"

    def units(self) -> Generator[None, None, Trace]:
        """All units, in the order of the forward pass."""
        if self.ablated:
            self.unablated_1TD = yield from self.plain_pass()
        memory_1SD: Tensor | None = None
        for stack, side in self.stacks():
            memory_1SD = yield from self.record_stack(stack, side, memory_1SD)
        if self.has_logits:
            yield from self.record_logits()
        trace = self.finished()
        if not self.has_logits or not self.is_lens_cheap:
            return trace
        lens = None
        for unit in lens_units(trace):
            lens = unit
            yield
        return replace(trace, lens=lens)

    @property
    def is_lens_cheap(self) -> bool:
        """Whether the lens of all positions is a fraction of the pass itself."""
        config, T = self.model.config, self.source.num_tokens
        products = T * config.num_layers * self.model.head.weight.numel()
        return self.arrays.form == "inline" and products <= MAX_LENS_PRODUCTS

    def stacks(self) -> list[tuple[str, str]]:
        """Name and side of each stack."""
        if isinstance(self.model, EncoderDecoder):
            return [("encoder", "src"), ("decoder", "tgt")]
        return [(self.model.config.kind, "src")]

    @property
    def has_logits(self) -> bool:
        return self.source.task != "encode"

    def new_pass(
        self, name: str, side: str, memory_1SD: Tensor | None, is_ablated: bool
    ) -> StackPass:
        """The pass of a stack over its tokens."""
        ids_1T = torch.tensor([self.source.ids(side)], device=device_of(self.model))
        heads: dict[str, list[int]] = {}
        for one in self.ablated if is_ablated else ():
            heads.setdefault(one.prefix, []).append(one.head)
        batch = ForwardBatch(ids_1T, memory_BSD=memory_1SD)
        return StackPass(stack_of(self.model, name), name, batch, self.unit_ms, heads)

    def plain_pass(self) -> Generator[None, None, Tensor]:
        """The final hidden states x_1TD of a pass without ablation and without recording."""
        memory: Tensor | None = None
        for name, side in self.stacks():
            one = self.new_pass(name, side, memory, is_ablated=False)
            memory = one.stack.embed(one.batch)
            yield
            for layer in range(one.stack.num_layers):
                memory = yield from PartRecorder(one, layer, self.arrays).plain(memory)
            memory = one.stack.norm(memory)
        assert memory is not None, "a model without stacks"
        return memory

    def record_stack(
        self, name: str, side: str, memory_1SD: Tensor | None
    ) -> Generator[None, None, Tensor]:
        """Record all layers of a stack; its final hidden states x_1TD."""
        one = self.passes[name] = self.new_pass(name, side, memory_1SD, is_ablated=True)
        x_1TD = self.record_embedding(one)
        yield
        for layer in range(one.stack.num_layers):
            if self.arrays.form == "thumbnails" or layer == 0:
                one.inputs.append(x_1TD)
            x_1TD = yield from PartRecorder(one, layer, self.arrays).record(x_1TD)
        if self.arrays.form == "inline":
            one.inputs.clear()
        if one.rollout_TT is not None:
            self.arrays.keep(f"{name}.rollout", one.rollout_TT)
        one.keeps_inputs = self.arrays.form == "thumbnails"
        if one.stack.config.has_final_norm:
            x_1TD = one.stack.norm(x_1TD)
            self.arrays.keep(f"{name}.norm", to_array("norm", x_1TD))
        self.final[name] = x_1TD
        return x_1TD

    def record_embedding(self, one: StackPass) -> Tensor:
        """The stages before the first layer; x_1TD."""
        stack, name, batch = one.stack, one.name, one.batch
        embedding, keep = stack.embedding, self.arrays.keep
        keep(f"{name}.ids", batch.ids_BT[0].float().cpu().numpy())
        words_1TD = embedding.words(batch.ids_BT) * embedding.scale
        keep(f"{name}.embedding", to_array("embedding", words_1TD))
        if type(stack.position).add is not Position.add:
            added = stack.position.add(torch.zeros_like(words_1TD), batch.positions_BT)
            keep(f"{name}.position", to_array("position", added))
        if embedding.segments is not None:
            rows = embedding.segments(torch.zeros_like(batch.ids_BT))
            keep(f"{name}.segment", to_array("segment", rows))
        positions = {"angles": stack.position, "local_angles": stack.local_position}
        for stage, position in positions.items():
            if isinstance(position, Rotary):
                keep(f"{name}.{stage}", angles(position, batch.ids_BT.shape[1]))
        x_1TD = stack.embed(batch)
        keep(f"{name}.input", to_array("input", x_1TD))
        return x_1TD

    def record_logits(self) -> Iterator[None]:
        """Logits and the most likely next tokens of all positions, or of the last one."""
        name, side = self.stacks()[-1]
        x_1TD, head = self.final[name], self.model.head
        T, V = x_1TD.shape[1], self.model.config.vocab_size
        first = 0 if self.arrays.form == "inline" else T - 1
        size = max(1, self.passes[name].rows_per_unit(V * x_1TD.shape[2]))
        logits: list[Tensor] = []
        deltas: list[Tensor] = []
        rows: list[tuple[NextToken, ...]] = [()] * first
        target, is_kept = self.tokenizer.target, T * V <= MAX_LOGITS
        for start in range(first, T, size):
            part_NV = head(x_1TD[:, start : start + size])[0].float()
            rows += candidates_of(part_NV, target)
            if self.unablated_1TD is not None:
                before_NV = head(self.unablated_1TD[:, start : start + size])[0].float()
                deltas.append(part_NV - before_NV)
            self.last_logits_V = part_NV[-1]
            logits.append(part_NV)
            yield
        self.candidates[name] = tuple(rows)
        shape = (T, V)
        self.arrays.keep_logits(f"{name}.logits", logits, shape, is_kept and first == 0)
        if self.unablated_1TD is not None:
            self.arrays.keep_logits(f"{name}.logits_delta", deltas, shape, is_kept and first == 0)

    def finished(self) -> Trace:
        """The trace of what was recorded."""
        config, source, arrays = self.model.config, self.source, self.arrays
        wiring = Wiring(arrays.shapes, config.norm.placement == "after")
        formulas = Formulas(config)
        stages = tuple(
            stage_of(name, shape, wiring, formulas, arrays.kept.get(name))
            for name, shape in arrays.shapes.items()
        )
        sampled = None
        if self.last_logits_V is not None:
            prompt = source.ids(self.stacks()[-1][1])
            tokenizer = self.tokenizer.target
            sampled = sample_next(self.last_logits_V, tokenizer, self.sampling, prompt)
        notes = [*source.notes, *weight_notes(self.model), *arrays.notes(self.source.num_tokens)]
        if any(value > TOLERANCE for value in arrays.check.values()):
            notes.append("the two computations of the weights differ by more than 0.001: see check")
        is_reduced = arrays.form != "inline"
        return Trace(
            id=f"t_{secrets.token_hex(6)}",
            model=trace_model(self.model, self.name),
            text=source.text,
            target=source.target,
            tokens=source.tokens,
            words=source.words,
            stages=stages,
            arrays=arrays.kept,
            candidates=self.candidates,
            limits=TraceLimits(source.num_tokens, is_reduced, arrays.form, tuple(notes)),
            check=arrays.check,
            sampled=sampled,
            ablated=tuple(self.ablated),
            detail=self.detail,
            source=StoredRows(
                self.model, self.passes, self.final, self.tokenizer, self.unablated_1TD
            ),
        )


def stack_of(model: AnyModel, name: str) -> Stack:
    stack = getattr(model, name)
    assert isinstance(stack, Stack), f"{name} is not a stack"
    return stack


def angles(position: Rotary, num_tokens: int) -> Array:
    """Angle of each pair at each position, [token, pair]; sizes of scaling included."""
    config = position.config
    frequencies = inv_freq(config.scaling, config.base, position.size, num_tokens)
    positions_T = torch.arange(num_tokens, device=frequencies.device).float()
    values: Array = (positions_T[:, None] * frequencies).cpu().numpy()
    return values


def stage_of(
    name: str, shape: tuple[int, ...], wiring: Wiring, formulas: Formulas, values: Array | None
) -> Stage:
    """The stage of a name, with its statistics if its values are kept."""
    kind, stats = kind_of(name), None
    if values is not None and values.size:
        finite = values[np.isfinite(values)]
        if finite.size:
            stats = {
                "min": float(finite.min()),
                "max": float(finite.max()),
                "mean": float(finite.mean(dtype=np.float64)),
            }
    inputs = wiring.inputs(name)
    is_kept = values is not None
    return Stage(name, kind.op, shape, kind.axes, formulas.formula(name), inputs, stats, is_kept)
