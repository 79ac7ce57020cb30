"""The measured side: requests on stdin -> answers on stdout, one JSON object a line.

    python child.py FILE        FILE holds a class System
    {"do": "load", "model": "smollm2.gguf", "threads": 2, "max_len": 2048}
    {"do": "generate", "prompts": [[5, 9]], "new_tokens": 3}
    {"do": "translate", "sources": [[5, 9, 2]], "beam": 5, "max_tokens": 40}

Every answer is {"seconds", "outputs", "version", "note"}; `outputs` has a list of ids for each
prompt or source. What fails is {"error": "..."}. "load" makes a System of what follows it, and any
other word calls its method of that name. When stdin ends, so does the process.

It runs under the Python of a peer, so it imports nothing of Weft's.
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
    """The class System of a file. The file's own name may be that of the library it imports."""
    spec = importlib.util.spec_from_file_location("measured", file)
    assert spec is not None and spec.loader is not None, f"{file} is not Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.System


class Served:
    """A System, once it is loaded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.system: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked, and how long it took."""
        do = request.pop("do")
        kind = read_system(self.file) if do == "load" else None
        begin = time.perf_counter()
        if kind is not None:
            self.system, outputs = kind(**request), []
            # what was loaded stays: no collection of garbage looks at it again, of any system
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
    # libraries print where they like: from here on that is stderr, and stdout is ours alone
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    served = Served(file)
    for line in sys.stdin:
        try:
            answer = served.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
