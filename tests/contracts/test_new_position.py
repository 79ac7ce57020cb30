"""A new position encoding is one class and one table entry. Defines three (by distance, contextual,
query scaling) and checks their results and which attention path computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from weft.cache.kv_store import ScratchKVCache
from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVView, PageLayout
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.models.transformer import Decoder
from weft.native import attention_kernels
from weft.native.library import native
from weft.nn.attention import paged_attention
from weft.nn.attention.base import AttentionContext, AttentionSlot
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.grouped_query import GroupedQueryAttention
from weft.nn.attention.heads import build_attention
from weft.nn.attention.kernels import dispatch, tiled
from weft.nn.attention.masks import Causal
from weft.nn.config import NormConfig
from weft.nn.positions.base import Bias, Position
from weft.nn.positions.config import PositionConfigBase, PositionShape, config_union
from weft.nn.positions.encodings import POSITIONS, build_position

H, K, C, D = 4, 2, 6, 24
LENGTHS = [5, 7]
PAGE_SIZE = 2


class LogDistanceConfig(PositionConfigBase):
    kind: Literal["log_distance"] = "log_distance"
    slope: float = 0.7


class LogDistance(Position):
    """bias(q, k) = -slope log(1 + |q - k|): depends only on the distance."""

    config_type = LogDistanceConfig

    def __init__(self, config: LogDistanceConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.slope, self.num_heads = config.slope, shape.num_heads

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias:
        return LogDistanceBias(self.slope, self.num_heads)


@dataclass(frozen=True)
class LogDistanceBias(Bias):
    slope: float
    num_heads: int
    by_distance = True

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        distance_BTS = (q_BT[:, :, None] - k_S).abs()
        bias_BTS = -self.slope * torch.log1p(distance_BTS.float())
        return bias_BTS[:, None].expand(-1, self.num_heads, -1, -1)


class ContextualConfig(PositionConfigBase):
    kind: Literal["contextual"] = "contextual"
    num_positions: int = 4


class Contextual(Position):
    """CoPE (Golovneva 2024): the position of a key is the sum of gates sigmoid(q . k) from the key
    to the query; bias(q, k) interpolates q . table between the two nearest positions."""

    config_type = ContextualConfig

    def __init__(self, config: ContextualConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.table_MC = nn.Parameter(torch.randn(config.num_positions, shape.head_size))

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias:
        return ContextualBias(q_BTHC @ self.table_MC.T.to(q_BTHC.dtype))


@dataclass(frozen=True)
class ContextualBias(Bias):
    scores_BTHM: Tensor

    def for_call(self, q_BTHC: Tensor, view: KVView, first: int = 0) -> Bias:
        B, T, H, _ = q_BTHC.shape
        k_BSHC = view.k_BSKC.repeat_interleave(H // view.k_BSKC.shape[2], dim=2)
        gates_BHTS = torch.einsum("bthc,bshc->bhts", q_BTHC, k_BSHC).sigmoid()
        slots_BT = torch.as_tensor(view.start).view(-1, 1) + torch.arange(T)
        is_before_BTS = torch.arange(k_BSHC.shape[1]) <= slots_BT[:, :, None]
        gates_BHTS = gates_BHTS * is_before_BTS[:, None]
        scores_BHTM = self.scores_BTHM[:, first : first + T].transpose(1, 2)
        last = scores_BHTM.shape[-1] - 1
        position_BHTS = gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        low_BHTS = position_BHTS.floor()
        part_BHTS = position_BHTS - low_BHTS
        low, high = (scores_BHTM.gather(-1, x.long()) for x in (low_BHTS, position_BHTS.ceil()))
        return MatrixBias(low * (1 - part_BHTS) + high * part_BHTS)


@dataclass(frozen=True)
class MatrixBias(Bias):
    bias_BHTS: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.bias_BHTS,)

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        (bias_BHTS,) = tensors or self.tensors()
        return bias_BHTS[:, :, t_T][..., k_S]


class QueryScalingConfig(PositionConfigBase):
    kind: Literal["query_scaling"] = "query_scaling"


class QueryScaling(Position):
    """Queries times 1 + log(1 + position), keys unchanged (Llama 4's temperature tuning)."""

    config_type = QueryScalingConfig

    def rotate_queries(self, q_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        return q_BTHO * (1 + torch.log1p(positions_BT.to(q_BTHO.dtype)))[:, :, None, None]


NEW = {"log_distance": LogDistance, "contextual": Contextual, "query_scaling": QueryScaling}
ALL = {**POSITIONS, **NEW}


class NewModelConfig(ModelConfig):
    """ModelConfig whose position may also be one of the new kinds."""

    position: config_union(one.config_type for one in ALL.values())  # type: ignore[valid-type]


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def packed() -> tuple[Tensor, ScratchKVCache]:
    """Positions of two sequences in one packed row, and pages for them."""
    first_pages = -(-LENGTHS[0] // PAGE_SIZE)
    table_BP = torch.zeros(2, -(-LENGTHS[1] // PAGE_SIZE), dtype=torch.int32)
    table_BP[0, :first_pages] = torch.arange(1, 1 + first_pages)
    table_BP[1] = torch.arange(1 + first_pages, 1 + first_pages + table_BP.shape[1])
    layout = PageLayout(int32(0, LENGTHS[0], sum(LENGTHS)), int32(0, 0), int32(*LENGTHS), table_BP)
    positions = [torch.arange(length) for length in LENGTHS]
    slots = [
        table_BP[b, p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for b, p in enumerate(positions)
    ]
    return torch.cat(positions)[None], ScratchKVCache(layout, torch.cat(slots).long(), PAGE_SIZE)


def decoder(kind: str, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setitem(POSITIONS, kind, NEW[kind])
    attention = {"kind": "gqa", "num_heads": H, "num_kv_heads": K}
    sizes = {"vocab_size": 29, "width": D, "num_layers": 2, "max_len": 64, "dropout": 0.0}
    config = NewModelConfig(kind="decoder", attention=attention, position={"kind": kind}, **sizes)
    model = build_model(config).eval()
    assert isinstance(model, Decoder) and type(model.decoder.position) is NEW[kind]
    return model


@pytest.mark.parametrize("kind", NEW)
def test_packed_over_pages_equals_each_sequence_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (positions_1N, cache) = decoder(kind, monkeypatch), packed()
    ids_1N = torch.randint(0, 29, positions_1N.shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        x_1ND = model.decoder(ForwardBatch(ids_1N, position_ids_BT=positions_1N, cache=cache))
        alone = [model.decoder(ForwardBatch(ids_1T)) for ids_1T in ids_1N.split(LENGTHS, dim=1)]
    torch.testing.assert_close(x_1ND, torch.cat(alone, dim=1), atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(native() is None, reason="needs the compiled kernels")
@pytest.mark.parametrize(("kind", "is_compiled"), [("log_distance", True), ("contextual", False)])
def test_a_bias_by_distance_is_computed_by_the_compiled_kernel_from_a_table(
    kind: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like ALiBi; any other bias is computed query by query."""
    tables, each_query = [], []
    compiled, by_query = attention_kernels.paged_attention, paged_attention.attend_each_query

    def run_compiled(q_NHC, view, params):  # type: ignore[no-untyped-def]
        result = compiled(q_NHC, view, params)
        assert result is not None, "the compiled kernel rejected the call"
        tables.append(params.bias_HM)
        return result

    def run_by_query(call):  # type: ignore[no-untyped-def]
        each_query.append(call)
        return by_query(call)

    monkeypatch.setattr(attention_kernels, "paged_attention", run_compiled)
    monkeypatch.setattr(paged_attention, "attend_each_query", run_by_query)
    model, (positions_1N, cache) = decoder(kind, monkeypatch), packed()
    with torch.inference_mode():
        model.decoder(ForwardBatch(positions_1N, position_ids_BT=positions_1N, cache=cache))
    num_layers = model.decoder.num_layers
    assert (len(tables), len(each_query)) == ((num_layers, 0) if is_compiled else (0, num_layers))
    if is_compiled:
        longest = cache.page_layout.table_BP.shape[1] * PAGE_SIZE
        expected_M = -0.7 * torch.log1p(torch.arange(longest).float())
        assert all(torch.equal(table_HM, expected_M.expand(H, -1)) for table_HM in tables)


def layer_and_context(kind: str, kernel: str) -> tuple[GroupedQueryAttention, AttentionContext]:
    shape = PositionShape(D, H, C, C, num_layers=1, max_len=64, is_causal=True)
    config = AttentionConfig(kind="gqa", num_heads=H, num_kv_heads=K, kernel=kernel)
    layer = build_attention(config, D, NormConfig(), AttentionSlot()).double()
    assert isinstance(layer, GroupedQueryAttention)
    position = ALL[kind](ALL[kind].config_type(), shape).double()
    T = LENGTHS[1]
    positions_1T = torch.arange(T)[None]
    return layer, AttentionContext(position, positions_1T, 0, T, Causal(), Causal())


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["reference", "flash", "sparse", "auto"])
def test_a_contextual_encoding_equals_the_formula(kernel: str) -> None:
    torch.manual_seed(0)
    layer, ctx = layer_and_context("contextual", kernel)
    x_BTD = torch.randn(2, LENGTHS[1], D, dtype=torch.float64)
    expected = torch.stack([layer.out(contextual_by_hand(layer, ctx, x_TD)) for x_TD in x_BTD])
    torch.testing.assert_close(layer(x_BTD, ctx), expected, atol=1e-10, rtol=1e-10)


def contextual_by_hand(layer: GroupedQueryAttention, ctx: AttentionContext, x_TD: Tensor) -> Tensor:
    """[T, H * C], one query, head and key at a time."""
    q, k, v = layer.qkv(x_TD).unflatten(-1, (-1, C)).split((H, K, K), dim=1)
    table_MC = ctx.position.table_MC
    rows = []
    for t in range(len(x_TD)):
        heads = []
        for h in range(H):
            group = h // (H // K)
            dots = [q[t, h] @ k[s, group] for s in range(t + 1)]
            scores = []
            for s in range(t + 1):
                gates = [1 / (1 + torch.exp(-dots[i])) for i in range(s, t + 1)]
                position = min(float(sum(gates)), len(table_MC) - 1)
                low, high = math.floor(position), math.ceil(position)
                part = position - low
                row_C = (1 - part) * table_MC[low] + part * table_MC[high]
                scores.append(dots[s] / C**0.5 + q[t, h] @ row_C)
            weights = torch.stack(scores).softmax(0)
            heads.append(weights @ v[: t + 1, group])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def test_gradients_reach_the_keys_through_a_contextual_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference kernel and the tiled kernel have equal gradients."""
    monkeypatch.setattr(dispatch, "MAX_STORED_SCORES", 0)
    monkeypatch.setattr(tiled, "TILE", 3)
    grads = []
    for kernel in ("reference", "flash"):
        torch.manual_seed(1)
        layer, ctx = layer_and_context("contextual", kernel)
        x_BTD = torch.randn(2, LENGTHS[1], D, dtype=torch.float64)
        layer(x_BTD, ctx).square().sum().backward()
        grads.append([layer.qkv.weight.grad, ctx.position.table_MC.grad])
    for one, other in zip(*grads, strict=True):
        assert one is not None and one.abs().sum() > 0
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_query_scaling_changes_only_queries() -> None:
    torch.manual_seed(0)
    layer, ctx = layer_and_context("query_scaling", "reference")
    x_BTD = torch.randn(2, LENGTHS[1], D, dtype=torch.float64)
    q, k, v = layer.qkv(x_BTD).unflatten(-1, (-1, C)).split((H, K, K), dim=2)
    factor_T = 1 + torch.log1p(torch.arange(LENGTHS[1]).double())
    heads_first = (x.transpose(1, 2) for x in (q * factor_T[:, None, None], k, v))
    out_BHTC = nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=True, enable_gqa=True
    )
    expected = layer.out(out_BHTC.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x_BTD, ctx), expected, atol=1e-10, rtol=1e-10)


def test_a_new_kind_is_built_from_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POSITIONS, "log_distance", LogDistance)
    config = NewModelConfig(position={"kind": "log_distance", "slope": 2.0}).position
    shape = PositionShape(D, H, C, C, num_layers=1, max_len=64, is_causal=True)
    position = build_position(config, shape)
    assert isinstance(position, LogDistance) and position.slope == 2.0
