"""`weft generate`: one prompt as it comes, many at once, several answers; what --json tells; and
what is refused before a model is loaded."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

import weft
from tests.engine.tiny import pieces, tiny_folder
from weft.checkpoint.weft_folder import TEMPLATE_FILE
from weft.cli import generate as module
from weft.cli.app import Command, main

COMMANDS = {"generate": Command("weft.cli.generate", "Continue a text.")}
LINES = ["the cat", "", "a dog ate", "  ", "它", "the mat"]
KEYS = ["index", "prompt", "text", "tokens", "finish_reason", "stop_reason", "usage"]
DRAWN = ["--temperature", "0.9", "--top-p", "0.95", "--seed", "4", "--max-tokens", "8"]
SAME = {"temperature": 0.9, "top_p": 0.95, "seed": 4, "max_tokens": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("lm") / "model", "decoder")


@pytest.fixture(scope="module")
def writer(folder: Path):
    return weft.load(folder)


@pytest.fixture(scope="module")
def without_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model m that has no weights, and some schemas."""
    path = tmp_path_factory.mktemp("bare")
    (tiny_folder(path / "m", "decoder") / "model.safetensors").unlink()
    for name, text in {"bad": "{", "list": "[1]", "ok": "{}"}.items():
        (path / f"{name}.json").write_text(text)
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def ask(folder, capsys):
    """Call the command; its lines of output, and that nothing else was said."""

    def call(*args) -> list[str]:
        assert main(["generate", str(folder), *map(str, args)], COMMANDS) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        return shown.out.splitlines()

    return call


def objects(lines):
    return [json.loads(line) for line in lines]


def test_a_text_streams_what_python_gives(folder, writer, capsys) -> None:
    expected = writer.generate("the", max_tokens=8, temperature=0.0)
    assert main(["generate", str(folder), "the", "--max-tokens", "8"]) == 0
    assert capsys.readouterr().out == expected + "\n"


def test_json_tells_text_tokens_and_why_it_ended(ask, writer) -> None:
    (result,) = objects(ask("the", "--json", *DRAWN))
    assert list(result) == KEYS
    assert result["usage"]["prompt_tokens"] == len(writer.prompt_ids("the"))
    assert result["usage"]["completion_tokens"] == len(result["tokens"]) <= 8
    assert result["text"] == "".join(pieces(writer.tokenizer, result["tokens"]))
    is_full = len(result["tokens"]) == 8
    assert (result["finish_reason"], result["stop_reason"]) == (
        "length" if is_full else "stop",
        None,
    )


def test_a_text_ends_before_a_stop(ask, writer) -> None:
    whole = writer.generate("the", max_tokens=20, temperature=0.0)
    stop = whole[2:4]
    assert ask("the", "--max-tokens", 20, "--stop", "@@", "--stop", stop) == [
        whole[: whole.find(stop)]
    ]
    (result,) = objects(ask("the", "--max-tokens", 20, "--stop", stop, "--json"))
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", stop)


def test_many_prompts_are_answered_line_by_line(ask, writer, prompts, monkeypatch) -> None:
    expected = [writer.generate(line, **SAME) if line.strip() else "" for line in LINES]
    actual = ask("--prompts", prompts, *DRAWN)
    assert actual == [module.one_line(text) for text in expected]
    monkeypatch.setattr(module, "CHUNK", 2)
    assert ask("--prompts", prompts, *DRAWN) == actual
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompts.read_bytes())))
    result = objects(ask("--prompts", "-", "--json", *DRAWN))
    assert [one["prompt"] for one in result] == LINES
    assert [one["text"] for one in result] == expected
    assert all(list(one) == KEYS for one in result) and result[1]["finish_reason"] is None


def test_several_answers_to_each_prompt(ask, writer, prompts) -> None:
    texts = [writer.generate("the cat", **{**SAME, "seed": 4 + i}) for i in range(3)]
    assert ask("the cat", "--n", 3, *DRAWN) == [module.one_line(text) for text in texts]
    result = objects(ask("--prompts", prompts, "--n", 3, "--json", *DRAWN))
    assert [one["index"] for one in result] == [0, 1, 2] * len(LINES)
    assert [one["text"] for one in result[:3]] == texts


def test_log_probabilities_are_printed_with_their_tokens(ask) -> None:
    (result,) = objects(ask("the", "--json", "--logprobs", 2, "--max-tokens", 5))
    assert list(result) == [*KEYS[:-1], "logprobs", "usage"]
    assert [one["id"] for one in result["logprobs"]] == result["tokens"]
    for one in result["logprobs"]:
        assert list(one) == ["token", "id", "logprob", "top_logprobs"] and one["logprob"] < 0
        same = {name: one[name] for name in ("token", "id", "logprob")}
        assert one["top_logprobs"][0] == same and len(one["top_logprobs"]) == 2


def test_a_grammar_is_kept_to_and_a_cut_is_said(ask, folder, tmp_path, capsys) -> None:
    pattern = "[ab]{3}-[0-9]"
    (text,) = ask("the", "--regex", pattern, "--temperature", "1", "--max-tokens", "20")
    assert re.fullmatch(pattern, text)
    schema = tmp_path / "schema"
    schema.write_text('{"enum": [true, 17, "cat"]}')
    (text,) = ask("the", "--json-schema", schema, *DRAWN, "--max-tokens", 35)
    assert json.loads(text) in (True, 17, "cat")
    assert main(["generate", str(folder), "the", "--regex", pattern, "--max-tokens", "2"]) == 0
    assert "stopped at --max-tokens before the grammar was complete" in capsys.readouterr().err


def test_penalties_and_the_settings_of_the_engine_reach_it(ask, writer) -> None:
    expected = writer.generate("the", 9, temperature=0.0, repetition_penalty=5.0)
    actual = ask("the", "--max-tokens", 9, "--repetition-penalty", 5, "--json")
    assert objects(actual)[0]["text"] == expected != writer.generate("the", 9, temperature=0.0)
    plain = ask("the", "--max-tokens", 9, "--presence-penalty", 0, "--frequency-penalty", 0)
    settings = ["--cache", "0.01", "--prefix-cache", "none", "--speculate"]
    assert ask("the", "--max-tokens", 9, *settings) == plain


def test_settings_without_effect_are_said_once(folder, capsys) -> None:
    asked = ["generate", str(folder), "the", "--max-tokens", "3", "--top-p", "0.9", "--n", "2"]
    assert main([*asked, "--seed", "3"]) == 0
    result = capsys.readouterr().err
    assert "--top-p and --seed have no effect: --temperature is 0" in result
    assert "the 2 completions will be equal" in result and result.count("\n") == 2


def test_a_prompt_that_cannot_be_asked_is_named_by_its_line(folder, tmp_path, capsys) -> None:
    path = tmp_path / "p.txt"
    path.write_text("the cat\n" + "the cat sat on the mat " * 20 + "\n")
    assert main(["generate", str(folder), "--prompts", str(path)], COMMANDS) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"{path}, line 2: the prompt has") and shown.out == ""
    assert "max_len is 40" in shown.err


BEFORE = [
    (["a", "--prompts", "b"], 2, "PROMPT is 'a' and --prompts is 'b': only one of them"),
    (["a", "--logprobs", "2"], 2, "--logprobs is 2, but only --json prints log-prob"),
    (["a", "--min-p", "1"], 2, "min_p is 1.0: it must be less than 1"),
    (["a", "--top-p", "1.5"], 2, "--top-p is 1.5: it must be less than or equal to 1. See"),
    (
        ["a", "--repetition-penalty", "0"],
        2,
        "--repetition-penalty is 0: it must be greater than or equal to 0.000001",
    ),
    (["a", "--frequency-penalty", "3"], 2, "--frequency-penalty is 3: it must be less than"),
    (["a", "--temperature", "nan"], 2, "--temperature is nan: it must be less than or equal"),
    (["a", "--stop", ""], 2, "a stop is '': it must have at least one character"),
    (["a", "--n", "0"], 2, "--n is 0: it must be greater than or equal to 1"),
    (["a", "--cache", "-1"], 2, "--cache is '-1': it must be a number of GiB from 0"),
    (["a", "--cache", "inf"], 2, "--cache is 'inf': it must be a number of GiB from 0"),
    (["a", "--prefix-cache", "tree"], 2, "prefix_cache is 'tree': allowed are none, hash, radix"),
    (["a", "--regex", "["], 2, "the grammar cannot be compiled: invalid"),
    (["a", "--json-schema", "gone.json"], 1, "gone.json: there is no such file"),
    (["a", "--json-schema", "bad.json"], 1, "bad.json: cannot be read as JSON"),
    (["a", "--json-schema", "list.json"], 2, "the JSON schema is list"),
    (["a", "--regex", "a", "--json-schema", "ok.json"], 2, "json_schema and regex are both"),
    (["a", "--max-tokens", "40"], 2, "max_tokens is 40 but the model's max_len is 40"),
]


@pytest.mark.parametrize(("args", "code", "message"), BEFORE, ids=[str(b[0][1:]) for b in BEFORE])
def test_what_cannot_work_is_refused_before_weights_are_read(
    args, code, message, without_weights, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(without_weights)
    assert main(["generate", "m", *args], COMMANDS) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(message) and shown.err.count("\n") == 1, shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        ("chat", "encoder", "this model is of kind encoder: chat needs a model of kind dec"),
        ("chat", "encoder-decoder", "this model is of kind encoder-decoder: chat needs"),
        ("generate", "encoder", "this model is of kind encoder: generate needs a model of"),
        ("translate", "decoder", "this model is of kind decoder: translate needs"),
        ("translate", "encoder", "this model is of kind encoder: translate needs"),
    ],
)
def test_a_kind_that_cannot_is_refused_at_once(
    command, kind, message, tmp_path, monkeypatch, capsys
) -> None:
    model = tiny_folder(tmp_path / "m", kind)
    (model / "model.safetensors").unlink()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main([command, str(model)]) == 2
    result = capsys.readouterr().err
    assert result.startswith(message) and result.count("\n") == 1
    advice = {"encoder": "`embed`", "decoder": "`generate`", "encoder-decoder": "`translate`"}
    assert advice[kind] in result


def test_what_was_kept_serves_the_next_run(folder: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "kept.cache"
    prompt = "the cat sat on the mat a dog ate two apples the cat sat on"
    call = ["generate", str(folder), prompt, "--max-tokens", "4", "--keep", str(file)]
    shown = []
    for _ in range(2):
        assert main(call, COMMANDS) == 0
        shown.append(capsys.readouterr())
    assert shown[0].out == shown[1].out
    assert re.fullmatch(r"saved .*kept\.cache: [1-9]\d* pages: .*\n", shown[0].err)
    assert re.match(r".*kept\.cache: [1-9]\d* pages: ", shown[1].err)
    assert len(shown[1].err.splitlines()) == 2


def test_a_file_that_is_no_cache_is_refused_and_left_alone(
    folder: Path, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("dear all")
    assert main(["generate", str(folder), "the cat", "--keep", str(file)], COMMANDS) == 1
    assert "letter.txt" in capsys.readouterr().err
    assert file.read_text() == "dear all"


def test_template_makes_each_prompt_a_message(
    tmp_path: Path, prompts: Path, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    chat = tiny_folder(tmp_path / "chat", "decoder")
    (chat / TEMPLATE_FILE).write_text("{% for m in messages %}{{ m.content }} eats{% endfor %}")
    model = weft.load(chat)
    expected = [model.generate(f"{one} eats", **SAME) if one.strip() else "" for one in LINES]
    words = ["generate", str(chat), "--template", *DRAWN]
    assert main([*words, "--prompts", str(prompts)], COMMANDS) == 0
    assert capsys.readouterr().out.splitlines() == [module.one_line(one) for one in expected]
    assert main([*words, "the cat"], COMMANDS) == 0
    assert capsys.readouterr().out == expected[0] + "\n"
    assert main([*words, "the cat", "--watch"], COMMANDS) == 0
    assert capsys.readouterr().out.endswith("\n" + expected[0] + "\n")
    assert main(["generate", str(folder), "the cat", "--template"], COMMANDS) == 2
    assert "has no chat template" in capsys.readouterr().err
