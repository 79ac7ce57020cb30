"""Packed modules: one copy of the numbers, the exact weight where it is asked for, and the same
Parameter objects before, meanwhile and after."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.native.test_packed import blocks
from weft.core.errors import UsageError
from weft.native import packed
from weft.native.packed import PackedMatrix, pack, pack_blocks
from weft.nn.linear import Linear
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import (
    PackedEmbedding,
    PackedLinear,
    adopt_matrices,
    pack_model,
    packed_matrices,
    packed_modules,
    unpack_model,
    use_int8_activations,
)


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the library and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(packed, "native", lambda: None)
    return request.param


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


class Tied(nn.Module):
    """Words and a product with their table, as in most models."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(37, 32)
        self.inner = nn.Linear(32, 32)
        self.head = Linear(32, 37, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.words(ids)))


def tied() -> tuple[Tied, Tensor]:
    """Such a model, and its table."""
    model = Tied().eval()
    return model, model.words.weight.detach().clone()


def quantized() -> PackedMatrix:
    quants = torch.randint(0, 16, (37, 32)).to(torch.int8)
    return pack_blocks(quants, torch.rand(37, 1).half(), -torch.rand(37, 1).half())


def packed_linear(layer: nn.Linear) -> PackedLinear:
    found = pack_model(layer)
    assert isinstance(found, PackedLinear)
    return found


def test_a_packed_layer_gives_what_the_plain_one_gives(way: str) -> None:
    layer, x = Linear(24, 10), torch.randn(2, 5, 24)
    plain = layer(x)
    replaced = packed_linear(layer)
    torch.testing.assert_close(replaced(x), plain)
    assert replaced(x, slice(3, 8)).equal(replaced(x)[..., 3:8])
    assert unpack_model(replaced) is layer
    assert layer(x).equal(plain)
    assert layer(x, slice(3, 8)).shape == (2, 5, 5)


def test_the_numbers_are_in_one_place() -> None:
    layer = Linear(24, 10)
    weight, before = layer.weight, layer.weight.detach().clone()
    replaced = packed_linear(layer)
    assert replaced.weight is weight and weight.shape == (10, 24) and weight.numel() == 240
    assert weight.untyped_storage().nbytes() == 4
    assert replaced.exact().equal(before)
    unpack_model(replaced)
    assert layer.weight is weight and weight.equal(before)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
def test_the_smallest_weights_are_freed_and_come_back(shape: tuple[int, int]) -> None:
    layer = Linear(*shape)
    before = layer.weight.detach().clone()
    replaced = packed_linear(layer)
    assert is_memoryless(layer.weight)
    unpack_model(replaced)
    assert layer.weight.equal(before) and not is_memoryless(layer.weight)


def test_a_mistaken_read_shows_and_a_mistaken_write_is_refused() -> None:
    layer = packed_linear(Linear(4, 3))
    assert (torch.ones(2, 4) @ layer.weight.T).isnan().all()
    with pytest.raises(RuntimeError, match="more than one element"):
        layer.weight.mul_(2)
    layer.weight.fill_(0.5)
    for asks in (layer.exact, layer.restore, layer.state_dict):
        with pytest.raises(AssertionError, match="0.5 was written into a packed weight"):
            asks()


def test_without_the_library_nothing_is_freed_or_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "native", lambda: None)
    model, table = tied()
    address = model.words.weight.data_ptr()
    pack_model(model)
    assert model.head.matrices["weight"].data.data_ptr() == address
    assert not any(is_memoryless(weight) for weight in model.parameters())
    assert model.words(torch.arange(37)).equal(table)


def test_gradients_take_the_exact_weight() -> None:
    layer, x = Linear(24, 10), torch.randn(3, 24)
    with torch.enable_grad():
        layer(x).square().sum().backward()
        expected, layer.weight.grad = layer.weight.grad, None
        replaced = packed_linear(layer)
        replaced(x).square().sum().backward()
    assert replaced.weight.grad is not None and replaced.weight.grad.equal(expected)
    assert is_memoryless(layer.weight), "the exact weight is made for the call alone"


@pytest.mark.parametrize(
    ("change", "action"),
    [
        (lambda model: model.train(), "trained"),
        (lambda model: model.double(), "moved or cast"),
        (lambda model: model.to("cpu"), "moved or cast"),
        (lambda model: model.load_state_dict(Tied().state_dict()), "loaded into"),
    ],
)
def test_training_moving_and_loading_are_refused(change: Callable, action: str) -> None:
    model, table = tied()
    pack_model(model)
    with pytest.raises(UsageError, match=f"cannot be {action}. Call weft.unpack_model"):
        change(model)
    model.eval()
    assert model.head.exact().equal(table)
    change(unpack_model(model))


def test_unpacked_in_inference_mode_a_layer_can_be_trained() -> None:
    layer, x = Linear(4, 3), torch.randn(2, 4)
    with torch.inference_mode():
        unpack_model(packed_linear(layer)).train()
    with torch.enable_grad():
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_an_optimizer_made_before_goes_on_with_the_same_weights() -> None:
    model, table = tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts, names = list(model.modules()), [name for name, _ in model.named_parameters()]
    unpack_model(pack_model(model))
    assert list(model.modules()) == parts
    assert [name for name, _ in model.named_parameters()] == names
    assert model.words.weight.equal(table)
    with torch.enable_grad():
        model.train()(torch.arange(5)).square().sum().backward()
    optimizer.step()
    assert model.words.weight is model.head.weight
    assert model.words.weight.isfinite().all() and not model.words.weight.equal(table)


def test_hooks_stay_through_packing_and_unpacking() -> None:
    model, _ = tied()
    seen: list[str] = []
    model.inner.register_forward_hook(lambda *_: seen.append("before"))
    pack_model(model)
    hook = model.head.register_forward_hook(lambda *_: seen.append("packed"))
    model(torch.arange(3))
    assert seen == ["before", "packed"]
    unpack_model(model)
    model(torch.arange(3))
    assert seen == ["before", "packed"] * 2
    hook.remove()
    model(torch.arange(3))
    assert seen == ["before", "packed"] * 2 + ["before"]


def test_a_packed_model_is_saved_as_a_plain_one(way: str) -> None:
    model, _ = tied()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pack_model(model)
    state = model.state_dict()
    assert list(state) == list(expected)
    assert all(state[name].equal(expected[name]) for name in expected)
    assert model.state_dict(keep_vars=True)["head.weight"] is model.head.weight


def pickled(model: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(model))
    return found


def pack_as(model: Tied, kind: str) -> Tensor:
    """Pack a model, with a quantized table for q4; the table."""
    if kind == "q4":
        adopt_matrices(model, {id(model.words.weight): quantized()})
    pack_model(model)
    assert model.head.matrices["weight"].kind == kind
    return model.head.exact()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("kind", ["f32", "q4"])
def test_a_copy_is_packed_and_tied_and_independent(copied: Callable, kind: str) -> None:
    model, _ = tied()
    pack_as(model, kind)
    ids = torch.arange(37)
    expected, state = model(ids), model.state_dict()
    other = copied(model)
    unpack_model(model)
    model.head.weight.zero_()
    assert other(ids).equal(expected)
    assert other.words.weight is other.head.weight and is_memoryless(other.head.weight)
    assert other.words.matrices["weight"] is other.head.matrices["weight"]
    assert all(other.state_dict()[name].equal(tensor) for name, tensor in state.items())
    unpack_model(other)
    assert type(other.head) is Linear and other.words.weight is other.head.weight
    assert other.head.weight.equal(state["head.weight"])


def test_a_model_is_packed_and_unpacked_whole(way: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), Linear(6, 6), nn.Linear(6, 2)).eval()
    model[0].weight = model[2].weight
    x = torch.randn(4, 6)
    plain = model(x)
    assert pack_model(model) is model
    assert model[0].matrices["weight"] is model[2].matrices["weight"]
    torch.testing.assert_close(model(x), plain)
    assert model(x[1:2]).equal(model(x)[1:2])
    modules = list(packed_modules(model))
    assert len(modules) == 3
    pack_model(model)
    assert list(packed_modules(model)) == modules, "packing again changes nothing"
    unpack_model(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.GELU, Linear, nn.Linear]
    assert model(x).equal(plain)


def test_a_module_that_is_in_two_places_stays_one() -> None:
    model, _ = tied()
    model.other = model.words
    pack_model(model)
    assert type(model.words) is PackedEmbedding and model.other is model.words
    unpack_model(model)
    assert type(model.words) is nn.Embedding and model.other is model.words


@pytest.mark.parametrize("kind", ["f32", "q4"])
def test_rows_of_a_tied_table_come_from_the_matrix_of_the_product(kind: str) -> None:
    model, _ = tied()
    table = pack_as(model, kind)
    assert model.words.matrices["weight"] is model.head.matrices["weight"]
    assert is_memoryless(model.words.weight)
    ids = torch.tensor([[0, 36, 5], [31, 32, 5]])
    assert model.words(ids).equal(table[ids])
    assert model.words(ids[:, :0]).shape == (2, 0, 32)
    with torch.enable_grad():
        rows = model.words(ids)
        assert rows.equal(table[ids])
        rows.sum().backward()
    assert model.words.weight.grad is not None
    assert model.words.weight.grad.sum(1).tolist() == [32.0 * (ids == i).sum() for i in range(37)]


def test_a_table_that_no_product_shares_stays_as_it_is() -> None:
    model, table = tied()
    model.head.weight = nn.Parameter(torch.randn(37, 32))
    pack_model(model)
    assert type(model.words) is nn.Embedding and model.words.weight.equal(table)
    assert is_memoryless(model.head.weight)


@pytest.mark.parametrize("ids", [[-1], [37], [0, 40]])
def test_ids_outside_of_a_packed_table_are_refused(ids: list[int]) -> None:
    model, _ = tied()
    pack_model(model)
    with pytest.raises(IndexError, match=f"ids are {ids[0]} to {ids[-1]}, the table has rows 0 to"):
        model.words(torch.tensor(ids))


def test_a_weight_that_another_kind_of_layer_reads_is_not_freed() -> None:
    model, _ = tied()
    model.strange = nn.Bilinear(32, 1, 37)
    model.strange.weight = model.head.weight
    with pytest.raises(AssertionError, match="strange.weight is also the weight of a layer"):
        pack_model(model)


def test_a_layer_that_takes_over_a_packed_weight_alone_is_noticed() -> None:
    model, _ = tied()
    pack_model(model)
    other = Linear(32, 37, bias=False)
    other.weight = model.head.weight
    with pytest.raises(AssertionError, match="packed module of another model"):
        pack_model(other)


def test_a_matrix_of_another_size_is_refused() -> None:
    layer = Linear(4, 3)
    with pytest.raises(AssertionError, match=r"a matrix of \(5, 4\) for a weight of \(3, 4\)"):
        adopt_matrices(layer, {id(layer.weight): pack(torch.zeros(5, 4))})


def with_quantized_head() -> nn.ModuleDict:
    """A table and a head with one quantized weight, and a layer in float32."""
    layers = nn.ModuleDict(
        {"words": nn.Embedding(37, 96), "head": Linear(96, 37), "other": Linear(96, 37)}
    )
    layers["words"].weight = layers["head"].weight
    adopt_matrices(layers, {id(layers["head"].weight): pack_blocks(*blocks(8))})
    pack_model(layers)
    return layers.eval()


def rounds_inputs(model: nn.Module) -> bool:
    return any(matrix.int8_activations for _, matrix in packed_matrices(model))


def test_int8_activations_are_used_with_quantized_matrices_alone() -> None:
    layers = with_quantized_head()
    assert not rounds_inputs(layers)
    x, ids = torch.randn(3, 96), torch.arange(5)
    before = {name: layers[name](x) for name in ("head", "other")}
    rows = layers["words"](ids)
    assert use_int8_activations(layers) == 1 and rounds_inputs(layers)
    assert not layers["head"](x).equal(before["head"])
    assert layers["other"](x).equal(before["other"])
    assert layers["words"](ids).equal(rows), "a table has no inputs to quantize"
    assert layers["words"].matrices["weight"] is layers["head"].matrices["weight"]
    assert use_int8_activations(layers) == 0, "there is nothing more to do"


def test_a_copy_has_int8_activations_too_and_an_unpacked_model_has_none() -> None:
    layers = with_quantized_head()
    use_int8_activations(layers)
    copied = copy.deepcopy(layers)
    x = torch.randn(2, 96)
    assert copied["head"](x).equal(layers["head"](x))
    assert not rounds_inputs(unpack_model(copied))
