"""jinja2's sandbox for templates of conversations: what may be called is a list, and counted.

Differs from ImmutableSandboxedEnvironment: an unsafe attribute is an error at once (there it is an
empty text until it is used), unknown things may not be called, other files may not be included,
and the parsed template is changed so that loops count, and texts and lists are weighed when they
are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from weft.text.sandbox.filters import FILTERS
from weft.text.sandbox.limits import CURRENT, Budget, LimitError, Limits, budget, checked, text_of
from weft.text.sandbox.operations import METHOD_CHECKS, Format, check_operator, concat
from weft.text.sandbox.operations import join as join_texts
from weft.text.sandbox.rewrite import rewrite

TEXT = (
    "capitalize casefold center count endswith find format format_map index isalnum isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper "
    "join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill"
)
LOOP = (
    "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0"
)
ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(TEXT.split())),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (LoopContext, frozenset(LOOP.split())),
    (Cycler, frozenset({"current", "next", "reset"})),
)
"""What may be read of an object, and called if it can be; of others, nothing."""
TIME_FORMAT = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,200}", re.DOTALL)


class Generation(Extension):
    """{% generation %}: marks what the model wrote, for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateNamespace(Namespace):
    """{% set ns.x = 1 %}, with plain names only."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            refuse_hidden_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        refuse_hidden_name(name)
        super().__setitem__(name, value)


def refuse_hidden_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"it names a variable {name!r}")


def raise_exception(message: Any) -> NoReturn:
    """How a template refuses a conversation."""
    raise RefusalError(text_of(message))


class RefusalError(TemplateError):
    """A template's own complaint about a conversation."""


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def tick() -> None:
    """One round of a loop."""
    budget().spend()


def same(value: Any) -> Any:
    """A text of the template, or a list that it makes; `call` weighs it."""
    return value


@pass_context
def write(context: Context, value: Any) -> str:
    """What {{ value }} puts into the output, or into a variable."""
    text = text_of(value)
    budget().write(len(text))
    return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """`now` is the time that strftime_now tells."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    # called by what `rewrite` puts into templates; no template can name them
    weft_tick = staticmethod(tick)
    weft_same = staticmethod(same)
    weft_concat = staticmethod(concat)

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, loopcontrols],
            finalize=write,
        )
        self.now = now
        self.filters = dict(FILTERS)
        self.functions: dict[str, Callable[..., Any]] = {
            "range": safe_range,
            "dict": make_dict,
            "namespace": TemplateNamespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": raise_exception,
            "strftime_now": self.strftime_now,
        }
        self.globals.clear()
        self.globals.update(self.functions)

    def strftime_now(self, format: str) -> str:
        if not isinstance(format, str) or not TIME_FORMAT.fullmatch(format):
            raise SecurityError("it asks for the time in a format that is not known")
        return self.now().strftime(format)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute.startswith("_"):
            self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """A text may also be the name of an attribute, but in a table it is a key."""
        if isinstance(argument, str) and argument.startswith("_") and not isinstance(obj, dict):
            self.unsafe_undefined(obj, argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, (Namespace, Undefined)):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if not isinstance(value, (BuiltinMethodType, MethodType)):
            return None
        owner, name = value.__self__, value.__name__
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        return Format(self, str(owner), takes_map=name == "format_map")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget().spend()
        if isinstance(obj, (BuiltinMethodType, MethodType)):
            owner, name = obj.__self__, obj.__name__
            if owner is not self:
                self.check_method(owner, name, args, kwargs)
                if name == "join" and isinstance(owner, str):
                    return join_texts(str(owner), *args)
        elif not self.may_be_called(obj):
            raise SecurityError(f"it calls a {type(obj).__name__}")
        return checked(super().call(context, obj, *args, **kwargs))

    def check_method(
        self, owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if not self.is_safe_attribute(owner, name, None):
            raise SecurityError(f"it calls {name!r} of a {type(owner).__name__}")
        if isinstance(owner, str):
            budget().spend(len(owner) // 256)
            if name in METHOD_CHECKS:
                METHOD_CHECKS[name](owner, *args, **kwargs)

    def may_be_called(self, obj: Any) -> bool:
        if isinstance(obj, (Macro, LoopContext, Joiner, Format, Undefined)):
            return True
        known = (tick, same, concat, *self.functions.values())
        return any(obj is function for function in known)


def compile_template(source: str, now: Callable[[], datetime] = datetime.now) -> Template:
    """The template, changed so that rendering it is bounded."""
    environment = ChatEnvironment(now)
    return environment.from_string(rewrite(environment.parse(source)))


def render(template: Template, variables: Mapping[str, Any], limits: Limits) -> str:
    """The text, or a LimitError when it wants more than it may."""
    token = CURRENT.set(Budget(limits))
    try:
        parts: list[str] = []
        chars = 0
        for part in template.generate(variables):
            chars += len(part)
            if chars > limits.chars:
                raise LimitError(f"its result has more than {limits.chars} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        CURRENT.reset(token)
