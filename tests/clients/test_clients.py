"""Real clients, in environments of their own (`make clients`), against a real server.

Each script of scripts/ uses one client and validates every byte that it receives against the types
of the client's package. `make test` runs one client for each protocol, `make test-slow` all.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.install import COMMAND, environments, is_installed, python_of, requirements
from tests.clients.speaker import speaking_service
from tests.serve.server import RunningServer, running

SCRIPTS = Path(__file__).parent / "scripts"
SLOW = pytest.mark.slow

CLIENTS = [
    pytest.param("a", "openai_client", "/v1/chat/completions", id="openai-3"),
    pytest.param("a", "openai_responses_client", "/v1/responses", id="openai-3-responses"),
    pytest.param("a", "anthropic_client", "/v1/messages", id="anthropic"),
    pytest.param("a", "ollama_client", "/api/chat", id="ollama"),
    pytest.param("b", "openai_client", "/v1/chat/completions", id="openai-2", marks=SLOW),
    pytest.param(
        "b", "openai_responses_client", "/v1/responses", id="openai-2-responses", marks=SLOW
    ),
    pytest.param("b", "langchain_client", "/v1/chat/completions", id="langchain", marks=SLOW),
    pytest.param("b", "llm_client", "/v1/chat/completions", id="llm", marks=SLOW),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(speaking_service()) as one:
        yield one


def require(environment: str) -> None:
    """Skip the test if an environment is missing; with CI=true, fail."""
    if is_installed(environment):
        return
    message = f"the clients of tests/clients/{environment}.txt are not installed: run `{COMMAND}`"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def run_script(environment: str, script: str, url: str) -> dict[str, Any]:
    """What a script printed."""
    # the test process has variables of its own for Python
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(python_of(environment)), str(SCRIPTS / f"{script}.py"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=kept)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("environment", "script", "route"), CLIENTS)
def test_a_client_accepts_every_response(server, environment, script, route):
    require(environment)
    report = run_script(environment, script, server.url)
    assert len(report["checked"]) > 3
    assert script == "llm_client" or report["received"][route] > 5
    server.wait_idle()


@pytest.mark.parametrize("name", environments())
def test_every_version_is_pinned(name):
    lines = requirements(name).read_text().splitlines()
    assert lines and all(line.count("==") == 1 for line in lines)


@pytest.mark.parametrize("is_ci", [True, False])
def test_a_missing_client_fails_only_in_ci(monkeypatch, is_ci):
    monkeypatch.setattr("tests.clients.test_clients.is_installed", lambda _: False)
    monkeypatch.setenv("CI", "true" if is_ci else "")
    wanted = pytest.fail.Exception if is_ci else pytest.skip.Exception
    with pytest.raises(wanted, match="run `make clients`"):
        require("a")
