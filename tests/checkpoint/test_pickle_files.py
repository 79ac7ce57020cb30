"""Files of torch.save: tensors come back mapped, and nothing that a pickle names is ever called."""

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

from weft.checkpoint.fairseq_header import PACKAGES
from weft.checkpoint.huggingface import open_tensors
from weft.checkpoint.pickle_files import open_pickle, read_pickle
from weft.checkpoint.pickle_header import BIN_INDEX, Placeholder
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
IS_ZIP = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])


def values() -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "by dtype": {str(dtype): torch.arange(5).to(dtype) for dtype in DTYPES},
        "transposed": base.T,
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
        archive.writestr("archive/version", "3\n")
    return path


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor) and found.dtype == expected.dtype
        assert torch.equal(found, expected.detach())
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and list(found) == list(expected)
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
    expected = values()
    assert_same(read_pickle(save(expected, tmp_path / "x.pt", is_zip)), expected)


def test_a_dictionary_of_tensors_is_a_source(tmp_path: Path) -> None:
    source = open_pickle(save(nn.Linear(2, 3).state_dict(), tmp_path / "x.bin"))
    assert source.shapes == {"weight": (3, 2), "bias": (3,)}


@pytest.mark.parametrize(
    "value",
    [
        {"weight": torch.ones(1), "epoch": 3},
        {3: torch.ones(1)},
        {},
        [torch.ones(1)],
        {"sparse": torch.eye(3).to_sparse()},
        {"meta": torch.empty(3, device="meta")},
        {"a few bytes": torch.ones(1).expand(2**40)},
    ],
    ids=["epoch", "key", "empty", "list", "sparse", "meta", "expanded"],
)
def test_other_values_are_not_a_source(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a dictionary of tensors by name. Use a file"):
        open_pickle(save(value, tmp_path / "y.bin"))


def shards(folder: Path, **changes: str) -> Path:
    """Two files and their index, as `transformers` wrote them before safetensors."""
    save({"a": torch.arange(3.0)}, folder / "pytorch_model-00001-of-00002.bin")
    save({"b": torch.ones(2, 2)}, folder / "pytorch_model-00002-of-00002.bin")
    names = {name: f"pytorch_model-0000{i}-of-00002.bin" for i, name in enumerate("ab", 1)}
    weight_map = ", ".join(f'"{k}": "{v}"' for k, v in (names | changes).items())
    (folder / BIN_INDEX).write_text(f'{{"weight_map": {{{weight_map}}}}}')
    return folder


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_shards_without_an_index_are_reported_as_such(kind: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.{kind}").write_bytes(b"")
    message = f"has model-00001-of-00002.{kind}, one of several files of weights, but no .*index"
    with pytest.raises(DataError, match=message):
        open_tensors(tmp_path)


def test_shards_are_one_source(tmp_path: Path) -> None:
    source = open_tensors(shards(tmp_path))
    assert source.shapes == {"a": (3,), "b": (2, 2)}
    assert torch.equal(source.read("a"), torch.arange(3.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"c": "pytorch_model-00002-of-00002.bin"}, "does not contain c, which pytorch_model.bin"),
        ({"b": "../b.bin"}, "must be a file in the same folder"),
        (
            {"b": "gone.bin"},
            r"gone.bin: there is no such file, but pytorch_model.bin.index.json as",
        ),
    ],
)
def test_shards_that_do_not_match_their_index_are_refused(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        open_tensors(shards(tmp_path, **changes))


def test_tensors_are_mapped(tmp_path: Path) -> None:
    """Loading 64 MB adds next to nothing to the resident memory; reading a tensor does."""
    path = save({"w": torch.zeros(1 << 24)}, tmp_path / "x.pt")
    read_pickle(path)
    before = resident_memory()
    tensor = read_pickle(path)["w"]
    opened = resident_memory()
    assert tensor.shape == (1 << 24,) and opened - before < 16 << 20
    assert float(tensor.sum()) == 0
    assert resident_memory() - opened > 32 << 20


def resident_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Foreign:
    """A class of another package."""

    def __init__(self, number: int) -> None:
        self.number = number


@IS_ZIP
def test_a_fairseq_checkpoint_has_namespaces_and_placeholders(is_zip: bool, tmp_path: Path) -> None:
    value = {"args": argparse.Namespace(width=3, inner=argparse.Namespace(a="b"))}
    history = {"state": numpy.array([1.0]), "loss": numpy.float64(2.5)}
    path = save({**value, **history, "w": torch.ones(2)}, tmp_path / "x.pt", is_zip)
    if not is_zip:
        # as numpy 1 wrote it, which is what legacy files contain
        path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))
    found = read_pickle(path, PACKAGES)
    assert found["args"] == value["args"]
    assert type(found["state"]) is type(found["loss"]) is Placeholder
    assert torch.equal(found["w"], torch.ones(2))
    with pytest.raises(DataError, match="contains 'argparse.Namespace', which Weft does not load"):
        read_pickle(path)


def test_classes_of_absent_packages_are_placeholders(tmp_path: Path) -> None:
    """omegaconf is not installed: its classes are neither imported nor made."""
    program = b"\x80\x02comegaconf.dictconfig\nDictConfig\n)\x81}X\x01\0\0\0aK\x01sb."
    found = read_pickle(zipped(tmp_path / "x.pt", program), PACKAGES)
    assert type(found) is Placeholder and not vars(found)
    assert "omegaconf" not in sys.modules
    with pytest.raises(DataError, match=r"contains 'omegaconf.dictconfig.DictConfig', which"):
        read_pickle(tmp_path / "x.pt")


def test_classes_of_other_packages_are_refused_by_name(tmp_path: Path) -> None:
    path = save({"when": Foreign(7)}, tmp_path / "x.pt")
    for packages in (frozenset[str](), PACKAGES):
        with pytest.raises(DataError, match=r"x.pt: contains '.*Foreign', .*could run code. Use"):
            read_pickle(path, packages)


class Call:
    """Pickled, it is a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("packages", [frozenset[str](), PACKAGES], ids=["", "fairseq"])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, os.remove, print])
def test_calls_are_refused_by_name_and_not_made(
    function: Any, packages: frozenset[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "trap"
    program = pickle.dumps([Call(function, f"touch {trap}")], 2)
    with pytest.raises(DataError, match=f"x.pt: contains '.*{function.__name__}', which Weft"):
        read_pickle(zipped(tmp_path / "x.pt", program), packages)
    assert not trap.exists() and capfd.readouterr().out == ""


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_calls_in_other_protocols_are_not_made(
    protocol: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "trap"
    program = pickle.dumps([Call(os.system, f"touch {trap}")], protocol)
    with pytest.raises(DataError, match=r"x.pt: .* Use the model's safetensors files|safetensors"):
        read_pickle(zipped(tmp_path / "x.pt", program), PACKAGES)
    assert not trap.exists() and capfd.readouterr().out == ""


HOSTILE = {
    "GLOBAL and REDUCE": b"cos\nsystem\n(S'echo trapped'\ntR.",
    "INST": b"(S'echo trapped'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'echo trapped'\no.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0cecho trapped\x85R.",
    "a call of a placeholder": b"\x80\x02cnumpy\narray\n)R)R.",
    "a state for a list": b"](dK\x01b.",
    "a state for a dict": b"}(dK\x01b.",
    "a state for a bare class": b"cos\nsystem\n(db.",
    "the extension registry": b"\x80\x02\x82\x01.",
    "a persistent id in text": b"Pstorage\n.",
    "a persistent id that is no storage": b"(K\x01K\x02tQ.",
    "a list as key": b"}]K\x01s.",
    "a call of text": b"\x80\x02X\x09\0\0\0os.system)R.",
    "an append to a number": b"K\x01K\x02a.",
    "a key set in a list": b"]K\x01K\x02s.",
    "a name that is a number": b"\x80\x04K\x01K\x02\x93.",
    "a buffer out of band": b"\x80\x05\x97.",
    "no value at all": b".",
    "no end": b"K\x01",
    "nothing": b"",
    "an unknown opcode": b"\xff.",
    "a value never stored": b"h\x05.",
    "a mark without an end": b"((((.",
    "a tuple of what is not there": b"K\x01\x87.",
    "half a name": b"cos\n",
    "text longer than the file": b"X\xff\xff\xff\x7fabc.",
    "bytes of 2 ** 60": b"\x8e\x00\x00\x00\x00\x00\x00\x00\x10abc.",
    "a number of 2 ** 31 bytes": b"\x8b\xff\xff\xff\x7fabc.",
    "broken UTF-8": b"X\x02\x00\x00\x00\xff\xfe.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_refused_in_one_sentence(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracemalloc.start()
    with pytest.raises(DataError, match=r"(Copy the file again|Use the model's safetensors)") as e:
        open_pickle(zipped(tmp_path / "x.pt", HOSTILE[name]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert capfd.readouterr().out == "" and peak < 16 << 20
    assert "\n" not in str(e.value) and str(e.value).startswith(str(tmp_path / "x.pt"))
    assert len(str(e.value)) < len(str(tmp_path)) + 400


def tensor_program(
    key: str = "0",
    count: int = 6,
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    stride: tuple[int, ...] = (3, 1),
) -> bytes:
    """The pickle of a dictionary with one tensor, with any claim about its storage."""
    out = io.BytesIO()
    pickler = pickle._Pickler(out, 2)  # the one in Python can be taught to write names
    pickler.persistent_id = lambda value: value.id if isinstance(value, Id) else None
    pickler.dump({"w": Described(Id(key, count), offset, shape, stride)})
    return out.getvalue()


class Id:
    def __init__(self, key: str, count: int) -> None:
        self.id = ("storage", torch.FloatStorage, key, "cpu", count)


class Described:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, (*self.args, False, OrderedDict())


SIX = {"0": bytes(24)}
CLAIMS: dict[str, dict[str, Any]] = {
    "a storage that is not there": {"key": "1"},
    "a storage outside the folder": {"key": "../data.pkl"},
    "2 ** 46 numbers": {"count": 2**46, "shape": (2**46,), "stride": (1,)},
    "a negative count": {"count": -6},
    "a shape beyond the storage": {"shape": (3, 3)},
    "an offset beyond the storage": {"offset": 1},
    "a negative offset": {"offset": -1},
    "a stride beyond the storage": {"stride": (4, 1)},
    "a negative stride": {"stride": (-3, 1)},
    "a stride of 0 for a huge size": {"shape": (2**40,), "stride": (0,)},
    "a shape without strides": {"stride": (1,)},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_false_claims_about_tensors_are_refused(name: str, tmp_path: Path) -> None:
    good = open_pickle(zipped(tmp_path / "good.pt", tensor_program(), SIX))
    assert torch.equal(good.read("w"), torch.zeros(2, 3))
    with pytest.raises(DataError):
        open_pickle(zipped(tmp_path / "x.pt", tensor_program(**CLAIMS[name]), SIX))


def test_a_compressed_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"]" * 20_000_000)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="contains the compressed member 'archive/data.pkl'"):
        read_pickle(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Copy the file again"),
        (b"PK\x03\x04", "is not a complete zip file. Copy the file again"),
        (b"hello", "cannot be loaded as weights .* Copy the file again, or use the model's"),
        (pickle.dumps({"a": 1}, 2), "cannot be loaded as weights .* Copy the file again, or use"),
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


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_instead_of_being_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="is a pipe or a device, not a file"):
        read_pickle(tmp_path / "pytorch_model.bin")


@IS_ZIP
def test_a_file_cut_anywhere_is_refused(is_zip: bool, tmp_path: Path) -> None:
    whole = save({"a": torch.arange(6.0), "b": [torch.ones(2)]}, tmp_path / "x.pt", is_zip)
    content = whole.read_bytes()
    for length in range(0, len(content) - 1, 7):
        whole.unlink()
        whole.write_bytes(content[:length])
        with pytest.raises(DataError):
            read_pickle(whole)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """One to four places changed, removed, or filled with others of the same file."""
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


@pytest.mark.parametrize("what", ["program", "zip", "legacy"])
def test_random_changes_give_a_value_or_a_data_error(what: str, tmp_path: Path) -> None:
    value = {"a": torch.arange(6.0).reshape(2, 3).T, "b": [nn.Parameter(torch.ones(2))]}
    value |= {"args": argparse.Namespace(x=1, y=(2.5, "z")), "o": OrderedDict(k=b"bytes")}
    path = save(value, tmp_path / "x.pt", is_zip=what != "legacy")
    program, storages = program_of(path) if what == "program" else (path.read_bytes(), {})
    rng, refused, count = random.Random(0), 0, 800
    for _ in range(count):
        path.unlink()  # truncating an existing file makes the file system write it to disk
        if what == "program":
            zipped(path, mutated(program, rng), storages)
        else:
            path.write_bytes(mutated(program, rng))
        try:
            touch(read_pickle(path, PACKAGES))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
    assert count / 5 < refused < count
