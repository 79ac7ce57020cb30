"""What `weft generate` and `weft chat` can be asked of a text and of the engine: options ->
settings, checked before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.cli.groups import OptionGroup
from weft.cli.options import (
    Activations,
    Cache,
    FrequencyPenalty,
    JsonSchema,
    Logprobs,
    MinP,
    PrefixCache,
    PresencePenalty,
    Regex,
    RepetitionPenalty,
    Seed,
    Speculate,
    Stop,
    Temperature,
    TopK,
    TopP,
    engine_settings,
    read_schema,
    say_without_effect,
)

if TYPE_CHECKING:
    from weft.engine.options import Options
    from weft.engine.settings import EngineConfig
    from weft.sampling.settings import SamplingKeywords


@dataclass(frozen=True)
class Asked(OptionGroup):
    """The options that the commands which write have in common."""

    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    seed: Seed = 0
    stop: Stop = None
    json_schema: JsonSchema = None
    regex: Regex = None
    logprobs: Logprobs = None
    speculate: Speculate = False
    activations: Activations = "float32"
    cache: Cache = 1.0
    prefix_cache: PrefixCache = "radix"

    @property
    def sampling(self) -> SamplingKeywords:
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "logprobs": self.logprobs,
        }

    def options(self, max_tokens: int | None, n: int = 1) -> Options:
        """What is asked of each text; a line of talk for what changes nothing."""
        from weft.engine.options import Options

        schema, stops = read_schema(self.json_schema), self.stop or ()
        found = Options.of(
            max_tokens, n, stop=stops, json_schema=schema, regex=self.regex, **self.sampling
        )
        say_without_effect(self.sampling, n)
        return found

    @property
    def engine(self) -> EngineConfig:
        return engine_settings(
            self.cache, self.prefix_cache, speculate=self.speculate, activations=self.activations
        )
