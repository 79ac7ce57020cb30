"""Packed layers: one place for the numbers, and the exact weight for everybody who asks for it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from weft.native import packed
from weft.native.packed import PackedMatrix, pack, pack_blocks
from weft.nn.hollow import is_hollow
from weft.nn.linear import Linear, Table, pack_model, unpack_model
from weft.nn.packable import Packable


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
        self.words = Table(37, 32)
        self.inner = nn.Linear(32, 32)
        self.head = Linear(32, 37, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.words(ids)))


def tied() -> tuple[Tied, Tensor]:
    """Such a model, and its table."""
    model = Tied().eval()
    return model, model.words.weight.detach().clone()


def few_bits() -> PackedMatrix:
    quants = torch.randint(0, 16, (37, 32)).to(torch.int8)
    return pack_blocks(quants, torch.rand(37, 1).half(), -torch.rand(37, 1).half())


def test_a_packed_layer_gives_what_the_plain_one_gives(way: str) -> None:
    layer, x = Linear(24, 10), torch.randn(2, 5, 24)
    plain = layer(x)
    layer.pack()
    torch.testing.assert_close(layer(x), plain)
    assert layer.product(x, slice(3, 8)).equal(layer(x)[..., 3:8])
    layer.unpack()
    assert layer(x).equal(plain)
    assert layer.product(x, slice(3, 8)).shape == (2, 5, 5)


def test_the_numbers_are_in_one_place() -> None:
    layer = Linear(24, 10)
    weight, before = layer.weight, layer.weight.detach().clone()
    layer.pack()
    assert layer.weight is weight and weight.shape == (10, 24) and weight.numel() == 240
    assert weight.untyped_storage().nbytes() == 4
    assert layer.whole().equal(before)
    layer.unpack()
    assert layer.weight is weight and weight.equal(before)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1)])
def test_the_smallest_weights_are_let_go_and_come_back(shape: tuple[int, int]) -> None:
    layer = Linear(*shape)
    before = layer.weight.detach().clone()
    layer.pack()
    assert is_hollow(layer.weight)
    layer.unpack()
    assert layer.weight.equal(before) and not is_hollow(layer.weight)


def test_a_mistaken_read_shows_and_a_mistaken_write_is_refused() -> None:
    layer = Linear(4, 3)
    layer.pack()
    assert (torch.ones(2, 4) @ layer.weight.T).isnan().all()
    with pytest.raises(RuntimeError, match="more than one element"):
        layer.weight.mul_(2)
    layer.weight.fill_(0.5)
    for asks in (layer.whole, layer.unpack, layer.state_dict, layer.train):
        with pytest.raises(AssertionError, match="0.5 was written into a packed weight"):
            asks()


def test_without_the_library_nothing_is_let_go_or_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "native", lambda: None)
    model, table = tied()
    place = model.words.weight.data_ptr()
    pack_model(model)
    assert model.head.packed is not None and model.head.packed.data.data_ptr() == place
    assert not any(is_hollow(weight) for weight in model.parameters())
    assert model.words(torch.arange(37)).equal(table)


def test_gradients_and_other_dtypes_take_the_whole_weight() -> None:
    layer, x = Linear(24, 10), torch.randn(3, 24)
    with torch.enable_grad():
        layer(x).square().sum().backward()
        expected, layer.weight.grad = layer.weight.grad, None
        layer.pack()
        layer(x).square().sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.equal(expected)
        # nothing was made for good
        assert layer.packs(x) is False and is_hollow(layer.weight)
    assert layer.packs(x)
    assert layer.double()(x.double()).dtype == torch.float64


def test_training_moving_and_loading_unpack() -> None:
    layer = Linear(4, 3)
    other = Linear(4, 3).state_dict()
    before = layer.weight.detach().clone()
    for change in (layer.train, layer.double, layer.float):
        layer.float().pack()
        change()
        assert layer.packed is None and layer.weight.float().equal(before)
    layer.pack()
    layer.eval()
    assert layer.packed is not None
    layer.load_state_dict(other)
    assert layer.packed is None and layer.weight.equal(other["weight"])


def test_unpacked_in_inference_mode_a_layer_can_be_trained() -> None:
    layer, x = Linear(4, 3), torch.randn(2, 4)
    with torch.inference_mode():
        layer.pack()
        layer.train()
    with torch.enable_grad():
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_an_optimiser_made_before_goes_on_with_the_same_weights() -> None:
    model, table = tied()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    pack_model(model)
    with torch.enable_grad():
        model.train()(torch.arange(5)).square().sum().backward()
    optimiser.step()
    assert model.words.weight is model.head.weight
    assert model.words.weight.isfinite().all() and not model.words.weight.equal(table)


def test_a_packed_layer_is_saved_as_a_plain_one(way: str) -> None:
    layer = Linear(4, 3)
    expected = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.pack()
    state = layer.state_dict()
    assert list(state) == list(expected)
    assert all(state[name].equal(expected[name]) for name in expected)
    assert layer.state_dict(keep_vars=True)["weight"] is layer.weight


def pickled(model: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(model))
    return found


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("kind", ["f32", "q4"])
def test_a_copy_is_packed_and_tied_and_its_own(copied: Callable, kind: str) -> None:
    model, _ = tied()
    if kind == "q4":
        few = few_bits()
        model.words.pack(few), model.head.pack(few)
    pack_model(model)
    ids = torch.arange(37)
    expected, state = model(ids), model.state_dict()
    other = copied(model)
    model.train()
    model.head.weight.zero_()
    assert other(ids).equal(expected)
    assert other.words.weight is other.head.weight and is_hollow(other.head.weight)
    assert other.words.packed is other.head.packed is not model.head.packed
    assert all(other.state_dict()[name].equal(tensor) for name, tensor in state.items())


def test_a_model_is_packed_and_unpacked_whole(way: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), Linear(6, 6), nn.Linear(6, 2)).eval()
    model[0].weight = model[2].weight
    x = torch.randn(4, 6)
    plain = model(x)
    assert pack_model(model) is model
    assert model[0].packed is model[2].packed
    torch.testing.assert_close(model(x), plain)
    assert model(x[1:2]).equal(model(x)[1:2])
    found = [layer.packed for layer in model.modules() if isinstance(layer, Packable)]
    pack_model(model)
    assert [layer.packed for layer in model.modules() if isinstance(layer, Packable)] == found
    unpack_model(model)
    assert model(x).equal(plain)


@pytest.mark.parametrize("kind", ["f32", "q4"])
def test_rows_of_a_tied_table_come_from_the_packed_product(kind: str) -> None:
    model, table = tied()
    if kind == "q4":
        few = few_bits()
        model.words.pack(few), model.head.pack(few)
        table = model.words.whole()
    pack_model(model)
    assert model.words.packed is model.head.packed
    assert is_hollow(model.words.weight)
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
    assert model.words.packed is None and model.words.weight.equal(table)
    assert is_hollow(model.head.weight)


@pytest.mark.parametrize("ids", [[-1], [37], [0, 40]])
def test_ids_outside_of_a_packed_table_are_refused(ids: list[int]) -> None:
    model, _ = tied()
    pack_model(model)
    with pytest.raises(IndexError, match=f"ids are {ids[0]} to {ids[-1]}, the table has rows 0 to"):
        model.words(torch.tensor(ids))


def test_what_one_layer_changes_in_a_shared_weight_the_other_sees() -> None:
    model, table = tied()
    pack_model(model)
    model.head.load_state_dict({"weight": table + 1})
    assert model.words(torch.arange(37)).equal(table + 1)
    pack_model(model)
    assert is_hollow(model.words.weight)
    assert model.words(torch.arange(37)).equal(table + 1)


def test_torchs_own_table_is_read_from_the_packed_weight_too() -> None:
    model, table = tied()
    model.words = nn.Embedding(37, 32)
    model.words.weight = model.head.weight
    pack_model(model)
    assert model.words(torch.arange(37)).equal(table)


def test_a_weight_that_a_strange_layer_reads_is_not_let_go() -> None:
    model, _ = tied()
    model.strange = nn.Bilinear(32, 1, 37)
    model.strange.weight = model.head.weight
    with pytest.raises(AssertionError, match="strange.weight is the weight of a layer"):
        pack_model(model)


def test_a_layer_that_takes_over_a_hollow_weight_alone_is_noticed() -> None:
    model, _ = tied()
    pack_model(model)
    other = Linear(32, 37, bias=False)
    other.weight = model.head.weight
    for asks in (other.pack, other.unpack, other.state_dict, lambda: other(torch.ones(1, 32))):
        with pytest.raises(AssertionError, match="weight is hollow and has no packed form"):
            asks()


def test_a_packed_weight_of_another_size_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"packed weight of \(5, 4\) for one of \(3, 4\)"):
        Linear(4, 3).pack(pack(torch.zeros(5, 4)))
