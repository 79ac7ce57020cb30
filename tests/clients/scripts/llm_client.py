"""llm, the command line: prompts, tools, schemas and completions. Arguments: the address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

MODELS = """
- model_id: local
  model_name: scripted
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
- model_id: local-completion
  model_name: scripted
  api_base: {url}/v1
  completion: true
"""
FUNCTION = "def weather(city: str) -> str:\n    'Weather of a city'\n    return 'sunny in ' + city"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class CommandLine:
    """llm with a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "extra-openai-models.yaml").write_text(MODELS.format(url=url))
        self.environment = {
            **os.environ,
            "LLM_USER_PATH": str(folder),
            "OPENAI_API_KEY": "none",
        }

    def run(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "llm"), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        llm = CommandLine(Path(folder), sys.argv[1])
        streamed = llm.run("-m", "local", "hello")
        assert streamed and llm.run("-m", "local", "--no-stream", "hello") == streamed
        called = llm.run("-m", "local", "--functions", FUNCTION, "Weather in Rome?")
        assert called == streamed, called
        text = llm.run("-m", "local", "--schema", json.dumps(SCHEMA), "a city, as JSON")
        assert json.loads(text) == {"city": "Rome"}
        assert llm.run("-m", "local-completion", "-o", "max_tokens", "5", "the cat")
    checked = [f"llm {version('llm')}", "prompt", "functions", "schema", "completion"]
    print(json.dumps({"checked": checked, "received": {}}))


if __name__ == "__main__":
    main()
