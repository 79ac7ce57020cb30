"""A new sampler is one field in params.py and one function in logits_processors.py.

The test adds top-a (tokens with p < a * p_max ** 2 are excluded) to a copy of the package, in these
two files only, and finds it as an option of the command line, as a keyword in Python and in the
sampler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import weft

FIELD = """    top_a: float = Field(0.0, ge=0, le=1)
    \"\"\"Minimum probability of a token, relative to the square of the largest one.\"\"\"
"""

FUNCTION = """def top_a(logits_V: Tensor, row: SamplingRow) -> Tensor:
    if row.params.top_a == 0:
        return logits_V
    p_V = probabilities(logits_V)
    return logits_V.masked_fill(p_V < row.params.top_a * p_V.max() ** 2, NEG_INF)


"""

SCRIPT = """
import torch
from typer.testing import CliRunner

from weft.cli.app import COMMANDS, build_app
from weft.engine.request_builder import GenerationOptions
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.sampler import sample

for command in ("generate", "chat", "translate"):
    shown = CliRunner().invoke(build_app(COMMANDS, command), [command, "--help"]).output
    assert "--top-a" in shown and "relative to the square" in " ".join(shown.split()), shown
options = GenerationOptions.of(max_tokens=3, top_a=1.0)
logits_V = torch.log(torch.tensor([0.4, 0.15, 0.3, 0.15]))
rows = [SamplingRow(options.sampling, position) for position in range(200)]
print(sorted(set(sample(logits_V.expand(200, -1), rows).tolist())))
try:
    GenerationOptions.of(max_tokens=3, top_a=1.5)
except ValueError as error:
    print(error)
"""


def insert(path: Path, before: str, text: str) -> None:
    source = path.read_text()
    assert source.count(before) == 1, before
    path.write_text(source.replace(before, text + before))


def test_a_new_sampler_touches_two_files(tmp_path: Path) -> None:
    root = Path(weft.__file__).parent
    shutil.copytree(root, tmp_path / "weft", ignore=shutil.ignore_patterns("__pycache__"))
    params = tmp_path / "weft/sampling/params.py"
    processors = tmp_path / "weft/sampling/logits_processors.py"
    insert(params, "    repetition_penalty: float = Field", FIELD)
    insert(params, "    repetition_penalty: float\n", "    top_a: float\n")
    insert(processors, "PROCESSORS: dict", FUNCTION)
    insert(processors, '}\n"""Applied before a random draw', '    "top_a": top_a,\n')
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    drawn, refused = run.stdout.splitlines()
    assert drawn == "[0, 2]", "0.15 is below 0.4 ** 2, 0.3 is not"
    assert "top_a is 1.5: it must be less than or equal to 1" in refused
