"""The program of the template helper process: requests on stdin -> replies on stdout.

    request   {"source": template, "variables": {name: value} | null}    null: only compile
    reply     {"text": ...} | {"invalid": why} | {"failed": why} | {"refused": why}
              after compiling, the text is the names that the template reads

Each is JSON in UTF-8 after its length in 8 bytes, big-endian; a first reply signals that the
program is ready. It imports the standard library and jinja2, nothing of Weft. Templates have the
globals of transformers. Differs from jinja2's sandbox: an unsafe attribute is an error at once, and
functions cannot be printed (their repr shows addresses).
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, NoReturn

sys.path.extend(sys.argv[3:])  # `-S` left out site-packages: the folders of jinja2 and markupsafe

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationTag(Extension):
    """{% generation %} marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateFunction:
    """A function or method that a template may call, but not print."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        raise SecurityError("it writes a function, which is not text")


class TemplateNamespace(Namespace):
    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it names a variable {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        raise SecurityError("it writes a namespace, which is not text")


class RefusalError(Exception):
    """The template called raise_exception."""


def raise_exception(message: Any) -> NoReturn:
    raise RefusalError(str(message))


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    """Plain JSON with the arguments of transformers; jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


@pass_context  # jinja2 calls it for constants while it compiles, unless it takes the context
def check_printable(context: Context, value: Any) -> Any:
    """The value of {{ ... }}; an error if its text would show an object of Python."""
    if isinstance(value, (str, int, float, list, tuple, dict, range, Undefined)) or value is None:
        return value
    raise SecurityError(f"it writes a {type(value).__name__}, which is not text")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=check_printable,
            optimized=False,  # compiling evaluates nothing
        )
        self.add_extension(GenerationTag)
        self.add_extension(loopcontrols)
        self.filters["tojson"] = to_json
        self.globals |= {"namespace": TemplateNamespace, "raise_exception": raise_exception}
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        self.globals = {name: TemplateFunction(value) for name, value in self.globals.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.checked(obj, attribute, super().getattr)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self.checked(obj, argument, super().getitem)

    def checked(self, obj: Any, name: Any, look_up: Callable[[Any, Any], Any]) -> Any:
        """Look a name up. In a dict, a name with an underscore may be a key."""
        if isinstance(name, str) and name.startswith("_") and not isinstance(obj, dict):
            self.unsafe_undefined(obj, name)
        value = look_up(obj, name)
        is_function = isinstance(value, (BuiltinMethodType, MethodType, FunctionType))
        return TemplateFunction(value) if is_function else value

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")


ENVIRONMENT = ChatEnvironment()
compile_template = lru_cache(maxsize=8)(ENVIRONMENT.from_string)


def variables_of(source: str) -> str:
    """The names that a template reads, separated by spaces. Differs from jinja2's `meta` module,
    which evaluates constants."""
    names = ENVIRONMENT.parse(source).find_all(nodes.Name)
    return " ".join(sorted({node.name for node in names if node.ctx == "load"}))


def reply_to(source: str, variables: dict[str, Any] | None) -> dict[str, str]:
    failure = "invalid"
    try:
        template = compile_template(source)
        if variables is None:
            return {"text": variables_of(source)}
        failure = "failed"
        return {"text": template.render(variables)}
    except MemoryError:
        raise
    except RefusalError as error:
        return {"refused": str(error)[:1000]}
    except RecursionError:
        return {failure: "it calls itself without end"}
    except Exception as error:  # a template can make jinja2 raise anything
        return {failure: (str(error) or type(error).__name__)[:1000]}


def send(reply: dict[str, str]) -> None:
    payload = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(len(payload).to_bytes(8, "big") + payload)
    sys.stdout.buffer.flush()


def main(megabytes: int, seconds: float) -> None:
    # address space; no written files, no further processes, no core dumps
    for name, value in {"AS": megabytes << 20, "FSIZE": 0, "NPROC": 0, "CORE": 0}.items():
        with suppress(ValueError, OSError):  # a lower limit already holds; macOS has no RLIMIT_AS
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    send({"text": ""})
    while header := sys.stdin.buffer.read(8):
        request = json.loads(sys.stdin.buffer.read(int.from_bytes(header, "big")))
        # the parent keeps the time limit; the alarm ends this process if the parent is gone
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds)
        send(reply_to(**request))
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), float(sys.argv[2]))
    except MemoryError:  # a reply might need memory too, so the exit code is the reply
        os._exit(3)
