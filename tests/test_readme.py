"""The README is true: its Python runs, its `weft` lines end well, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from weft.cli.app import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def shell_lines():
    return [line for block in blocks("sh") for line in block.splitlines()]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_readme_runs(code):
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("line", shell_lines())
def test_a_command_in_the_readme_ends_well(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program, *args = shlex.split(line)
    if program == "make":
        assert f"\n{args[0]}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
        return
    assert program == ".venv/bin/weft"
    assert main(args) == 0, capsys.readouterr().err


SMALL = ["model.width=16", "model.num_layers=1", "model.attention.num_heads=2"]
SMALL += ["tokenizer.vocab_size=300", "train.steps=3", "train.batch_tokens=200"]


def test_the_commands_for_your_own_pairs_work_on_a_few_lines(tmp_path, monkeypatch, capsys):
    """As they stand, in a folder with such files; only the size of the model is made small."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.de", "val.en", "val.de", "test.en", "test.de", "input.txt"):
        Path(name).write_text("".join(f"a dog {i} runs\n" for i in range(20)))
    (block,) = re.findall(r"```\n(weft train.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines():
        program, *args = shlex.split(line)
        if args[0] == "train":
            args += [part for change in SMALL for part in ("--set", change)]
        assert program == "weft" and main(args) == 0, capsys.readouterr().err


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_a_link_in_the_readme_leads_somewhere(target):
    assert (ROOT / target).exists(), f"README.md links to {target}, which is not there"
