"""Options of the commands that generate text -> GenerationOptions and EngineConfig, checked before
a model is loaded; then the model's own defaults are added.

The sampling options are derived from the fields of SamplingParams: name, type, range, default and
help text. A new scalar field there is an option of `weft generate`, `chat` and `translate` without
a change here; fields that hold several values (logit_bias, banned) are for Python and HTTP only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

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
from weft.core.errors import ConfigError, DataError
from weft.sampling.params import MODEL_DEFAULTS, SamplingKeywords, SamplingParams

if TYPE_CHECKING:
    from weft.checkpoint.families.generation_config import GenerationConfig
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
        return cast(SamplingKeywords, {**DEFAULTS, **self.values})

    def warn_without_effect(self, n: int = 1, temperature: float | None = None) -> None:
        """Print a line for options that have no effect at temperature 0. `temperature` None: that
        of the options."""
        if (self.keywords["temperature"] if temperature is None else temperature) != 0:
            return
        drawing = SamplingParams.keep_argmax - {"temperature", "logprobs"}
        unused = [
            option(name)
            for name, one in self.fields().items()
            if name in drawing and self.values.get(name, one.default) != one.default
        ]
        if unused:
            verb = "has" if len(unused) == 1 else "have"
            status(
                f"{' and '.join(unused)} {verb} no effect: --temperature is 0 (greedy decoding)."
            )
        if n > 1:
            status(f"the {n} completions will be equal: --temperature is 0. Try --temperature 0.8.")


class SamplingWithModelDefaults(SamplingOptions):
    """The same options, of which some have the model's own defaults. `values` has those of the
    command line only."""

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        for one in super().parameters():
            if one.name not in MODEL_DEFAULTS:
                yield one
                continue
            annotation, info = get_args(one.annotation)
            info.show_default = f"the model's, or {one.default}"
            yield one.replace(default=None, annotation=Annotated[annotation | None, info])

    @classmethod
    def collect(cls, arguments: dict[str, Any]) -> Self:
        values = super().collect(arguments).values
        return cls({k: v for k, v in values.items() if v is not None or k not in MODEL_DEFAULTS})


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

    sampling: SamplingWithModelDefaults = field(default_factory=SamplingWithModelDefaults)
    stop: Stop = None
    json_schema: JsonSchema = None
    regex: Regex = None
    speculate: Speculate = False
    activations: Activations = "float32"
    cache: Cache = "1"
    prefix_cache: PrefixCache = "radix"

    @property
    def logprobs(self) -> int | None:
        return self.sampling.keywords.get("logprobs")

    def options(self, max_tokens: int | None, n: int = 1) -> GenerationOptions:
        """The options of each request, without the model's defaults."""
        from weft.engine.request_builder import GenerationOptions

        schema, stops = read_schema(self.json_schema), self.stop or ()
        keywords = self.sampling.keywords
        return GenerationOptions.of(
            max_tokens, n, stop=stops, json_schema=schema, regex=self.regex, **keywords
        )

    def with_defaults(
        self, options: GenerationOptions, generation_config: GenerationConfig
    ) -> GenerationOptions:
        """The options with the model's own sampling defaults where the command line has none.
        Prints which are used, and which options have no effect."""
        values = generation_config.sampling_keywords(self.sampling.values, DEFAULTS)
        try:
            sampling = SamplingParams.from_dict(values)
        except ConfigError as error:
            raise DataError(
                "the model's default sampling parameters cannot be used: "
                f"{str(error).removesuffix('.')}, or set another value on the command line."
            ) from None
        used = model_defaults(generation_config, self.sampling.values, sampling)
        if used:
            shown = " ".join(f"{option(name)} {value:g}" for name, value in used.items())
            status(f"sampling with the model's defaults: {shown}")
        self.sampling.warn_without_effect(options.n, sampling.temperature)
        return replace(options, sampling=sampling)

    @property
    def engine(self) -> EngineConfig:
        return engine_settings(
            self.cache, self.prefix_cache, speculate=self.speculate, activations=self.activations
        )


def model_defaults(
    generation_config: GenerationConfig, requested: Mapping[str, Any], sampling: SamplingParams
) -> dict[str, float]:
    """The model's own defaults that take effect."""
    without = SamplingParams.keep_argmax - {"temperature"} if sampling.is_greedy else frozenset()
    return {
        name: value
        for name, value in generation_config.sampling.items()
        if name not in requested and name not in without
    }
