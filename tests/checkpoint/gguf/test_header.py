"""Headers: what they say, and what is refused."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from weft.checkpoint.gguf.header import TENSOR_TYPES, is_gguf, read_header
from weft.checkpoint.gguf.skipped_strings import SkippedStrings
from weft.core.errors import DataError

from .material import (
    U32,
    U64,
    Raw,
    array,
    as_list,
    entry,
    gguf_bytes,
    info,
    number,
    small_file,
    string,
    strings,
    text,
    write,
)


def test_every_kind_of_value_and_tensor_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, small_file())
    header = read_header(path)
    assert {key: as_list(value) for key, value in header.metadata.items() if key[:2] == "a."} == {
        "a.u8": 7,
        "a.i8": -7,
        "a.u16": 700,
        "a.i16": -700,
        "a.i32": -70000,
        "a.f32": 0.5,
        "a.bool": True,
        "a.u64": 1 << 40,
        "a.i64": -(1 << 40),
        "a.f64": 0.1,
        "a.flags": [False, True],
        "a.nested": header.metadata["a.nested"],
    }
    assert [as_list(row) for row in header.metadata["a.nested"]] == [[1, 2], [1, 2]]
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b", "\u4e2d", "", "<s>"]
    assert header.metadata["tokenizer.ggml.scores"].dtype == np.float32
    shapes = {name: (t.shape, t.type.name, t.num_bytes) for name, t in header.tensors.items()}
    assert shapes == {
        "one": ((3, 32), "Q8_0", 102),
        "two": ((5,), "F32", 20),
        "three": ((4, 3, 2), "F16", 48),
    }
    start = header.tensors["one"].start
    assert path.read_bytes()[start : start + 3] == b"\x00\x01\x02"


def test_skipped_strings_are_not_read_and_nothing_else_changes(tmp_path: Path) -> None:
    path = write(tmp_path, small_file())
    whole = read_header(path)
    part = read_header(path, skipped=("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "a.u8"))
    assert part.tensors == whole.tensors
    assert list(part.metadata) == list(whole.metadata)
    skipped = {n for n, value in part.metadata.items() if isinstance(value, SkippedStrings)}
    assert skipped == {"tokenizer.ggml.tokens"}


@pytest.mark.parametrize(
    "others",
    [(), ("", ""), ("x" * 255,), ("x" * 256,), ("a\0b",), ("\0" * 9, "b"), ("x" * 5000,)],
    ids=lambda texts: ",".join(map(ascii, texts))[:12],
)
def test_names_are_found_in_skipped_strings(tmp_path: Path, others: tuple[str, ...]) -> None:
    """Whatever the strings are, also where one contains the bytes of another."""
    inside = b"<|end|>".rjust(8, b"\x07") + b"<|end|>"
    texts = ["a", "<|end|>", "", "b" * 40, *others, f"x{(7).to_bytes(8, 'little').decode()}<|end|>"]
    texts += ["<|end|>", "caf\u00e9", inside.decode()]
    for names in (texts, [name for name in texts if name and "\0" not in name]):
        data = gguf_bytes({"names": array(8, [text(n) for n in names]), "after": number(7)}, [])
        path = write(tmp_path, data)
        assert read_header(path).metadata["names"] == names
        metadata = read_header(path, skipped=("names",)).metadata
        assert metadata["after"] == 7 and len(metadata["names"]) == len(names)
        for wanted in ({"<|end|>", "a", "none"}, {"caf\u00e9"}, {""}):
            expected = [index for index, name in enumerate(names) if name in wanted]
            assert metadata["names"].find(wanted) == expected


@pytest.mark.parametrize("length", [3, 1 << 40, (1 << 64) - 1])
def test_skipped_strings_end_inside_of_the_file(tmp_path: Path, length: int) -> None:
    items = [text("ab"), U64.pack(length) + b"cd"]
    data = gguf_bytes({"names": array(8, items)}, [])
    path = write(tmp_path, data[: data.index(b"cd") + 2])
    messages = []
    for skipped in ((), ("names",)):
        with pytest.raises(DataError) as error:
            read_header(path, skipped)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_file_of_the_library_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "lib.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(300)])
    writer.add_array("tokenizer.ggml.scores", [float(i) for i in range(300)])
    writer.add_tensor("w", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("h", np.ones((2, 5), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, theirs = read_header(path), gguf.GGUFReader(path)
    assert header.version == 3
    for field in theirs.fields.values():
        if not field.name.startswith("GGUF."):
            assert as_list(header.metadata[field.name]) == field.contents(), field.name
    for tensor in theirs.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert (ours.start, ours.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_types_are_those_of_the_library() -> None:
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    ours = {n: (t.name, t.block_len, t.block_bytes) for n, t in TENSOR_TYPES.items()}
    assert ours == theirs
    assert set(ours) == {kind.value for kind in GGMLQuantizationType}


def test_version_2_is_read_and_others_are_named(tmp_path: Path) -> None:
    assert read_header(write(tmp_path, gguf_bytes({}, [], version=2))).version == 2
    with pytest.raises(DataError, match="version is 1, and Weft reads 2 and 3"):
        read_header(write(tmp_path, gguf_bytes({}, [], version=1)))
    with pytest.raises(DataError, match="version is 77"):
        read_header(write(tmp_path, gguf_bytes({}, [], version=77)))


def test_big_endian_files_are_refused(tmp_path: Path) -> None:
    data = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    with pytest.raises(DataError, match="big-endian"):
        read_header(write(tmp_path, data))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_header(tmp_path / "nowhere.gguf")
    with pytest.raises(DataError, match="there is no such file"):
        read_header(tmp_path)
    with pytest.raises(DataError, match="is empty"):
        read_header(write(tmp_path, b""))
    with pytest.raises(DataError, match="begins with b'PK"):
        read_header(write(tmp_path, b"PK\x03\x04and more"))
    assert is_gguf(write(tmp_path, gguf_bytes({}, [])))
    assert not is_gguf(write(tmp_path, b"PK"))
    assert not is_gguf(tmp_path / "nowhere")


HUGE = 1 << 60
FORGED = {
    "tensors": (
        b"GGUF" + U32.pack(3) + U64.pack(HUGE) + U64.pack(0),
        "claims 1152921504606846976 tensors",
    ),
    "entries": (
        b"GGUF" + U32.pack(3) + U64.pack(0) + U64.pack(HUGE),
        "claims 1152921504606846976 entries",
    ),
    "name": (
        b"GGUF" + U32.pack(3) + U64.pack(0) + U64.pack(1) + U64.pack(HUGE) + b"abcdefgh",
        "name of entry 0 needs 1152921504606846976 bytes",
    ),
    "texts": (
        gguf_bytes({"x": Raw(9, U32.pack(8) + U64.pack(HUGE))}, [], alignment=1),
        "claims 1152921504606846976 values in x where at most",
    ),
    "numbers": (
        gguf_bytes({"x": Raw(9, U32.pack(4) + U64.pack(HUGE))}, [], alignment=1),
        "claims 1152921504606846976 numbers in x where at most",
    ),
    "text in a list": (
        gguf_bytes({"x": Raw(9, U32.pack(8) + U64.pack(1) + U64.pack(HUGE))}, []),
        "x ends after 0 of 1 strings",
    ),
    "text": (gguf_bytes({"x": Raw(8, U64.pack(HUGE))}, []), "x needs 1152921504606846976 bytes"),
    "dimension": (gguf_bytes({}, [info("t", [HUGE], 0, 0)]), "tensor t takes 4611686018427387904"),
    "four dimensions": (gguf_bytes({}, [info("t", [HUGE] * 4, 0, 0)]), "tensor t takes"),
    "offset": (gguf_bytes({}, [info("t", [1], 0, HUGE)], bytes(32)), "from byte 11529215046068"),
}


@pytest.mark.parametrize("what", FORGED)
def test_huge_numbers_fail_at_once(what: str, tmp_path: Path) -> None:
    data, message = FORGED[what]
    with pytest.raises(DataError, match=message):
        read_header(write(tmp_path, data))


def nested(depth: int) -> Raw:
    inner = U32.pack(4) + U64.pack(1) + U32.pack(5)
    for _ in range(depth):
        inner = U32.pack(9) + U64.pack(1) + inner
    return Raw(9, inner)


WRONG = {
    "bool": (gguf_bytes({"x": Raw(7, b"\x02")}, []), "x is neither true"),
    "bools": (gguf_bytes({"x": array(7, [b"\x01", b"\x07"])}, []), "x is neither true"),
    "type": (gguf_bytes({"x": Raw(13, b"\x02")}, []), "type 13; types are 0, 1, 2"),
    "list type": (gguf_bytes({"x": array(99, [b"\x02"])}, []), "type 99; types are"),
    "text": (gguf_bytes({"x": Raw(8, text(b"\xff\xfe"))}, []), "x is not UTF-8"),
    "texts": (gguf_bytes({"x": array(8, [text(b"\xff")])}, []), "x ends after 0 of 1"),
    "depth": (gguf_bytes({"x": nested(4)}, []), "more than 4 deep"),
    "twice": (
        b"GGUF" + U32.pack(3) + U64.pack(0) + U64.pack(2) + entry("x", number(1)) * 2,
        "two entries with the name x",
    ),
    "twins": (
        gguf_bytes({}, [info("t", [8], 0, 0), info("t", [8], 0, 0)], bytes(64)),
        "two tensors with the name t",
    ),
    "no dimension": (gguf_bytes({}, [info("t", [], 0, 0)], bytes(32)), "0 dimensions where 1 to 4"),
    "five": (gguf_bytes({}, [info("t", [1] * 5, 0, 0)], bytes(32)), "5 dimensions"),
    "zero": (gguf_bytes({}, [info("t", [4, 0], 0, 0)], bytes(32)), r"shape \(0, 4\)"),
    "kind": (
        gguf_bytes({}, [info("t", [4], 4, 0)], bytes(32)),
        r"type 4, which is none of 0 \(F32",
    ),
    "blocks": (gguf_bytes({}, [info("t", [33], 8, 0)], bytes(99)), "whole blocks of 32"),
    "outside": (gguf_bytes({}, [info("t", [9], 0, 0)], bytes(32)), "takes 36 bytes from byte"),
    "unaligned": (gguf_bytes({}, [info("t", [4], 0, 4)], bytes(32)), "multiples of 32"),
    "overlap": (
        gguf_bytes({}, [info("u", [8], 0, 32), info("t", [9], 0, 0)], bytes(64)),
        r"tensor t takes the bytes up to 132, but tensor u begins at byte 128: tensors must not",
    ),
    "same bytes": (
        gguf_bytes({}, [info("t", [8], 0, 0), info("u", [8], 0, 0)], bytes(32)),
        "tensor t takes .* tensors must not overlap. Copy or download the file again",
    ),
    "alignment": (gguf_bytes({"general.alignment": number(24)}, []), "alignment is 24"),
    "alignment 0": (gguf_bytes({"general.alignment": number(0)}, []), "alignment is 0"),
    "alignment text": (gguf_bytes({"general.alignment": string("x")}, []), "alignment is x"),
    "parts": (gguf_bytes({"split.count": number(3)}, []), "one of 3 parts"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    data, message = WRONG[what]
    with pytest.raises(DataError, match=message) as caught:
        read_header(write(tmp_path, data))
    assert str(caught.value).startswith(str(tmp_path / "x.gguf"))


def test_long_names_are_cut_in_messages(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes({}, [info("n" * 5000, [9], 0, 0)], bytes(32)))
    with pytest.raises(DataError, match="n{80}[.]{3} takes") as caught:
        read_header(path)
    assert len(str(caught.value)) < 500


def test_a_hundred_thousand_texts_are_read_in_well_under_a_second(tmp_path: Path) -> None:
    import time

    words = [f"word{i}" for i in range(100_000)]
    path = write(tmp_path, gguf_bytes({"x": strings(words)}, []))
    start = time.process_time()
    assert read_header(path).metadata["x"] == words
    assert time.process_time() - start < 1


def test_reading_a_header_imports_neither_torch_nor_the_library(tmp_path: Path) -> None:
    import subprocess

    path = write(tmp_path, small_file())
    program = (
        "import sys; from weft.checkpoint.gguf.header import read_header; "
        f"read_header({str(path)!r}); print([m for m in ('torch', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
