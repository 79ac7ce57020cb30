"""Requests of the engine: what a caller submits, what each step returns, and the state between.

    GenerationRequest   prompt, source, sampling or beam search, stops, grammar; frozen
    SampleState         one of its n samples: tokens, text, grammar matcher, drafter
    RequestOutput       what one step added to one sample

A SampleState survives preemption: the scheduler frees pages, never the generated tokens. After an
exception it is rebuilt from them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from weft.engine.beam_search import BeamConfig, Hypothesis
from weft.engine.detokenizer import Detokenizer, FinishReason, NullDetokenizer
from weft.engine.grammar import Grammar, GrammarVocabulary, Matcher
from weft.engine.logprobs import TokenLogprob
from weft.engine.speculative import Drafter
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.params import SamplingParams
from weft.text.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class GenerationRequest:
    """One request: continue a prompt, or generate the target of a source."""

    prompt: tuple[int, ...]
    max_tokens: int
    source: tuple[int, ...] | None = None
    """Token ids for the encoder of an encoder-decoder."""
    sampling: SamplingParams = GREEDY
    ends: frozenset[int] = frozenset()
    """End tokens; they are not part of the output."""
    stops: tuple[str, ...] = ()
    """Stop strings; they are not part of the output."""
    grammar: Grammar | None = None
    n: int = 1
    """Number of samples; sample i is drawn with seed + i."""
    beam: BeamConfig | None = None
    """Beam search instead of sampling. Its hypotheses are in the last output."""
    salt: str = ""
    """Requests with different salts share nothing in the prefix cache."""
    key: str = ""
    """Name of the API key, for fair queueing."""
    is_streamed: bool = False
    """Whether its tokens are read as they are generated, so that inter-token latency matters."""
    min_tokens: int = 0
    """Minimum number of tokens before an end token may be chosen."""
    visible_ids: frozenset[int] = frozenset()
    """Special tokens whose names are part of the text; others have no text."""

    @property
    def num_choices(self) -> int:
        """Number of texts: samples, or results of a beam search."""
        return self.n if self.beam is None else self.beam.num_best

    @property
    def num_read(self) -> int:
        """Number of tokens of the source, or without a source of the prompt."""
        return len(self.prompt if self.source is None else self.source)


@dataclass(frozen=True)
class RequestOutput:
    """What one step added to one sample. The last output of a sample has `finish`."""

    request_id: str
    index: int = 0
    """Index of the sample."""
    tokens: list[int] = field(default_factory=list)
    """New tokens, without an end token."""
    text: str = ""
    """New text, without incomplete characters and possible beginnings of stop strings."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """Result of a beam search, best first."""
    vectors_TD: Tensor | None = None
    """Result of an embedding request: last hidden states of its tokens."""
    error: str | None = None
    """Why this request failed; the other requests continue."""

    @property
    def is_end(self) -> bool:
        """Whether this is the last output of its sample, or of a request that failed."""
        return self.finish is not None or self.error is not None


@dataclass
class SampleState:
    """One of the n samples of a request."""

    request: GenerationRequest
    detokenizer: Detokenizer | NullDetokenizer
    matcher: Matcher | None = None
    drafter: Drafter | None = None
    index: int = 0
    output: list[int] = field(default_factory=list)

    @cached_property
    def sampling(self) -> SamplingParams:
        """The request's parameters, with this sample's seed."""
        params = self.request.sampling
        return params.model_copy(update={"seed": params.seed + self.index})

    @cached_property
    def sampling_without_ends(self) -> SamplingParams:
        """The parameters before `min_tokens` tokens: end tokens are banned."""
        banned = (*self.sampling.banned, *sorted(self.request.ends))
        return self.sampling.model_copy(update={"banned": banned})

    @cached_property
    def has_end(self) -> bool:
        """Whether an end token can be chosen at all."""
        return not self.request.ends <= set(self.sampling.banned)

    @property
    def is_complete(self) -> bool:
        """Whether the text matches the grammar, and no end token can say so."""
        return self.matcher is not None and not self.has_end and self.matcher.is_accepting

    def row(self, drafts: list[int], allowed_V: Tensor | None) -> SamplingRow:
        """The SamplingRow of the token after `drafts`."""
        output = [*self.output, *drafts]
        position = len(self.request.prompt) + len(output)
        is_early = len(output) < self.request.min_tokens
        params = self.sampling_without_ends if is_early else self.sampling
        return SamplingRow(params, position, self.request.prompt, output, allowed_V)

    def rows(self, drafts: list[int]) -> list[SamplingRow]:
        """One row per draft and one after the last; fewer if the grammar excludes a draft."""
        if self.matcher is None:
            return [self.row(drafts[:i], None) for i in range(len(drafts) + 1)]
        masks = self.matcher.allowed_along(drafts)
        return [self.row(drafts[:i], allowed_V) for i, allowed_V in enumerate(masks)]

    def append(self, token: int) -> str:
        """Append a chosen token; returns the text that can be output now. `detokenizer.finish` is
        set if this was the last token."""
        text = self.detokenizer.append(token)
        if token not in self.request.ends:
            self.output.append(token)
            if self.matcher is not None:
                self.matcher.advance(token)
        if self.detokenizer.finish is not None:
            return text
        if self.matcher is not None and not self.has_end and self.matcher.is_finished:
            text += self.detokenizer.finalize("end")
        elif len(self.output) == self.request.max_tokens:
            text += self.detokenizer.finalize("length")
        return text


class SampleStateFactory:
    """Creates the SampleStates of a model's requests. Grammar vocabularies are built on first
    use."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, speculate: bool) -> None:
        self.tokenizer, self.vocab_size, self.speculate = tokenizer, vocab_size, speculate
        self.vocabularies: dict[frozenset[int], GrammarVocabulary] = {}
        self.lock = threading.Lock()

    def create_all(self, request: GenerationRequest) -> dict[int, SampleState]:
        """The n samples of a request, by index."""
        return {index: self.create(request, index) for index in range(request.n)}

    def create(self, request: GenerationRequest, index: int) -> SampleState:
        sample = SampleState(request, self.detokenizer(request), index=index)
        if request.grammar is not None:
            sample.matcher = self.vocabulary(frozenset(request.ends)).matcher(request.grammar)
        if self.speculate:
            sample.drafter = Drafter(request.prompt)
        return sample

    def restore(self, request: GenerationRequest, index: int, output: list[int]) -> SampleState:
        """The sample after these tokens."""
        sample = self.create(request, index)
        for token in output:
            sample.append(token)
        if sample.drafter is not None:
            sample.drafter.lookup.extend(output)
        return sample

    def detokenizer(self, request: GenerationRequest) -> Detokenizer | NullDetokenizer:
        if self.tokenizer is None:
            return NullDetokenizer(request.ends)
        is_continuation = request.source is None
        return Detokenizer(
            self.tokenizer, request.stops, request.ends, is_continuation, request.visible_ids
        )

    def vocabulary(self, ends: frozenset[int]) -> GrammarVocabulary:
        """The model's vocabulary for constrained decoding with these end tokens."""
        with self.lock:
            if ends not in self.vocabularies:
                assert self.tokenizer is not None, "a grammar needs a tokenizer"
                self.vocabularies[ends] = GrammarVocabulary(self.tokenizer, ends, self.vocab_size)
            return self.vocabularies[ends]
