"""Records the parts of one layer: x_1TD -> the layer's output, stages into StageArrays.

Each part (attention, cross-attention, feed-forward) runs in blocks of rows; the rows of a stage are
joined once the part is complete. After the hooked pass of an attention layer, its q, k, scores,
mask and weights are computed from its input; the largest difference between these weights and the
hooked ones is kept in `check`, and so is that between weights times v and the hooked heads.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.look.rankings import rollout_step
from weft.look.stack_pass import StackPass, num_weights
from weft.look.stages import kind_of
from weft.look.sublayer_stages import attention_of, latent_rows, projected_keys
from weft.look.taps import Values
from weft.look.trace_data import Array, Form
from weft.nn.attention.layer import Attention

HEADED = ("q", "q_projected", "k", "k_projected", "v", "heads")
"""[1, rows, heads, size] of a layer is [heads, rows, size] in a trace."""
PAIRED = ("weights", "scores", "bias")
"""[1, heads, queries, keys]."""
KEYED = ("k", "k_projected", "v", "c_kv", "k_rope")
"""Stages with one row per key."""
ORDER = (
    *("norm", "q_projected", "k_projected", "c_kv", "k_rope", "q", "k", "v", "bias", "scores"),
    *("mask", "weights", "heads", "gate", "up", "hidden", "experts", "expert_weights"),
    *("expert_out", "out", "norm_out", "residual", "output"),
)
"""The order of the computation; with the norm after the sum, `norm` is the last."""
ALL = ("*",)
MEAN_BLOCKS = 32
MEAN_ROWS, MAX_SMALL_HEADS = 128, 64
"""Rows whose weights have block means in a long text, and blocks of keys; half as many in a model
with more heads."""
ROWS_PER_UNIT = 16
WEIGHTS_VS_HOOK = "weights_explicit_vs_hooked_max_abs"
HEADS_VS_HOOK = "heads_explicit_vs_hooked_max_abs"


def to_array(name: str, x: Tensor) -> Array:
    """The values of a stage in the order of its axes, float32. `name`: the end of its name."""
    x = x[0]
    if name in HEADED:
        x = x.transpose(0, 1)
    values: Array = x.float().cpu().contiguous().numpy()
    return values


class StageArrays:
    """What a recording keeps: shapes of all stages, and arrays of those that are kept."""

    def __init__(self, form: Form) -> None:
        self.form: Form = form
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kept: dict[str, Array] = {}
        self.check: dict[str, float] = {}

    def keep(self, name: str, values: Array) -> None:
        """Keep the values of a stage."""
        self.shapes[name] = values.shape
        self.kept[name] = values

    def keep_logits(
        self, name: str, parts: Sequence[Tensor], shape: tuple[int, int], is_kept: bool
    ) -> None:
        self.shapes[name] = shape
        if is_kept:
            self.kept[name] = torch.cat(list(parts)).cpu().numpy()

    def agree(self, name: str, a: Tensor, b: Tensor) -> None:
        """Note the largest difference of two computations of the same values."""
        difference = float((a.float() - b.float()).abs().max()) if a.numel() else 0.0
        self.check[name] = max(self.check.get(name, 0.0), difference)

    def notes(self, num_tokens: int) -> list[str]:
        """What is left out, in sentences."""
        if self.form == "inline":
            return []
        if self.form == "thumbnails":
            return [
                f"reduced: {num_tokens} tokens. Maps are block means; exact values of a head or a "
                "row are computed when they are asked for."
            ]
        return [
            f"reduced: {num_tokens} tokens. Maps are block means of some rows over the keys; exact "
            "rows are computed on request."
        ]


class PartRecorder:
    """Runs one layer of a pass."""

    def __init__(self, one: StackPass, layer: int, arrays: StageArrays) -> None:
        self.one, self.layer, self.arrays = one, layer, arrays
        self.block = one.stack.layers[layer]

    def record(self, x_1TD: Tensor) -> Generator[None, None, Tensor]:
        """The layer's output; its stages are kept in `arrays`."""
        for part in self.one.parts(self.block):
            if part == "feedforward":
                x_1TD = yield from self.record_feedforward(x_1TD)
            else:
                x_1TD = yield from self.record_attention(part, x_1TD)
        self.keep(f"{self.one.name}.{self.layer}", {"output": x_1TD})
        return x_1TD

    def plain(self, x_1TD: Tensor) -> Generator[None, None, Tensor]:
        """The layer's output, without recording."""
        for part in self.one.parts(self.block):
            x_1TD, _ = yield from self.run(part, x_1TD, has_weights=False, collected=())
        return x_1TD

    def record_feedforward(self, x_1TD: Tensor) -> Generator[None, None, Tensor]:
        collected = ALL if self.is_inline else ()
        y_1TD, values = yield from self.run("feedforward", x_1TD, False, collected)
        self.keep(self.prefix("feedforward"), values)
        return y_1TD

    def record_attention(self, part: str, x_1TD: Tensor) -> Generator[None, None, Tensor]:
        """Keep the stages of an attention layer; its scores are computed from its input."""
        layer, _ = attention_of(self.block, part)
        collected = ALL if self.is_inline else ("input", "weights")
        has_weights = self.arrays.form != "keys"
        y_1TD, values = yield from self.run(part, x_1TD, has_weights, collected)
        hooked, x_in_1TD = values.pop("weights", None), values.pop("input")
        rows = [slice(0, self.one.num_tokens)] if self.is_inline else [self.last_row]
        explicit = self.explicit(part, layer, x_in_1TD, rows[0])
        yield
        self.keep(self.prefix(part), explicit | values)
        self.compare(part, layer, explicit, values, hooked, rows[0])
        if hooked is not None and part == "attention":
            weights_HTT = to_array("weights", hooked)
            self.one.rollout_TT = rollout_step(self.one.rollout_TT, weights_HTT)
        if not self.is_inline:
            yield from self.keep_means(part, layer, x_in_1TD, hooked)
        yield
        return y_1TD

    @property
    def is_inline(self) -> bool:
        return self.arrays.form == "inline"

    @property
    def last_row(self) -> slice:
        return slice(self.one.num_tokens - 1, self.one.num_tokens)

    def prefix(self, part: str) -> str:
        return f"{self.one.name}.{self.layer}.{part}"

    def run(
        self, part: str, x_1TD: Tensor, has_weights: bool, collected: Sequence[str]
    ) -> Generator[None, None, tuple[Tensor, Values]]:
        """(output, stages) of a part, one block of rows per unit. `collected`: names of the stages
        of which all rows are returned; of the others those of the last block."""
        outputs, pieces = [], PieceLists()
        blocks = self.one.blocks_of_rows(self.num_weights(part))
        if part == "attention":
            yield from self.one.prefill_keys(self.layer, x_1TD, blocks)
        for rows in blocks:
            y_1TD, values = self.one.run_part(self.layer, part, x_1TD[:, rows], rows, has_weights)
            outputs.append(y_1TD)
            pieces.add(values, collected)
            yield
        return torch.cat(outputs, dim=1), pieces.joined()

    def num_weights(self, part: str) -> int:
        """Of the products of one row."""
        if part == "feedforward":
            return num_weights(self.block.feedforward)
        return num_weights(attention_of(self.block, part)[0])

    def keep(self, prefix: str, values: Values) -> None:
        """Keep stages, or their shapes if this form keeps no arrays."""
        is_norm_after = self.block.attention_path.placement == "after"
        for name, value in in_order(values, is_norm_after).items():
            if self.is_inline:
                self.arrays.keep(f"{prefix}.{name}", to_array(name, value))
            else:
                self.arrays.shapes[f"{prefix}.{name}"] = self.full_shape(prefix, name, value)

    def full_shape(self, prefix: str, name: str, x: Tensor) -> tuple[int, ...]:
        """The shape of a stage for all rows, from its values for some rows."""
        shape = list(x.transpose(1, 2).shape[1:] if name in HEADED else x.shape[1:])
        axes = kind_of(f"{prefix}.{name}").axes
        for axis in ("query", "token"):
            if axis in axes:
                shape[axes.index(axis)] = self.one.num_tokens
        return tuple(shape)

    def explicit(self, part: str, layer: Attention, x_1TD: Tensor, rows: slice) -> Values:
        """The stages from the layer's input to its weights, of some queries over all keys."""
        values = self.one.explicit(self.layer, part, x_1TD[:, rows], rows)
        ctx, kv = self.one.context(self.block, rows), self.one.rows_of_keys(layer)
        source_1SD = x_1TD
        if layer.slot.is_cross:
            assert ctx.memory_BSD is not None, "cross-attention without a source"
            source_1SD = ctx.memory_BSD
        return values | latent_rows(layer, kv) | projected_keys(layer, source_1SD, ctx)

    def compare(
        self,
        part: str,
        layer: Attention,
        explicit: Values,
        values: Values,
        hooked: Tensor | None,
        rows: slice,
    ) -> None:
        """The explicit weights with the hooked ones, and their sums of values with the heads."""
        weights_1HTS = explicit["weights"]
        if hooked is not None:
            self.arrays.agree(WEIGHTS_VS_HOOK, weights_1HTS, hooked[:, :, rows])
        ablated = set(self.one.ablated.get(self.prefix(part), ()))
        heads = [h for h in range(layer.config.num_heads) if h not in ablated]
        sums_1THU = weighted_values(weights_1HTS, explicit["v"])
        num_rows = sums_1THU.shape[1]
        hooked_1THU = values["heads"][:, -num_rows:]
        self.arrays.agree(HEADS_VS_HOOK, sums_1THU[:, :, heads], hooked_1THU[:, :, heads])

    def keep_means(
        self, part: str, layer: Attention, x_1TD: Tensor, hooked: Tensor | None
    ) -> Generator[None, None, None]:
        """Block means of the weights: of all rows, or of some of them."""
        name = f"mean({self.prefix(part)}.weights)"
        if hooked is not None:
            self.arrays.kept[name] = to_array("weights", block_means(hooked, MEAN_BLOCKS))
            return
        number = MEAN_ROWS if self.is_small else MEAN_ROWS // 2
        rows = sampled_rows(self.one.num_tokens, number)
        means: list[Tensor] = []
        for start in range(0, len(rows), ROWS_PER_UNIT):
            some = rows[start : start + ROWS_PER_UNIT]
            values = self.one.explicit(self.layer, part, x_1TD[:, some], some)
            means.append(key_means(values["weights"], number))
            yield
        self.arrays.kept[name] = to_array("weights", torch.cat(means, dim=2))

    @property
    def is_small(self) -> bool:
        """Whether the block means of all heads are a few MB."""
        stack = self.one.stack
        return stack.num_layers * stack.config.attention.num_heads <= MAX_SMALL_HEADS


class PieceLists:
    """The values of the blocks of rows of one part."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Tensor]] = {}

    def add(self, values: Values, collected: Sequence[str]) -> None:
        for name, value in values.items():
            if name in collected or collected is ALL:
                self.pieces.setdefault(name, []).append(value)
            else:
                self.pieces[name] = [value]

    def joined(self) -> Values:
        return {name: join(name, parts) for name, parts in self.pieces.items()}


def join(name: str, parts: Sequence[Tensor]) -> Tensor:
    """Blocks of rows as one tensor. Those of weights have as many keys as there were so far."""
    if len(parts) == 1:
        return parts[0]
    if name not in PAIRED:
        return torch.cat(list(parts), dim=1)
    keys = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[-1])) for part in parts], dim=2)


def in_order(values: Values, is_norm_after: bool) -> Values:
    """The stages of a part in the order of the computation."""
    order = (*ORDER[1:], ORDER[0]) if is_norm_after else ORDER
    return {name: values[name] for name in order if name in values}


def weighted_values(weights_BHTS: Tensor, v_BSKU: Tensor) -> Tensor:
    """Sums of values, out_BTHU."""
    weights_BKGTS = weights_BHTS.unflatten(1, (v_BSKU.shape[2], -1))
    sums_BTKGU = torch.einsum("bkgts,bsku->btkgu", weights_BKGTS, v_BSKU.to(weights_BHTS.dtype))
    return sums_BTKGU.flatten(2, 3)


def sampled_rows(num_tokens: int, number: int) -> list[int]:
    """Rows in the middle of equal blocks."""
    number = min(number, num_tokens)
    return [(2 * i + 1) * num_tokens // (2 * number) for i in range(number)]


def block_means(weights_BHTS: Tensor, number: int) -> Tensor:
    """Means of at most `number` x `number` blocks, the larger blocks first."""
    return key_means(key_means(weights_BHTS, number).transpose(2, 3), number).transpose(2, 3)


def key_means(weights_BHTS: Tensor, number: int) -> Tensor:
    """Means of at most `number` blocks of keys: block of key s is s * number // S."""
    S = weights_BHTS.shape[-1]
    number = min(number, S)
    block_S = torch.arange(S, device=weights_BHTS.device) * number // S
    sizes = torch.bincount(block_S, minlength=number)
    sums = weights_BHTS.new_zeros(*weights_BHTS.shape[:-1], number)
    return sums.index_add_(3, block_S, weights_BHTS) / sizes
