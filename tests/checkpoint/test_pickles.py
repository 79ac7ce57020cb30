"""torch's pickles: what is in them comes back, and nothing that they say is ever done."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import random
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from weft.checkpoint import pickle_machine
from weft.checkpoint.pickle_machine import Record
from weft.checkpoint.pickles import open_pickle, read_pickle
from weft.core.errors import DataError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
IS_ZIP = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "old"])


def values() -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "by dtype": {str(dtype): torch.arange(5).to(dtype) for dtype in DTYPES},
        "turned": base.T,
        "row of the same": base[2],
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "parameter": nn.Parameter(torch.ones(2)),
        "layer": nn.Linear(2, 3).state_dict(),
        "plain": [1, -(2**70), 2.5, "N'Ko \u07d2", None, True, (1, (2, "x")), [], {}, ()],
        "ordered": OrderedDict(a=1, b=[2]),
        3: {"number": "as key"},
    }


def save(value: Any, path: Path, is_zip: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    return path


def zipped(path: Path, program: bytes, storages: dict[str, bytes] | None = None) -> Path:
    """A file of torch's form with this pickle in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        for key, numbers in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", numbers)
    return path


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor) and found.dtype == expected.dtype
        assert torch.equal(found, expected.detach())
    elif isinstance(expected, dict):
        assert type(found) is dict and list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(expected) and found == expected


@IS_ZIP
def test_every_kind_of_value_comes_back(is_zip: bool, tmp_path: Path) -> None:
    assert_same(read_pickle(save(values(), tmp_path / "x.pt", is_zip)), values_again(tmp_path))


def values_again(tmp_path: Path) -> Any:
    """The random layer of `values` as torch itself reads it."""
    return torch.load(tmp_path / "x.pt", weights_only=True)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(3), "n": [1, (2, 3)]}, path, pickle_protocol=protocol)
    assert_same(read_pickle(path), {"w": torch.ones(3), "n": [1, (2, 3)]})


def test_a_table_of_tensors_is_a_source(tmp_path: Path) -> None:
    source = open_pickle(save(nn.Linear(2, 3).state_dict(), tmp_path / "x.bin"))
    assert source.shapes == {"weight": (3, 2), "bias": (3,)}
    with pytest.raises(DataError, match="is not a table of tensors by name"):
        open_pickle(save({"weight": torch.ones(1), "epoch": 3}, tmp_path / "y.bin"))


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    path = save({"w": torch.zeros(1 << 20)}, tmp_path / "x.pt")
    tracemalloc.start()
    found = read_pickle(path)["w"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (1 << 20,) and peak < 1 << 20


def test_a_namespace_is_a_dict_and_foreign_classes_are_records(tmp_path: Path) -> None:
    value = {"args": argparse.Namespace(width=3, inner=argparse.Namespace(a="b"))}
    path = save({**value, "random": numpy.array([1.0]), "when": Foreign(7)}, tmp_path / "x.pt")
    found = read_pickle(path)
    assert found["args"] == {"width": 3, "inner": {"a": "b"}}
    assert isinstance(found["random"], Record)
    assert found["random"].name.endswith("multiarray._reconstruct")
    assert isinstance(found["when"], Record)
    assert (found["when"].name, found["when"].state) == (f"{__name__}.Foreign", {"number": 7})


class Foreign:
    """A class that the reader does not know."""

    def __init__(self, number: int) -> None:
        self.number = number


class Call:
    """Pickled, it is a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, os.remove, print])
def test_calls_are_refused_by_name_and_not_made(
    function: Any, protocol: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "trap"
    program = pickle.dumps([Call(function, f"touch {trap}")], protocol)
    with pytest.raises(DataError, match=f"would call '.*{function.__name__}'"):
        read_pickle(zipped(tmp_path / "x.pt", program))
    assert not trap.exists() and capfd.readouterr().out == ""


HOSTILE = {
    "GLOBAL and REDUCE": b"cos\nsystem\n(S'echo trapped'\ntR.",
    "INST": b"(S'echo trapped'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'echo trapped'\no.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0cecho trapped\x85R.",
    "a function out of a record": b"cnumpy\narray\n(tR(S'x'\ntR.",
    "a state for a list": b"](dK\x01b.",
    "a state for a dict": b"}(dK\x01b.",
    "a state for a bare class": b"cos\nsystem\n(db.",
    "the extension registry": b"\x80\x02\x82\x01.",
    "a persistent id in text": b"Pstorage\n.",
    "a persistent id that is no storage": b"(K\x01K\x02tQ.",
    "a list as key": b"(]K\x01d.",
    "a call of text": b"S'os.system'\n(tR.",
    "an append to a number": b"K\x01K\x02a.",
    "a key set in a list": b"]K\x01K\x02s.",
    "a name that is a number": b"\x80\x04K\x01K\x02\x93.",
    "a buffer out of band": b"\x80\x05\x97.",
    "a set": b"\x80\x04\x8f.",
    "no value at all": b".",
    "no end": b"K\x01",
    "nothing": b"",
    "an unknown step": b"\xff.",
    "a value never stored": b"h\x05.",
    "a mark without an end": b"((((.",
    "a tuple of what is not there": b"K\x01\x87.",
    "half a name": b"cos\n",
    "text longer than the file": b"X\xff\xff\xff\x7fabc.",
    "bytes of 2 ** 60": b"\x8e\x00\x00\x00\x00\x00\x00\x00\x10abc.",
    "a number of 2 ** 31 bytes": b"\x8b\xff\xff\xff\x7fabc.",
    "a number that cannot be printed": b"\x8b\x10\x27\x00\x00" + b"\x01" * 10_000 + b".",
    "a number of too many digits": b"I" + b"9" * 10_000 + b"\n.",
    "a broken float": b"Fabc\n.",
    "broken UTF-8": b"X\x02\x00\x00\x00\xff\xfe.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_refused(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError) as refused:
        read_pickle(zipped(tmp_path / "x.pt", HOSTILE[name]))
    assert capfd.readouterr().out == ""
    assert "\n" not in str(refused.value) and str(tmp_path) in str(refused.value)


def test_names_are_never_imported_and_classes_never_made(tmp_path: Path) -> None:
    """`this` prints when it is imported; NEWOBJ of a function makes a record of it."""
    found = read_pickle(zipped(tmp_path / "x.pt", b"\x80\x02cthis\nZen\n)\x81."))
    assert isinstance(found, Record) and found.name == "this.Zen"
    assert "this" not in sys.modules
    found = read_pickle(zipped(tmp_path / "y.pt", b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85\x81."))
    assert isinstance(found, Record) and found.args == ("ls",)


def nested(step: bytes, times: int) -> bytes:
    """A list, and a step again and again; %c is the number of the round."""
    return (
        b"\x80\x04]" + b"".join(step.replace(b"%c", b"%c" % (i % 256)) for i in range(times)) + b"."
    )


BOMBS = {
    "deep lists": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    "deep tuples": nested(b"\x85", 20_000),
    "a deep tuple as key": b"\x80\x02}N" + b"\x85" * 20_000 + b"K\x01s.",
    "lists that hold the last one twice": nested(b"\x94](h%ch%ce", 60),
    "a list in itself": b"\x80\x04]\x94h\x00a.",
    "more steps than any model has": b"\x80\x02(" + b"N" * 30_000 + b"t.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_and_cost_little(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "more steps than any model has":
        monkeypatch.setattr(pickle_machine, "MAX_STEPS", 20_000)
    path = zipped(tmp_path / "x.pt", BOMBS[name])
    tracemalloc.start()
    with pytest.raises(DataError, match="nests values|keys are no names|more than 20000 steps"):
        read_pickle(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_far_place_in_the_memo_costs_nothing(tmp_path: Path) -> None:
    """Python's own machine makes a table up to that place."""
    program = b"\x80\x02]r\xff\xff\xff\xff0j\xff\xff\xff\xff."
    assert read_pickle(zipped(tmp_path / "x.pt", program)) == []


def tensor_program(
    key: str = "0",
    count: int = 6,
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    stride: tuple[int, ...] = (3, 1),
    kind: str = "FloatStorage",
) -> bytes:
    """The pickle of one tensor, with any claim about its storage."""
    out = io.BytesIO()
    pickler = pickle._Pickler(out, 2)  # the one in Python can be taught to write names
    pickler.persistent_id = lambda value: value.id if isinstance(value, Id) else None
    pickler.dump(Described(Id(kind, key, count), offset, shape, stride))
    return out.getvalue()


class Id:
    def __init__(self, kind: str, key: str, count: int) -> None:
        self.id = ("storage", getattr(torch, kind), key, "cpu", count)


class Described:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, (*self.args, False, OrderedDict())


SIX = bytes(24)
CLAIMS: dict[str, tuple[dict[str, Any], dict[str, bytes]]] = {
    "a storage that is not there": ({"key": "1"}, {"0": SIX}),
    "a storage outside the folder": ({"key": "../data.pkl"}, {"0": SIX}),
    "more numbers than stored": ({"count": 7}, {"0": SIX}),
    "2 ** 46 numbers": ({"count": 2**46, "shape": (2**46,), "stride": (1,)}, {"0": SIX}),
    "2 ** 62 numbers": ({"count": 2**62}, {"0": SIX}),
    "a negative count": ({"count": -6}, {"0": SIX}),
    "a shape beyond the storage": ({"shape": (3, 3)}, {"0": SIX}),
    "an offset beyond the storage": ({"offset": 1}, {"0": SIX}),
    "a negative offset": ({"offset": -1}, {"0": SIX}),
    "a stride beyond the storage": ({"stride": (4, 1)}, {"0": SIX}),
    "a negative stride": ({"stride": (-3, 1)}, {"0": SIX}),
    "a stride of 0 for a huge size": ({"shape": (2**40,), "stride": (0,)}, {"0": SIX}),
    "a shape without strides": ({"stride": (1,)}, {"0": SIX}),
    "too many dimensions": ({"shape": (1,) * 99, "stride": (1,) * 99}, {"0": SIX}),
    "another number format": ({"kind": "DoubleStorage"}, {"0": SIX}),
    "a format that is not known": ({"kind": "ComplexFloatStorage"}, {"0": SIX}),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_false_claims_about_tensors_are_refused(name: str, tmp_path: Path) -> None:
    claim, storages = CLAIMS[name]
    good = read_pickle(zipped(tmp_path / "good.pt", tensor_program(), storages))
    assert torch.equal(good, torch.zeros(2, 3))
    with pytest.raises(DataError):
        read_pickle(zipped(tmp_path / "x.pt", tensor_program(**claim), storages))


def test_one_storage_cannot_have_two_sizes(tmp_path: Path) -> None:
    """A second tensor that says something else of the same key."""
    first, second = tensor_program()[2:-1], tensor_program(kind="IntStorage")[2:-1]
    # each program uses its own places of the memo from 0 on, in turn
    program = b"\x80\x02(" + first + second + b"t."
    with pytest.raises(DataError, match="gives storage '0' two sizes"):
        read_pickle(zipped(tmp_path / "x.pt", program, {"0": SIX}))


def test_a_compressed_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"]" * 20_000_000)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="is compressed"):
        read_pickle(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Copy it again"),
        (b"PK\x03\x04", "is not a whole zip file"),
        (b"hello", "is neither a zip nor a pickle"),
        (pickle.dumps({"a": 1}, 2), "is neither a zip nor a pickle"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pickle(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere.pt: cannot be opened"):
        read_pickle(tmp_path / "nowhere.pt")


@IS_ZIP
def test_a_file_cut_anywhere_is_refused(is_zip: bool, tmp_path: Path) -> None:
    whole = save({"a": torch.arange(6.0), "b": [torch.ones(2)]}, tmp_path / "x.pt", is_zip)
    content = whole.read_bytes()
    for length in range(0, len(content) - 1, 7):
        whole.write_bytes(content[:length])
        with pytest.raises(DataError):
            read_pickle(whole)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """One to four places changed, taken out, or filled with others of the same file."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.6:
            changed[place] = rng.choice((rng.randrange(256), 0, 0xFF, changed[place] ^ 1))
        elif kind < 0.8:
            del changed[place : place + rng.randint(1, 8)]
        else:
            start = rng.randrange(len(changed))
            changed[place:place] = changed[start : start + rng.randint(1, 16)]
    return bytes(changed)


def program_of(path: Path) -> tuple[bytes, dict[str, bytes]]:
    """The pickle and the storages of a zip."""
    with zipfile.ZipFile(path) as archive:
        parts = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    storages = {k.removeprefix("data/"): v for k, v in parts.items() if k.startswith("data/")}
    return parts["data.pkl"], storages


def touch(value: Any) -> None:
    """Read every number: a view beyond the file would end the process."""
    if isinstance(value, Tensor):
        value.double().sum()
    elif isinstance(value, dict):
        for part in value.values():
            touch(part)
    elif isinstance(value, list | tuple):
        for part in value:
            touch(part)


@pytest.mark.parametrize("what", ["program", "zip", "old"])
def test_random_changes_give_a_value_or_a_data_error(what: str, tmp_path: Path) -> None:
    """3 x 1,700 of them."""
    value = {"a": torch.arange(6.0).reshape(2, 3).T, "b": [nn.Parameter(torch.ones(2))]}
    value |= {"args": argparse.Namespace(x=1, y=(2.5, "z")), "o": OrderedDict(k=b"bytes")}
    path = save(value, tmp_path / "x.pt", is_zip=what != "old")
    program, storages = program_of(path) if what == "program" else (path.read_bytes(), {})
    rng, refused = random.Random(0), 0
    for _ in range(1700):
        if what == "program":
            zipped(path, mutated(program, rng), storages)
        else:
            path.write_bytes(mutated(program, rng))
        try:
            touch(read_pickle(path))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 400 < refused < 1700
