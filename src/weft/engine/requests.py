"""Texts -> requests for the engine, each checked as far as settings and lengths tell.

    prompt    a text, or a conversation in the model's template -> Writing
    source    a text to be translated, searched or drawn        -> Writing

It reads the settings and the tokenizer of a checkpoint, never its weights: what can never be
served is refused before the engine is made, which takes its time to lay the weights out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import UsageError
from weft.engine.beam import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.options import Options
from weft.engine.scheduling.admission import check_counts, check_lengths
from weft.engine.scheduling.sequence import Request
from weft.engine.writing import Writing

if TYPE_CHECKING:
    from weft.text.chat_template import ChatTemplate

DEFAULT_NEW_TOKENS = 128


class Requests:
    """Makes the requests of one model."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig) -> None:
        self.config, self.tokenizer = checkpoint.model.config, checkpoint.tokenizer
        self.generation_config, self.template_source = (
            checkpoint.generation_config,
            checkpoint.chat_template,
        )
        self.limits = engine.scheduler(self.config)

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end what a decoder writes."""
        end = self.tokenizer.end_id
        return frozenset(self.generation_config.ends or ([] if end is None else [end]))

    def prompt_ids(self, prompt: str, parse_special: bool = False) -> list[int]:
        """What a decoder reads of a prompt: its begin token and the text, never cut, as a prompt
        without its end would be continued at the wrong place."""
        body = self.tokenizer.encode(prompt, False, sys.maxsize, parse_special)
        begin = self.tokenizer.frame[0]
        # a chat template writes the begin token itself
        return body if parse_special and body[: len(begin)] == begin else [*begin, *body]

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation in the model's own template, up to where its answer begins."""
        return self.prompt_ids(self.template.render(messages), parse_special=True)

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's own; a UsageError if it has none."""
        if self.template_source is None:
            raise UsageError(
                "this model has no chat template: it was not trained to converse. `generate` "
                "continues a text."
            )
        from weft.text.chat_template import ChatTemplate

        return ChatTemplate(self.template_source, self.tokenizer.special_tokens)

    def continued(self, ids: Sequence[int], options: Options) -> Writing:
        """The request that goes on from `ids`."""
        limit = options.max_tokens
        if limit is None:
            limit = max(1, min(DEFAULT_NEW_TOKENS, self.config.max_cached_len - len(ids)))
        return self.checked(self.writing(tuple(ids), limit, options, self.ends))

    def searched(
        self, source: Sequence[int], max_tokens: int | None, search: BeamConfig
    ) -> Writing:
        """The request that searches for the translation of one source."""
        rules = replace(
            search, first=self.generation_config.first, banned=tuple(self.generation_config.banned)
        )
        limit = self.limit_of(source, max_tokens)
        ends = frozenset([self.target_end])
        return self.checked(
            Writing((self.target_begin,), limit, tuple(source), ends=ends, beam=rules)
        )

    def drawn(self, source: Sequence[int], options: Options) -> Writing:
        """The request that draws translations of one source."""
        first = () if self.generation_config.first is None else (self.generation_config.first,)
        limit = self.limit_of(source, options.max_tokens)
        banned = (*options.sampling.banned, *self.generation_config.banned)
        sampling = options.sampling.model_copy(update={"banned": banned})
        ends = frozenset([self.target_end])
        prompt = (self.target_begin, *first)
        writing = self.writing(prompt, limit, replace(options, sampling=sampling), ends)
        return self.checked(replace(writing, source=tuple(source)))

    def writing(
        self, prompt: tuple[int, ...], limit: int, options: Options, ends: frozenset[int]
    ) -> Writing:
        return Writing(
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
        """The id that a translation begins with."""
        start = self.generation_config.start
        return self.tokenizer.target.id_of("begin") if start is None else start

    @property
    def target_end(self) -> int:
        return (
            self.generation_config.ends[0]
            if self.generation_config.ends
            else self.tokenizer.target.id_of("end")
        )

    def limit_of(self, source: Sequence[int], max_tokens: int | None) -> int:
        return (
            default_limit(source, self.config.max_cached_len) if max_tokens is None else max_tokens
        )

    def checked(self, writing: Writing) -> Writing:
        """The writing; a UsageError if its numbers tell that it can never be served."""
        if not writing.prompt:
            raise UsageError("the prompt has 0 tokens: it needs at least 1. Give it some text.")
        beam = writing.beam.width if writing.beam else 0
        request = Request("", writing.prompt, writing.max_tokens, n=writing.n, beam=beam)
        check_counts(request, self.limits)
        check_lengths(request, self.limits)
        writing.sampling.check_ids(self.config.vocab_size)
        return writing


def default_limit(source: Sequence[int], max_len: int) -> int:
    """Tokens that a translation may have: the begin token takes one place of max_len."""
    return max(1, min(2 * len(source) + 10, max_len - 1))
