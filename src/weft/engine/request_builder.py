"""Request builder: texts and options -> GenerationRequests, checked as far as settings and lengths
allow.

    GenerationOptions.of(max_tokens=50, n=2, stop=["\\n"], regex=r"\\d+", temperature=0.7)
    RequestBuilder.completion(ids, options)                continue a prompt or a conversation
    RequestBuilder.beam_search(source, max_tokens, beam)   translate a source by beam search
    RequestBuilder.sample(source, options)                 translate a source by sampling

Neither needs weights: options are checked before a model is loaded, and requests that can never be
served are rejected before the engine is created, which takes time to pack the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Unpack

from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.detokenizer import check_stops
from weft.engine.grammar import Grammar, GrammarVocabulary, make_grammar
from weft.engine.request import GREEDY, GenerationRequest
from weft.engine.request_checks import check_request_ids, check_request_types
from weft.engine.scheduling.admission import check_counts, check_lengths
from weft.engine.scheduling.sequence import Request
from weft.sampling.params import SamplingKeywords, SamplingParams
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

if TYPE_CHECKING:
    from weft.text.chat_encoding import ChatEncoder
    from weft.text.chat_template import ChatTemplate

DEFAULT_MAX_TOKENS = 128


class GenerationKeywords(SamplingKeywords, total=False):
    """Keyword arguments of a generated text, besides max_tokens and n."""

    stop: Sequence[str]
    """Stop strings: they end the text and are not part of it."""
    json_schema: Mapping[str, Any] | None
    """The text is JSON that is valid under this schema."""
    regex: str | None
    """The whole text matches this regular expression (Rust's syntax)."""


@dataclass(frozen=True)
class GenerationOptions:
    """Options of a request besides its prompt. Stops and grammar have been checked. Differs from
    SamplingParams, which are about the choice of one token."""

    max_tokens: int | None = None
    """None: 128, or fewer if the model's max_len does not allow them."""
    n: int = 1
    """Completions per prompt; completion i is drawn with seed + i."""
    sampling: SamplingParams = GREEDY
    stops: tuple[str, ...] = ()
    grammar: Grammar | None = None

    @classmethod
    def of(
        cls, max_tokens: int | None = None, n: int = 1, **keywords: Unpack[GenerationKeywords]
    ) -> GenerationOptions:
        """Options from keywords; raises a ConfigError or UsageError that names a wrong one."""
        values: dict[str, Any] = dict(keywords)
        stops = values.pop("stop", ())
        check_stops(stops)
        grammar = grammar_of(values.pop("json_schema", None), values.pop("regex", None))
        return cls(max_tokens, n, SamplingParams.from_dict(values), tuple(stops), grammar)


def sampling_options(
    num_best: int, beam: int, max_tokens: int | None, sampling: SamplingKeywords
) -> GenerationOptions:
    """Options for sampled translations. Log-probabilities are requested for their scores."""
    if beam != 1:
        raise UsageError(
            f"beam is {beam}, but {', '.join(sampling)} requests sampling: beam search does not "
            "sample. Use beam 1 with them, or leave them out."
        )
    params = SamplingParams.from_dict({**sampling, "logprobs": sampling.get("logprobs") or 0})
    return GenerationOptions(max_tokens, num_best, params)


def grammar_of(json_schema: Mapping[str, Any] | None, regex: str | None) -> Grammar | None:
    """The grammar of a schema or a regular expression; None without either."""
    if json_schema is not None and regex is not None:
        raise UsageError("json_schema and regex are both set: a text has one grammar. Choose one.")
    if json_schema is not None:
        schema = dict(json_schema) if isinstance(json_schema, Mapping) else json_schema
        grammar = make_grammar("json_schema", schema)
    elif regex is not None:
        grammar = make_grammar("regex", regex)
    else:
        return None
    byte_vocabulary().matcher(grammar)  # raises a UsageError if no text can match
    return grammar


@cache
def byte_vocabulary() -> GrammarVocabulary:
    """A vocabulary that can spell every text: a grammar that fails on it fails on every model."""
    return GrammarVocabulary(Tokenizer.train(["any text"], TokenizerConfig(kind="byte")), ())


class RequestBuilder:
    """Builds the requests of one model from its settings and its tokenizer."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig) -> None:
        self.config, self.tokenizer = checkpoint.model.config, checkpoint.tokenizer
        self.generation_config = checkpoint.generation_config
        self.template_source = checkpoint.chat_template
        self.limits = engine.scheduler(self.config)

    def __repr__(self) -> str:
        return f"RequestBuilder({self.config.kind}, max_len {self.limits.max_len:,})"

    @property
    def ends(self) -> frozenset[int]:
        """Ids of the end tokens of a decoder, without those that the model does not have."""
        end = self.tokenizer.end_id
        ends = self.known(self.generation_config.ends) or self.known([] if end is None else [end])
        return frozenset(ends)

    def known(self, ids: Sequence[int]) -> list[int]:
        """Those of the ids that the model has; others are never generated."""
        return [index for index in ids if 0 <= index < self.config.vocab_size]

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids of a prompt: BOS and the text. Never truncated: a prompt without its end would
        be continued in the wrong place."""
        return [*self.tokenizer.frame[0], *self.tokenizer.encode(prompt, False, sys.maxsize)]

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **extra: Any) -> list[int]:
        """The ids of a conversation in the model's chat template, up to the next answer. `extra`:
        arguments of ChatTemplate.render, such as tools."""
        body, begin = self.chat_encoder.encode(messages, **extra), self.tokenizer.frame[0]
        # most chat templates contain BOS themselves
        return body if body[: len(begin)] == begin else [*begin, *body]

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; a UsageError if it has none."""
        return self.chat_encoder.template

    @cached_property
    def chat_encoder(self) -> ChatEncoder:
        """Encodes conversations; a UsageError if the model has no chat template."""
        if self.template_source is None:
            raise UsageError(
                "this model has no chat template: it was not trained for conversations. "
                "`generate` continues a text."
            )
        from weft.text.chat_encoding import ChatEncoder
        from weft.text.chat_template import ChatTemplate

        template = ChatTemplate(self.template_source, self.tokenizer.special_tokens)
        return ChatEncoder(template, self.tokenizer)

    def completion(self, ids: Sequence[int], options: GenerationOptions) -> GenerationRequest:
        """A request that continues `ids`."""
        limit = options.max_tokens
        if limit is None:
            limit = max(1, min(DEFAULT_MAX_TOKENS, self.config.max_cached_len - len(ids)))
        return self.check(self.sampled(tuple(ids), limit, options, self.ends))

    def beam_search(
        self, source: Sequence[int], max_tokens: int | None, beam: BeamConfig
    ) -> GenerationRequest:
        """A request that translates a source by beam search."""
        banned = tuple(self.generation_config.banned)
        beam = replace(beam, first=self.generation_config.first, banned=banned)
        limit = self.target_limit(source, max_tokens)
        prompt, ends = (self.target_begin,), frozenset([self.target_end])
        return self.check(GenerationRequest(prompt, limit, tuple(source), ends=ends, beam=beam))

    def sample(self, source: Sequence[int], options: GenerationOptions) -> GenerationRequest:
        """A request that translates a source by sampling."""
        first = () if self.generation_config.first is None else (self.generation_config.first,)
        limit = self.target_limit(source, options.max_tokens)
        banned = (*options.sampling.banned, *self.generation_config.banned)
        sampling = options.sampling.model_copy(update={"banned": banned})
        prompt, ends = (self.target_begin, *first), frozenset([self.target_end])
        request = self.sampled(prompt, limit, replace(options, sampling=sampling), ends)
        return self.check(replace(request, source=tuple(source)))

    def sampled(
        self, prompt: tuple[int, ...], limit: int, options: GenerationOptions, ends: frozenset[int]
    ) -> GenerationRequest:
        return GenerationRequest(
            prompt,
            limit,
            sampling=options.sampling,
            ends=ends,
            stops=options.stops,
            grammar=options.grammar,
            n=options.n,
        )

    @property
    def target_begin(self) -> int:
        """The id that every translation starts with."""
        start = self.generation_config.start
        return self.tokenizer.target.id_of("begin") if start is None else start

    @property
    def target_end(self) -> int:
        ends = self.generation_config.ends
        return (self.known(ends) or ends)[0] if ends else self.tokenizer.target.id_of("end")

    def target_limit(self, source: Sequence[int], max_tokens: int | None) -> int:
        if max_tokens is not None:
            return max_tokens
        return default_target_limit(source, self.config.max_cached_len)

    def check(self, request: GenerationRequest) -> GenerationRequest:
        """The request; raises a UsageError if its numbers show that it can never be served."""
        check_request_types(request)
        if not request.prompt:
            raise UsageError("the prompt has 0 tokens: it needs at least 1. Add some text.")
        beam = request.beam.width if request.beam else 0
        scheduled = Request("", request.prompt, request.max_tokens, n=request.n, beam=beam)
        check_counts(scheduled, self.limits)
        check_lengths(scheduled, self.limits)
        check_request_ids(request, self.config)
        return request


def default_target_limit(source: Sequence[int], max_len: int) -> int:
    """Maximum length of a translation by default; BOS takes one position of max_len."""
    return max(1, min(2 * len(source) + 10, max_len - 1))
