"""Files become lines: only LF and CRLF end one, and what cannot be read names file and line."""

import gzip
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.text.corpus import read_columns, read_lines, read_many, read_pairs


def write(path, data):
    path.write_bytes(data)
    return path


def test_lines_end_at_lf_and_crlf_and_nowhere_else(tmp_path):
    text = "a\r\nb\u2028c\x0cd\re\n\n last".encode()
    assert list(read_lines(write(tmp_path / "t", text))) == ["a", "b\u2028c\x0cd\re", "", " last"]


@given(st.lists(st.text().filter(lambda t: "\n" not in t and not t.endswith("\r")), min_size=1))
def test_any_lines_come_back_as_they_were_written(lines):
    data = b"".join(line.encode() + b"\n" for line in lines)
    expected = [lines[0].removeprefix("\ufeff"), *lines[1:]]
    assert list(read_lines(io.BytesIO(data))) == expected


def test_a_byte_order_mark_at_the_start_is_dropped_and_later_ones_stay(tmp_path):
    path = write(tmp_path / "t", b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    assert list(read_lines(path)) == ["a", "\ufeffb"]


def test_gzip_is_known_by_content_whatever_the_name(tmp_path):
    path = write(tmp_path / "t.txt", gzip.compress("äh\n我\n".encode()))
    assert list(read_lines(path)) == ["äh", "我"]
    assert list(read_lines(str(path))) == ["äh", "我"]


def test_standard_input_is_read_for_a_dash_and_stays_open(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"a\nb"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert list(read_lines("-")) == ["a", "b"]
    assert not stdin.buffer.closed


def test_a_file_of_the_caller_is_read_and_stays_open():
    file = io.BytesIO(gzip.compress(b"a\nb\n"))
    assert list(read_lines(file)) == ["a", "b"]
    assert not file.closed


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    path = write(tmp_path / "bad.txt", b"fine\nstill fine\nab\xffcd\n")
    with pytest.raises(DataError, match=r"bad\.txt, line 3: byte 0xff at byte 3 of the line"):
        list(read_lines(path))


def test_utf16_is_recognised(tmp_path):
    path = write(tmp_path / "wide.txt", "hello".encode("utf-16"))
    with pytest.raises(DataError, match=r"wide\.txt, line 1: .*looks like UTF-16"):
        list(read_lines(path))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused_unless_allowed(tmp_path, data):
    path = write(tmp_path / "none.txt", data)
    assert list(read_lines(path, allow_empty=True)) == []
    with pytest.raises(DataError, match=r"none\.txt: is empty"):
        list(read_lines(path))


def test_missing_files_folders_and_text_handles_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt: there is no such file"):
        list(read_lines(tmp_path / "gone.txt"))
    with pytest.raises(DataError, match="this is a folder"):
        list(read_lines(tmp_path))
    with pytest.raises(DataError, match="opened as text"):
        list(read_lines(io.StringIO("a")))


def test_a_damaged_archive_names_the_line_it_breaks_at(tmp_path):
    whole = gzip.compress("".join(f"line {i}\n" for i in range(5000)).encode())
    path = write(tmp_path / "half.gz", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"half\.gz, line \d+: the gzip archive is damaged"):
        list(read_lines(path))


def test_many_files_are_read_one_after_the_other(tmp_path):
    paths = [write(tmp_path / name, name.encode()) for name in "ab"]
    assert list(read_many(paths)) == ["a", "b"]


def test_pairs_belong_line_by_line(tmp_path):
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"A\nB")
    assert list(read_pairs(source, target)) == [("a", "A"), ("b", "B")]


@pytest.mark.parametrize("swap", [False, True])
def test_pairs_of_different_length_give_both_numbers(tmp_path, swap):
    paths = [write(tmp_path / "long", b"a\nb\nc\nd\n"), write(tmp_path / "short", b"A\nB\n")]
    source, target = reversed(paths) if swap else paths
    numbers = "has 2 lines, but .*long has 4" if swap else "has 4 lines, but .*short has 2"
    with pytest.raises(DataError, match=numbers):
        list(read_pairs(source, target))


def test_columns_are_counted_from_one(tmp_path):
    path = write(tmp_path / "t.tsv", b"en\tzh\twho\nen2\tzh2\twho2\n")
    assert list(read_columns(path)) == [("en", "zh"), ("en2", "zh2")]
    assert list(read_columns(path, (3, 1))) == [("who", "en"), ("who2", "en2")]


def test_a_missing_column_names_its_line(tmp_path):
    path = write(tmp_path / "t.tsv", b"a\tb\nonly\n")
    with pytest.raises(DataError, match=r"t\.tsv, line 2: has 1 columns, but column 2 is wanted"):
        list(read_columns(path))
