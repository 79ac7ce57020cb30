"""The filters of jinja2 that templates of conversations use, each weighed before and after.

Those that reach for attributes by name, make random choices or write HTML are left out. A filter
that is not in the table is an error when the template is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS as ORIGINALS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context

from weft.text.sandbox.limits import LimitError, budget, checked, counted, listed, weigh
from weft.text.sandbox.limits import text_of as string
from weft.text.sandbox.operations import check_printf, check_replace, check_width
from weft.text.sandbox.operations import join as join_texts

Filter = Callable[..., Any]

AS_THEY_ARE = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "int", "items", "last", "length", "lower", "map", "max", "min", "reject", "rejectattr",
    "reverse", "safe", "select", "selectattr", "sort", "title", "trim", "unique", "upper",
    "truncate", "wordcount",
)  # fmt: skip
"""Their result is hardly larger than what enters."""


def check_widths(value: Any, *args: Any, **kwargs: Any) -> None:
    for width in (*args, *kwargs.values()):
        check_width(width)


def check_precision(value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
    if isinstance(precision, int) and abs(precision) > 100:
        raise LimitError(f"it rounds to {precision} places, beyond the 100 that are allowed")


def check_indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    check_width(width)
    text = string(value)
    step = len(width) if isinstance(width, str) else int(width)
    budget().allow_chars(len(text) + (text.count("\n") + 1) * step)


def check_format(value: Any, *args: Any, **kwargs: Any) -> None:
    check_printf(string(value), kwargs or args)


def check_replacing(value: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    check_replace(string(value), string(old), string(new))


CHECKED: dict[str, Filter] = {
    "batch": check_widths,
    "center": check_widths,
    "format": check_format,
    "indent": check_indent,
    "replace": check_replacing,
    "round": check_precision,
    "slice": check_widths,
}
"""Those that grow what enters, and what is looked at first."""


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Differs from jinja2's, which hides < and > for HTML; so do all peers."""
    weight = weigh(value)
    step = len(indent) if isinstance(indent, str) else max(0, int(indent or 0))
    between = sum(len(text) for text in separators or ())
    growth = 6 if ensure_ascii else 2
    item = 8 + between + step * weight.depth
    budget().allow_chars(growth * weight.chars + weight.items * item)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@pass_context
def join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    read = make_attrgetter(context.environment, attribute)
    return join_texts(string(d), [read(item) for item in listed(value)])


@pass_context
def add_up(context: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    """Numbers only: a sum of lists copies each of them again and again."""
    read = make_attrgetter(context.environment, attribute)
    total = start
    for number in map(read, listed(value)):
        if not isinstance(number, (int, float)) or not isinstance(total, (int, float)):
            raise LimitError("it sums what are not numbers")
        total += number
    return total


OWN: dict[str, Filter] = {
    "join": join,
    "list": listed,
    "string": string,
    "sum": add_up,
    "tojson": to_json,
}


def weighed(name: str, run: Filter) -> Filter:
    """A filter that counts as a step or more, and whose result is looked at."""
    takes = getattr(getattr(run, "jinja_pass_arg", None), "name", "nothing")

    # taking the context also keeps jinja2 from running it while it reads the template
    @pass_context
    def filter_(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget().spend(1 + size(value) // 256)
        if isinstance(value, Iterator):
            value = counted(value)
        if name in CHECKED:
            CHECKED[name](value, *args, **kwargs)
        first: dict[str, tuple[Any, ...]] = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
            "nothing": (),
        }
        return checked(run(*first[takes], value, *args, **kwargs))

    return filter_


def size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict, range)) else 0


FILTERS: dict[str, Filter] = {
    name: weighed(name, OWN.get(name) or ORIGINALS[name])
    for name in sorted({*AS_THEY_ARE, *CHECKED, *OWN})
}
