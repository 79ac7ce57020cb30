"""The child process of a measured system: requests on stdin -> responses on stdout, as JSON lines.

    python child.py FILE        FILE has a class System
    {"do": "load", "model": "smollm2.gguf", "threads": 2, "max_len": 2048}
    {"do": "generate", "prompts": [[5, 9]], "new_tokens": 3}
    {"do": "translate", "sources": [[5, 9, 2]], "beam": 5, "max_tokens": 40}

Every response is {"seconds", "outputs", "version", "note"}; `outputs` has a list of ids for each
prompt or source. A failure is {"error": "..."}. "load" constructs the System from the other keys,
any other value of "do" calls its method of that name. The process ends when stdin does.

It runs under the Python of a peer, so it does not import Weft.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from typing import Any


def read_system(file: str) -> Any:
    """The class System of a file, whose name may be that of the library it imports."""
    spec = importlib.util.spec_from_file_location("measured", file)
    assert spec is not None and spec.loader is not None, f"{file} is not Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.System


class SystemServer:
    """Serves requests to a System, once it is loaded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.system: Any = None

    def respond(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a request and measure its time."""
        do = request.pop("do")
        kind = read_system(self.file) if do == "load" else None
        begin = time.perf_counter()
        if kind is not None:
            self.system, outputs = kind(**request), []
            # for every system: garbage collections do not visit what was loaded
            gc.collect()
            gc.freeze()
        else:
            outputs = getattr(self.system, do)(**request)
        return {
            "seconds": time.perf_counter() - begin,
            "outputs": outputs,
            "version": self.system.version,
            "note": getattr(self.system, "note", ""),
        }


def main(file: str) -> None:
    # libraries may print: redirect that to stderr and keep stdout for responses
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = SystemServer(file)
    for line in sys.stdin:
        try:
            response = server.respond(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            response = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":
    main(sys.argv[1])
