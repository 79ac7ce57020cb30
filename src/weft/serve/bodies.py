"""Request bodies: the class of each field, and errors for unknown fields with the nearest name.

    class CompletionBody(Body):
        prompt: str
        user: NoEffect[str] = None          accepted and ignored
        suffix: Annotated[Any, rejected("Leave it out.")] = None

Every field has one of four classes: honored, no effect, template variable, or rejected; the tables
of docs/serve.md are generated from them. `Body` rejects unknown fields; with `--lenient` the header
x-weft-warning names them instead. `LooseBody` ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from weft.serve.api_errors import ApiError
from weft.serve.field_hints import field_hint

T = TypeVar("T")

MAX_SHOWN = 60
"""Characters of a wrong value in a message."""
SHOULD_BE = "Input should be "
SCALARS = ("str", "int", "float", "bool")


@dataclass(frozen=True)
class FieldClass:
    """The class of a field."""

    name: str
    """honored, no effect, template variable or rejected."""
    note: str = ""
    code: str | None = None
    """End of the error message of a rejected field."""


HONORED = FieldClass("honored")
NO_EFFECT = FieldClass("no effect")
TEMPLATE = FieldClass("template variable")

NoEffect = Annotated[T | None, NO_EFFECT]
"""A field that clients send and that has no effect here."""
TemplateVariable = Annotated[T | None, TEMPLATE]
"""A field that is passed to the chat template."""


NOTHING: tuple[object, ...] = (None, False, "", [], {})
"""Values that mean that a field is not used."""


def rejected(note: str, code: str | None = None) -> FieldClass:
    """The class of a field that is an error 400: `Annotated[Any, rejected("Leave it out.")]`. null,
    false and empty values are accepted."""
    return FieldClass("rejected", note, code)


class Body(BaseModel):
    """Base of the request bodies of all protocols."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, strict=False)

    is_strict: ClassVar[bool] = True
    """Unknown fields are an error."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Without rejected fields; unknown ones are allowed where they are ignored."""
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        for name, info in cls.model_fields.items():
            if field_class(info).name == "rejected":
                resolved["properties"].pop(info.alias or name, None)
        if "properties" in resolved:  # fields that depend on each other are described elsewhere
            resolved["additionalProperties"] = not cls.is_strict
        else:
            resolved.pop("additionalProperties", None)
        return schema

    def unknown_fields(self) -> list[str]:
        return sorted(self.model_extra or {})

    def check_fields(self, is_lenient: bool, where: str = "") -> list[str]:
        """Raise an ApiError for the first rejected or unknown field, those of bodies inside of this
        one included. Returns warnings."""
        for name, info in type(self).model_fields.items():
            kind = field_class(info)
            if kind.name == "rejected" and getattr(self, name) not in NOTHING:
                message = f"{where}{name} is not supported: {kind.note}"
                raise ApiError(400, message, param=where + name, code=kind.code)
        warnings = self.check_unknown(is_lenient, where) if self.is_strict else []
        for name in type(self).model_fields:
            for path, inner in inner_bodies(getattr(self, name), f"{where}{name}"):
                warnings += inner.check_fields(is_lenient, f"{path}.")
        return warnings

    def check_unknown(self, is_lenient: bool, where: str) -> list[str]:
        unknown = [where + name for name in self.unknown_fields()]
        if not unknown:
            return []
        if is_lenient:
            return [f"unknown fields were ignored: {', '.join(unknown)}"]
        names = [info.alias or name for name, info in type(self).model_fields.items()]
        guess = field_hint(unknown[0].removeprefix(where), names)
        hint = f" Did you mean '{guess}'?" if guess else ""
        raise ApiError(
            400,
            f"'{unknown[0]}' is not a field of this request.{hint} Remove it, or start the server "
            "with --lenient.",
            param=unknown[0],
        )


def inner_bodies(value: Any, where: str) -> Iterator[tuple[str, Body]]:
    """The bodies in the value of a field: one, or a list of them."""
    if isinstance(value, Body):
        yield where, value
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if isinstance(one, Body):
                yield f"{where}[{index}]", one


class LooseBody(Body):
    """Unknown fields are ignored, as Ollama does."""

    is_strict: ClassVar[bool] = False


@cache
def known_fields() -> frozenset[str]:
    """Names of the fields of all bodies, which contain nothing that a client has written. Called
    when all protocols are imported."""
    classes, names = [Body], set[str]()
    for one in classes:
        classes += one.__subclasses__()
        names |= {info.alias or name for name, info in one.model_fields.items()}
    return frozenset(names)


def field_class(info: FieldInfo) -> FieldClass:
    """The class of a field: honored unless it is annotated otherwise."""
    for one in info.metadata:
        if isinstance(one, FieldClass):
            return one
    for argument in get_args(info.annotation):  # the annotation inside an optional type
        for one in getattr(argument, "__metadata__", ()):
            if isinstance(one, FieldClass):
                return one
    return HONORED


def field_table(body: type[Body]) -> Iterator[tuple[str, FieldClass, str]]:
    """Name, class and meaning of each field of a body, for the documentation."""
    for name, info in body.model_fields.items():
        yield name, field_class(info), info.description or ""


def validation_message(error: ValidationError | RequestValidationError) -> tuple[str, str | None]:
    """One sentence for the first problem of a body, and the field it concerns. A value that fits
    none of several types has a problem for each: those at the same place are one sentence."""
    places = [(field_name(detail["loc"]), detail) for detail in error.errors()]
    where, detail = next(
        one for one in places if not any(is_inside(it, one[0]) for it, _ in places)
    )
    problems = list(dict.fromkeys(it["msg"] for place, it in places if place == where))
    problem = " or ".join(
        [uncapitalized(problems[0]), *(uncapitalized(one, SHOULD_BE) for one in problems[1:])]
    )
    value = detail.get("input")
    shown = "" if isinstance(value, (dict, list)) else f" (it is {json_text(value)})"
    return f"{where or 'the body'}: {problem}{shown}.", where or None


def field_name(loc: Sequence[str | int]) -> str:
    """The place of a problem as the caller writes it: messages[0].role."""
    name = ""
    for index, part in enumerate(loc):
        if isinstance(part, int):
            name += f"[{part}]"
        elif not is_type_name(part) and (part, index) != ("body", 0):  # FastAPI's name of the body
            name += f".{part}" if name else part
    return name


def is_inside(place: str, outer: str) -> bool:
    """Whether a place is a part of another one, whose own problem says less."""
    return place.startswith((f"{outer}[", f"{outer}.")) if outer else bool(place)


def uncapitalized(message: str, start: str = "") -> str:
    """A message, without its start, as the continuation of a sentence."""
    rest = message.removeprefix(start)
    return rest[:1].lower() + rest[1:]


def json_text(value: Any) -> str:
    """A value as it was sent; of a long text the beginning."""
    if isinstance(value, str) and len(value) > MAX_SHOWN:
        return f"{json_text(value[:MAX_SHOWN])}..."
    return json.dumps(value, ensure_ascii=False, default=str)


def is_type_name(part: str) -> bool:
    """Whether a part of a location is the name of a union's member, not of a field."""
    return "[" in part or part.startswith("constrained-") or part in SCALARS
