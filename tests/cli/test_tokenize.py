"""`weft tokenize`: text to pieces, ids and JSON, ids to text, and training, as people call it."""

import io
import json
import re
import shlex
import subprocess
import sys

import pytest
import typer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from typer.testing import CliRunner

from weft.cli import main
from weft.cli.tokenize import command
from weft.text.tokenizer import GPT2_BYTES, Tokenizer

LINES = ["the cat sat on the mat", "我吃了苹果，它很甜", "the dog sat on the cat"] * 3

app = typer.Typer()
app.command()(command)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    invoke([folder / "tok", "--train", folder / "corpus.txt", "--vocab-size", 320])
    return folder / "tok"


def invoke(arguments, text=""):
    result = CliRunner().invoke(app, list(map(str, arguments)), input=text.encode())
    if result.exception is not None:
        raise result.exception
    return result


def test_pieces_come_line_by_line_with_spaces_made_visible(model):
    out = invoke([model], "the cat\n\n它很甜\x07").stdout
    assert out == "<begin> the \u2581cat <end>\n<begin> <end>\n<begin> 它很甜 \\x07 <end>\n"
    assert invoke([model, "--no-special"], "the cat\n").stdout == "the \u2581cat\n"


def test_byte_level_tokens_are_printed_as_text(tmp_path):
    backend = Backend(BPE(dict(GPT2_BYTES), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    Tokenizer(backend).save(tmp_path / "tok")
    assert invoke([tmp_path / "tok"], "a \t它\n").stdout == "a \u2581 \\t <0xE5> <0xAE> <0x83>\n"
    [line] = invoke([tmp_path / "tok", "--json"], "a 它\n").stdout.splitlines()
    assert json.loads(line)["tokens"] == ["a", " ", "<0xE5>", "<0xAE>", "<0x83>"]


def test_ids_and_decode_are_opposites(model):
    text = "the cat ate 苹果 👍\n\n <end> \t\n"
    ids = invoke([model, "-", "--ids"], text).stdout
    assert re.fullmatch(r"(\d+( \d+)*\n){3}", ids)
    assert invoke([model, "--decode"], ids).stdout == text
    assert invoke([model, "--decode", "--special"], "1 2\n").stdout == "<begin><end>\n"
    assert invoke([model, "--decode"], "[1, 2]\n").stdout == "\n"


def test_json_has_text_tokens_ids_and_offsets(model):
    [line] = invoke([model, "--json"], "the 苹果é\n").stdout.splitlines()
    found = json.loads(line)
    assert list(found) == ["text", "tokens", "ids", "offsets"]
    assert found["ids"] == Tokenizer.load(model).encode("the 苹果é")
    assert len(found["tokens"]) == len(found["ids"]) == len(found["offsets"])
    assert found["tokens"][-3:] == ["<0xC3>", "<0xA9>", "<end>"]
    assert found["offsets"][-3:] == [[6, 7], [6, 7], [0, 0]]


def test_cut_lines_are_counted_on_stderr_and_in_the_spans(model):
    result = invoke([model, "--max-len", 3, "--json"], "the cat sat\nthe\n")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (len(first["ids"]), first["offsets"]) == (3, [[0, 0], [0, 3], [0, 0]])
    assert second["tokens"] == ["<begin>", "the", "<end>"]
    assert "2 lines, 6 tokens; 1 cut at 3 tokens (2 tokens lost)." in result.stderr


def test_several_files_are_read_one_after_the_other(model, tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text(f"{path.name}\n")
    assert len(invoke([model, *paths]).stdout.splitlines()) == 2


def test_training_writes_what_it_was_told_and_says_it(tmp_path):
    out = tmp_path / "words.json"
    arguments = [out, "--train", "--kind", "word", "--vocab-size", 50, "--lowercase"]
    result = invoke([*arguments, "--set", "min_frequency=1"], "The Cat\n")
    tokenizer = Tokenizer.load(out)
    assert tokenizer.decode(tokenizer.encode("THE CAT")) == "the cat"
    assert result.stdout == ""
    assert "words.json: a word tokenizer with 7 ids, trained on standard input." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "nowhere: there is no such tokenizer"),
        (["MODEL", "--kind", "bpe"], 2, "kind is a setting for training, but --train is missing"),
        (["MODEL", "--ids", "--json"], 2, "--ids and --json cannot be combined"),
        (["MODEL", "--train", "--ids"], 2, "--train and --ids cannot be combined"),
        (["MODEL", "gone.txt"], 1, "gone.txt: there is no such file"),
        (["MODEL", "--max-len", "2"], 2, "max_len is 2 but begin and end alone take 2"),
        (["x", "--train", "--kind", "bpp"], 2, "'bpp' is not a known kind of tokenizer"),
        (["x", "--train", "--set", "normalise"], 2, "--set 'normalise' has no value"),
    ],
)
def test_mistakes_are_one_clear_sentence(model, monkeypatch, capsys, arguments, code, message):
    monkeypatch.setattr("sys.stdin", FakeInput(b"a\n"))
    arguments = [str(model) if word == "MODEL" else word for word in arguments]
    assert main(["tokenize", *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"1 2\n3 x\n", "standard input, line 2: 'x' is not an id"),
     (b"99999\n", "id 99999 is not in the vocabulary"),
     (b"1 " + b"9" * 5000 + b"\n", "line 1: '" + "9" * 79 + "... is not an id. --decode reads"),
     (b"1 \xff\n", "standard input, line 1: byte 0xff at byte 3")],
)  # fmt: skip
def test_bad_ids_and_bytes_name_their_line(model, monkeypatch, capsys, line, message):
    monkeypatch.setattr("sys.stdin", FakeInput(line))
    assert main(["tokenize", str(model), "--decode"]) in (1, 2)
    assert message in capsys.readouterr().err


def test_the_examples_in_the_help_text_work_as_pasted(tmp_path):
    examples = re.findall(r"^ *((?:weft --help|echo) .*weft tokenize .*)$", command.__doc__, re.M)
    assert len(examples) == 3
    program = f"{shlex.quote(sys.executable)} -m weft"
    outputs = [run_shell(example.replace("weft ", f"{program} "), tmp_path) for example in examples]
    assert outputs[1].startswith("<begin> ")
    assert outputs[2] == "Show the tokens.\n"


def run_shell(line, folder):
    shell = subprocess.run(["bash", "-ec", line], cwd=folder, capture_output=True, check=True)
    return shell.stdout.decode()


class FakeInput:
    """Standard input with these bytes."""

    def __init__(self, data):
        self.buffer = io.BytesIO(data)
