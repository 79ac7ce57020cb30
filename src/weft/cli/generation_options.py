"""Options of the commands that generate text -> GenerationOptions and EngineConfig, checked before
a model is loaded.

The sampling options are derived from the fields of SamplingParams: name, type, range, default and
help text. A new scalar field there is an option of `weft generate`, `chat` and `translate` without
a change here; fields that hold several values (logit_bias, banned) are for Python and HTTP only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

import typer
from pydantic.fields import FieldInfo

from weft.cli.option_groups import OptionGroup, keyword
from weft.cli.options import (
    Activations,
    Cache,
    JsonSchema,
    PrefixCache,
    Regex,
    Speculate,
    Stop,
    engine_settings,
    option,
    read_schema,
)
from weft.cli.output import status
from weft.sampling.params import SamplingKeywords, SamplingParams

if TYPE_CHECKING:
    from weft.engine.config import EngineConfig
    from weft.engine.request_builder import GenerationOptions

SCALARS = (bool, int, float, str, bool | None, int | None, float | None, str | None)

DEFAULTS = {"temperature": 0.0}
"""Where a command differs from Python: it is greedy unless a temperature is set."""

NOTES = {"logprobs": "Needs --json."}
"""Added to the help text of an option."""


@dataclass(frozen=True)
class SamplingOptions(OptionGroup):
    """One option for each scalar field of SamplingParams."""

    values: Mapping[str, Any] = field(default_factory=dict)
    excluded: ClassVar[frozenset[str]] = frozenset()
    """Fields that a command does not offer."""

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        return {
            name: one
            for name, one in SamplingParams.model_fields.items()
            if one.annotation in SCALARS and name not in cls.excluded
        }

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        for name, one in cls.fields().items():
            yield keyword(
                name, DEFAULTS.get(name, one.default), option_type(one, NOTES.get(name, ""))
            )

    @classmethod
    def collect(cls, arguments: dict[str, Any]) -> Self:
        return cls({name: arguments.pop(name) for name in cls.fields()})

    @property
    def keywords(self) -> SamplingKeywords:
        return cast(SamplingKeywords, dict(self.values))

    def warn_without_effect(self, n: int = 1) -> None:
        """Print a line for options that have no effect at temperature 0."""
        if self.values["temperature"] != 0:
            return
        drawing = SamplingParams.keep_argmax - {"temperature", "logprobs"}
        unused = [
            option(name)
            for name, one in self.fields().items()
            if name in drawing and self.values[name] != one.default
        ]
        if unused:
            verb = "has" if len(unused) == 1 else "have"
            status(
                f"{' and '.join(unused)} {verb} no effect: --temperature is 0 (greedy decoding)."
            )
        if n > 1:
            status(f"the {n} completions will be equal: --temperature is 0. Try --temperature 0.8.")


def option_type(one: FieldInfo, note: str) -> Any:
    """The annotation that makes typer parse and check a field. Typer's bounds are inclusive: a
    value on an exclusive bound is rejected by SamplingParams itself."""
    lowest, highest = bound(one, "ge", "gt"), bound(one, "le", "lt")
    info = typer.Option(min=lowest, max=highest, help=f"{one.description} {note}".rstrip())
    return Annotated[one.annotation, info]


def bound(one: FieldInfo, *rules: str) -> float | None:
    """The bound that one of the rules sets; None without one."""
    bounds = [getattr(part, rule, None) for part in one.metadata for rule in rules]
    return next((value for value in bounds if value is not None), None)


@dataclass(frozen=True)
class GenerationOptionGroup(OptionGroup):
    """The options that `weft generate` and `weft chat` have in common."""

    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: Stop = None
    json_schema: JsonSchema = None
    regex: Regex = None
    speculate: Speculate = False
    activations: Activations = "float32"
    cache: Cache = "1"
    prefix_cache: PrefixCache = "radix"

    @property
    def logprobs(self) -> int | None:
        return self.sampling.keywords["logprobs"]

    def options(self, max_tokens: int | None, n: int = 1) -> GenerationOptions:
        """The options of each request. Prints a line for those without effect."""
        from weft.engine.request_builder import GenerationOptions

        schema, stops = read_schema(self.json_schema), self.stop or ()
        keywords = self.sampling.keywords
        options = GenerationOptions.of(
            max_tokens, n, stop=stops, json_schema=schema, regex=self.regex, **keywords
        )
        self.sampling.warn_without_effect(n)
        return options

    @property
    def engine(self) -> EngineConfig:
        return engine_settings(
            self.cache, self.prefix_cache, speculate=self.speculate, activations=self.activations
        )
