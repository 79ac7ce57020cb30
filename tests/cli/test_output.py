"""Output of commands: JSON in plain UTF-8, tables, and status lines on stderr."""

from pathlib import Path

import pytest

from weft.cli.output import format_cell, print_json, print_table, progress, status
from weft.core.config import Config


class Size(Config):
    width: int = 3


def test_json_is_one_line_of_utf8_with_settings_and_paths_as_plain_values(capsys):
    print_json({"text": "\u5b83", "size": Size(), "path": Path("a/b")})
    assert capsys.readouterr().out == '{"text": "\u5b83", "size": {"width": 3}, "path": "a/b"}\n'


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_json_refuses_what_it_cannot_hold(value):
    with pytest.raises((TypeError, ValueError), match="JSON"):
        print_json({"x": value})


def test_a_table_shows_every_cell_as_it_is_and_numbers_to_the_right(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "[bold]" + "x" * 120
    print_table(["kind", "bytes"], [["mha", 1234567], [long, 8]], title="cost")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    title, header, _, first, second = lines
    assert title.strip() == "cost"
    assert header.split() == ["kind", "bytes"]
    assert first.split() == ["mha", "1,234,567"]
    assert second.split() == [long, "8"]
    assert first.rstrip().endswith("1,234,567")
    assert len(first.rstrip()) == len(second.rstrip())


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, "-"), (True, "yes"), (False, "no"), (1234, "1,234"), (0.123456, "0.1235"), ("a", "a")],
)
def test_a_cell_is_formatted_for_readers(cell, text):
    assert format_cell(cell) == text


def test_status_and_progress_are_not_printed_to_stdout(capsys):
    status("hello")
    with progress("work", total=2) as step:
        step(1)
    assert capsys.readouterr() == ("", "hello\n")


def test_a_long_cell_is_continued_on_the_next_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    signature = "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0"
    print_table(["score", "value", "another value"], [["signature", signature, signature]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60 and "\u2026" not in "".join(lines)
    shown = "".join(line.split()[-1] for line in lines if line.strip())
    assert shown.endswith(signature.replace(" ", ""))
