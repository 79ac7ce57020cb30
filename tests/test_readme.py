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


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_a_link_in_the_readme_leads_somewhere(target):
    assert (ROOT / target).exists(), f"README.md links to {target}, which is not there"
