"""`weft translate`: line in, line out, as people and pipes call it."""

import io
import json
import os
import pty
import select
import subprocess
import sys

import pytest

from tests.engine.tiny import tiny, tiny_folder
from weft.checkpoint.weft_folder import save_folder
from weft.cli import translate as module
from weft.cli.app import Command, main
from weft.engine.loaded_model import load

COMMANDS = {"translate": Command("weft.cli.translate", "Translate lines.")}
LINES = ["the cat", "", "a dog ate the mat on two apples", "  ", "它很甜"]
EXTRA_IDS = 64
PROGRAM = (
    "import sys; from weft.cli.app import Command, main;"
    "sys.exit(main(sys.argv[1:], {'translate': Command('weft.cli.translate', '')}))"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "m"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return str(path)


def weft(*args):
    return main(["translate", *map(str, args)], COMMANDS)


def type_in(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("beam", [1, 3])
def test_each_line_is_answered_in_its_place(model, file, capsys, beam):
    assert weft(model, file, "--beam", beam, "--device", "cpu") == 0
    expected = [module.one_line(text) for text in load(model).translate(LINES, beam=beam)]
    shown = capsys.readouterr()
    assert shown.out == "".join(f"{line}\n" for line in expected)
    assert shown.err == ""
    assert shown.out.split("\n")[1] == shown.out.split("\n")[3] == ""


@pytest.mark.parametrize("args", [[], ["-"]])
def test_without_a_file_standard_input_is_read(model, file, capsys, monkeypatch, args):
    weft(model, file)
    expected = capsys.readouterr().out
    type_in(monkeypatch, "\r\n".join(LINES).encode())
    assert weft(model, *args) == 0
    assert capsys.readouterr().out == expected
    type_in(monkeypatch, b"")
    assert weft(model, *args) == 0
    assert capsys.readouterr().out == ""


def test_json_has_source_translation_and_score(model, file, capsys):
    assert weft(model, file, "--beam", 2, "--length-penalty", 0.5, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["source"] for row in rows] == LINES
    found = load(model).translate_scored(LINES, beam=2, length_penalty=0.5)
    assert [row["translation"] for row in rows] == [one.text for one in found]
    assert [row["score"] for row in rows] == pytest.approx([one.score for one in found])
    assert rows[1]["score"] is None


def test_the_best_of_a_search_come_with_line_numbers_and_scores(model, file, capsys):
    found = load(model).translate_best(LINES, 2, beam=3)
    assert weft(model, file, "--beam", 3, "--n-best", 2) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    expected = [(n, one) for n, best in enumerate(found, 1) for one in best]
    assert [(int(row[0]), row[2]) for row in rows] == [
        (n, module.one_line(one.text)) for n, one in expected
    ]
    assert [row[1] for row in rows] == [
        "-" if one.score is None else f"{one.score:.4f}" for _, one in expected
    ]
    assert weft(model, file, "--beam", 3, "--n-best", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert list(told) == ["source", "translation", "score", "n_best"]
    assert [one["translation"] for one in told["n_best"]] == [one.text for one in found[0]]


def test_workers_change_nothing(model, file, capsys):
    assert weft(model, file, "--beam", 2) == 0
    alone = capsys.readouterr().out
    assert weft(model, file, "--beam", 2, "--workers", 2) == 0
    assert capsys.readouterr().out == alone
    assert weft(model, file, "--workers", 2, "--temperature", 1) == 2
    assert "workers only run beam" in capsys.readouterr().err


def test_translations_are_drawn_with_a_temperature(model, file, capsys):
    asked = ["--temperature", 1.5, "--top-k", 20, "--seed", 3]
    assert weft(model, file, *asked) == 0
    expected = load(model).translate(LINES, temperature=1.5, top_k=20, seed=3)
    assert capsys.readouterr().out.splitlines() == [module.one_line(text) for text in expected]
    assert weft(model, file, *asked, "--n-best", 3, "--cache", 0.01, "--prefix-cache", "none") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 * 3 + 2


def test_chunks_change_nothing_and_come_one_after_the_other(model, file, capsys, monkeypatch):
    weft(model, file)
    expected = capsys.readouterr().out
    monkeypatch.setattr(module, "CHUNK", 2)
    assert weft(model, file) == 0
    assert capsys.readouterr().out == expected
    assert list(module.chunks("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_a_chunk_is_answered_on_stdout_before_the_input_ends(model):
    """Also where stderr is a terminal, so that a progress bar is shown."""
    leader, terminal = pty.openpty()
    program = f"import weft.cli.translate as t; t.CHUNK = 2\n{PROGRAM}"
    command = [sys.executable, "-c", program, "translate", model]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, stderr=terminal, **pipes) as process:
        process.stdin.write(b"the cat\n\n")
        assert select.select([process.stdout], [], [], 60)[0], "no answer in a minute"
        first = process.stdout.readline()
        out, _ = process.communicate(b"a dog\n", timeout=60)
    os.close(terminal)
    os.close(leader)
    assert process.returncode == 0 and first.strip() and out.count(b"\n") == 2


def test_a_line_break_that_the_model_says_stays_on_the_line():
    assert module.one_line("a\nb\r\n\nc") == "a b c"
    assert module.one_line("a\u2028b") == "a\u2028b"


@pytest.mark.parametrize("keywords", [{"beam": 2}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_an_id_that_the_tokenizer_lacks_affects_only_its_line(tmp_path, file, capsys, keywords):
    """The vocabularies of models are often larger than those of their tokenizers."""
    size = tiny().tokenizer.vocab_size
    save_folder(tmp_path / "m", tiny(vocab_size=size + EXTRA_IDS, seed=1))
    best = [best for (best,) in load(tmp_path / "m").translate_best(LINES, 1, **keywords)]
    affected = [number for number, one in enumerate(best, 1) if one.unknown_ids]
    assert 0 < len(affected) < 3, "of three lines that are not blank"
    options = [text for name, value in keywords.items() for text in (f"--{name}", value)]
    assert weft(tmp_path / "m", file, *options) == 0
    shown = capsys.readouterr()
    assert shown.out.split("\n")[:-1] == [module.one_line(one.text) for one in best]
    assert shown.err.splitlines() == [
        f"line {number}: the model generated id {best[number - 1].unknown_ids[0]}, but its "
        f"tokenizer has the ids 0 to {size - 1}. The translation was printed without it."
        for number in affected
    ]


def test_lines_that_are_too_long_are_counted_on_stderr(model, tmp_path, capsys):
    path = tmp_path / "long.txt"
    path.write_text("the cat sat on the mat " * 30 + "\nthe cat\n")
    assert weft(model, path) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 2
    assert "1 cut at 40 tokens" in shown.err


def test_errors_are_one_sentence(model, tmp_path, capsys):
    bad, lm = tmp_path / "bad.txt", tiny_folder(tmp_path / "lm", "decoder")
    bad.write_bytes(b"the cat\n\xff\n")
    cases = [
        (["nowhere"], 1, "nowhere: there is no such model. Name a Weft folder"),
        ([model, "gone.txt"], 1, "gone.txt: there is no such file"),
        ([model, bad], 1, f"{bad}, line 2: byte 0xff at byte 1 of the line is not UTF-8"),
        ([lm, bad], 2, "this model is of kind decoder: translate needs"),
        ([model, bad, "--n-best", "3"], 2, "--n-best is 3 but --beam is 1: a beam search ret"),
        ([model, bad, "--beam", "2", "--temperature", "1"], 2, "--beam is 2 and --temperature 1"),
        ([model, bad, "--max-tokens", "99"], 2, "max_tokens is 99 but the model's max_len is 40"),
        ([model, bad, "--beam", "0"], 2, "--beam is 0: it must be greater than or equal to 1. See"),
        ([model, bad, "--device", "gpu"], 2, "device is 'gpu'"),
        ([], 2, "Missing argument 'MODEL'"),
    ]
    for args, code, message in cases:
        assert weft(*args) == code
        shown = capsys.readouterr()
        assert shown.err.startswith(message) and shown.err.count("\n") == 1
