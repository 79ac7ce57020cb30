"""deploy/: what cannot run here is at least consistent with the repository and the options."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path

from weft.cli.options import option
from weft.serve.config import ServeConfig, serve_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_every_path_that_the_dockerfile_copies_exists():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("COPY ")]
    paths = [path for words in lines if "--from=build" not in words for path in words[:-1]]
    assert {"pyproject.toml", "src", "recipes"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_dockerfile_installs_the_torch_of_the_constraints():
    wanted = re.findall(r"torch==\S+", (DEPLOY / "Dockerfile").read_text())
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert wanted and set(wanted) <= set(constraints)


def test_the_variables_of_the_dockerfile_are_settings():
    names = re.findall(r"WEFT_SERVE_(\w+)", (DEPLOY / "Dockerfile").read_text())
    assert names and {name.lower() for name in names} <= ServeConfig.model_fields.keys()


def test_the_unit_waits_for_the_server_and_its_options_exist():
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "weft.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert float(service["TimeoutStopSec"]) > ServeConfig().drain_timeout
    words = shlex.split(service["ExecStart"])
    assert words[1] == "serve"
    known = {option(name) for name in ServeConfig.model_fields} | {"--config"}
    used = {word for word in words if word.startswith("--")}
    assert used and used <= known


def test_the_settings_file_is_valid():
    config = serve_settings({}, {}, DEPLOY / "serve.toml")
    assert config.models == ("smollm2",) and config.alias == {"gpt-4o": "smollm2"}
