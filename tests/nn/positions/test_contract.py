"""Every entry of POSITIONS keeps the contract of base.py: shapes, dtypes, tiles, caches, tables."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.config import Config
from weft.core.errors import ConfigError
from weft.nn.positions.base import Position
from weft.nn.positions.config import POSITION_CONFIGS, PositionConfig, PositionShape
from weft.nn.positions.encodings import POSITIONS, build_position

B, T, S, H, C, D, L = 2, 5, 7, 3, 8, 24, 2
SHAPE = PositionShape(
    width=D, num_heads=H, head_size=C, rotary_size=C, num_layers=L, max_len=640, is_causal=True
)
RELATIVE = ["shaw", "bucketed", "alibi"]


class Holder(Config):
    position: PositionConfig


def build(kind: str, is_causal: bool = True, **settings: Any) -> Position:
    torch.manual_seed(0)
    config = Holder.from_dict({"position": {"kind": kind, **settings}}).position
    return build_position(config, replace(SHAPE, is_causal=is_causal))


def whole_bias(position: Position, q_BTHC: Tensor, start: int, num_keys: int) -> Tensor:
    bias = position.bias(1, q_BTHC)
    assert bias is not None
    t_T = torch.arange(q_BTHC.shape[1])
    return bias.at(t_T, (start + t_T)[None], torch.arange(num_keys), *bias.tensors())


def test_every_kind_has_its_settings() -> None:
    assert tuple(position.config_type for position in POSITIONS.values()) == POSITION_CONFIGS
    kinds = [config.model_fields["kind"].default for config in POSITION_CONFIGS]
    assert kinds == list(POSITIONS)


@pytest.mark.parametrize("kind", POSITIONS)
def test_shapes_and_dtypes_are_kept(kind: str) -> None:
    position, positions_1T = build(kind), torch.arange(T)[None]
    x_BTD, x_BTHO = torch.randn(B, T, D), torch.randn(B, T, H, C)
    assert position.add(x_BTD, positions_1T).shape == (B, T, D)
    assert position.rotate_queries(x_BTHO, positions_1T, T).shape == (B, T, H, C)
    assert position.rotate_queries(x_BTHO.bfloat16(), positions_1T, T).dtype == torch.bfloat16
    assert position.rotate_queries(x_BTHO.double(), positions_1T, T).dtype == torch.float64
    bias = position.bias(0, x_BTHO)
    assert (bias is not None) == (kind in RELATIVE)


@pytest.mark.parametrize("kind", POSITIONS)
def test_keys_of_the_built_in_kinds_are_encoded_as_queries(kind: str) -> None:
    position, x_BTHO, positions_1T = build(kind), torch.randn(B, T, H, C), torch.arange(T)[None]
    keys = position.rotate_keys(x_BTHO, positions_1T, T)
    assert torch.equal(keys, position.rotate_queries(x_BTHO, positions_1T, T))
    assert torch.equal(keys, x_BTHO) == (kind != "rotary")


@pytest.mark.parametrize("kind", POSITIONS)
def test_added_rows_are_those_that_add_adds(kind: str) -> None:
    position, positions_1T = build(kind), torch.tensor([[0, 3, 1, 9, 300]])
    x_BTD, rows_MD = torch.randn(B, T, D), position.position_rows(301)
    if rows_MD is None:
        assert torch.equal(position.add(x_BTD, positions_1T), x_BTD)
    else:
        assert len(rows_MD) >= 301 and rows_MD.dtype == torch.float32
        assert torch.equal(position.add(x_BTD, positions_1T), x_BTD + rows_MD[positions_1T[0]])
    assert kind != "learned" or position.position_rows(641) is None


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_may_differ_by_row(kind: str) -> None:
    position = build(kind)
    positions_BT = torch.tensor([[0, 1, 2, 3, 4], [9, 10, 11, 12, 13]])
    x_BTD, x_BTHO = torch.randn(B, T, D), torch.randn(B, T, H, C)
    added, rotated = (
        position.add(x_BTD, positions_BT),
        position.rotate_queries(x_BTHO, positions_BT, 14),
    )
    for b in range(B):
        row = slice(b, b + 1)
        assert torch.equal(added[row], position.add(x_BTD[row], positions_BT[row]))
        assert torch.equal(
            rotated[row], position.rotate_queries(x_BTHO[row], positions_BT[row], 14)
        )


@pytest.mark.parametrize("kind", RELATIVE)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_tile_of_the_bias_is_a_part_of_the_whole(kind: str, is_causal: bool) -> None:
    position, q_BTHC = build(kind, is_causal), torch.randn(B, T, H, C)
    whole = whole_bias(position, q_BTHC, 2, S)
    assert whole.shape in ((B, H, T, S), (1, H, T, S))
    bias = position.bias(1, q_BTHC)
    assert bias is not None
    t_T, k_S = torch.tensor([1, 3]), torch.tensor([4, 0, 6])
    tile = bias.at(t_T, (2 + t_T)[None], k_S, *bias.tensors())
    assert torch.equal(tile, whole[:, :, t_T][:, :, :, k_S])


@pytest.mark.parametrize("kind", RELATIVE)
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_bias_of_a_cached_step_is_that_of_the_whole_text(kind: str, is_causal: bool) -> None:
    position, q_BTHC = build(kind, is_causal), torch.randn(B, S, H, C)
    whole = whole_bias(position, q_BTHC, 0, S)
    step = whole_bias(position, q_BTHC[:, S - 1 :], S - 1, S)
    torch.testing.assert_close(step, whole[:, :, S - 1 :], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RELATIVE)
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_bias_depends_on_the_distance_alone(kind: str, is_causal: bool) -> None:
    bias = build(kind, is_causal).bias(0, torch.randn(B, T, H, C))
    assert bias is not None
    t_T, shift = torch.arange(T), 1000
    here = bias.at(t_T, t_T[None], torch.arange(S))
    there = bias.at(t_T, (t_T + shift)[None], torch.arange(S) + shift)
    assert torch.equal(here, there)


@pytest.mark.parametrize("kind", RELATIVE)
def test_slots_may_differ_by_row(kind: str) -> None:
    bias = build(kind).bias(0, torch.randn(B, T, H, C))
    assert bias is not None
    t_T, k_S = torch.arange(T), torch.arange(S)
    q_BT = torch.stack((t_T + 2, t_T + 1))
    both = bias.at(t_T, q_BT, k_S)
    for b in range(B):
        alone = bias.at(t_T, q_BT[b : b + 1], k_S)
        assert torch.equal(both[b], alone[min(b, alone.shape[0] - 1)])


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_a_copy_works_by_itself(kind: str, copied: Any) -> None:
    position, x_BTD = build(kind), torch.randn(B, T, D)
    before = position.add(x_BTD, torch.arange(T)[None])
    position.rotate_queries(x_BTD.unflatten(-1, (H, C)), torch.arange(T)[None], T)
    assert torch.equal(copied(position).add(x_BTD, torch.arange(T)[None]), before)


@pytest.mark.parametrize("kind", POSITIONS)
def test_only_learned_tables_are_saved(kind: str) -> None:
    position = build(kind)
    position.rotate_queries(torch.randn(B, T, H, C), torch.arange(T)[None], T)
    names = {"learned": ["table_MD"], "shaw": ["table_LMC"], "bucketed": ["table_MH"]}
    assert list(position.state_dict()) == names.get(kind, [])


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_module_built_without_memory_works_once_its_weights_are_there(kind: str) -> None:
    real = build(kind)
    with torch.device("meta"):
        empty = build(kind)
    empty.load_state_dict(real.state_dict(), assign=True)
    x_BTD, positions_1T = torch.randn(B, T, D), torch.arange(T)[None]
    assert torch.equal(empty.add(x_BTD, positions_1T), real.add(x_BTD, positions_1T))
    x_BTHO = torch.randn(B, T, H, C)
    assert torch.equal(
        empty.rotate_queries(x_BTHO, positions_1T, T), real.rotate_queries(x_BTHO, positions_1T, T)
    )
    if kind in RELATIVE:
        assert torch.equal(whole_bias(empty, x_BTHO, 0, S), whole_bias(real, x_BTHO, 0, S))


@pytest.mark.parametrize("kind", POSITIONS)
def test_training_works_after_inference_mode(kind: str) -> None:
    position, positions_1T = build(kind), torch.arange(T)[None]
    with torch.inference_mode():
        x_BTHO = torch.randn(B, T, H, C)
        position.add(x_BTHO.flatten(2), positions_1T)
        for x in (x_BTHO, x_BTHO.bfloat16()):
            position.rotate_queries(x, positions_1T + 0, T)
        if kind in RELATIVE:
            whole_bias(position, x_BTHO, 0, S)
    x_BTHO = torch.randn(B, T, H, C, requires_grad=True)
    y = position.rotate_queries(x_BTHO, positions_1T, T).sum()
    y = y + position.rotate_queries(x_BTHO.bfloat16(), positions_1T, T).sum()
    if kind in RELATIVE:
        y = y + whole_bias(position, x_BTHO, 0, S).sum()
    y.backward()
    assert x_BTHO.grad is not None and x_BTHO.grad.isfinite().all()


def test_the_settings_are_those_of_the_table() -> None:
    kinds = {name: Holder.from_dict({"position": {"kind": name}}).position for name in POSITIONS}
    assert {name: type(config) for name, config in kinds.items()} == {
        name: position.config_type for name, position in POSITIONS.items()
    }


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"position.kind is 'rotery'.*Did you mean 'rotary'"):
        build("rotery")


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"position.bases is not a setting. Did you mean 'base'"):
        build("rotary", bases=5.0)
