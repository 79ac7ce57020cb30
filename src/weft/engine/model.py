"""`LoadedModel`: what `weft.load(path)` returns. Texts in, texts out; ids stay inside.

    m.translate(["..."], beam=4)                encoder-decoder: one text for each, in order
    m.translate_best(["..."], 3, beam=4)        the three best for each, with scores
    m.generate("...", stream=True)              decoder: the text that follows, piece by piece
    m.answers(["...", "..."], n=2)              many prompts at once: texts, tokens, why they ended
    m.chat([{"role": "user", ...}])             decoder: the answer, in the model's own template
    m.embed(["..."])                            any kind: one vector a text
    m.perplexity(["..."])                       decoder: how well it foresees texts

What can be asked of a text (temperature, stop, regex, ...) is in options.py and SamplingParams.
What a kind of model cannot do is a UsageError that names the kind and what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from weft.checkpoint.weft_folder import Checkpoint
from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.engine.answers import (
    NOTHING,
    Answer,
    Progress,
    Searcher,
    Translation,
    answers,
    drawn,
    searched,
)
from weft.engine.beam import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.desk import Desk
from weft.engine.embed import embed_texts
from weft.engine.engine import Engine
from weft.engine.kinds import Task, refuse_kind, refuse_one_text, refuse_team
from weft.engine.loss import TextLoss, text_loss
from weft.engine.options import Options, WritingKeywords, drawing
from weft.engine.requests import Requests
from weft.engine.writing import Update, Writing
from weft.sampling.params import SamplingKeywords


class LoadedModel:
    """A model in eval mode with its tokenizer. It never changes."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig | None = None) -> None:
        self.engine_config = engine or EngineConfig()
        self.model, self.tokenizer = checkpoint.model.eval(), checkpoint.tokenizer
        self.task, self.scores, self.generation_config = (
            checkpoint.task,
            checkpoint.scores,
            checkpoint.generation_config,
        )
        self.checkpoint, self.requests = checkpoint, Requests(checkpoint, self.engine_config)

    @property
    def kind(self) -> str:
        """encoder-decoder, decoder or encoder."""
        return self.model.config.kind

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @cached_property
    def desk(self) -> Desk:
        """The engine that serves this model, made when first needed."""
        try:
            return Desk(Engine(self.model, self.tokenizer, self.engine_config))
        except MemoryError:
            raise UsageError(
                f"cache_gib is {self.engine_config.cache_gib:g}: this machine has no room for a "
                "cache of so many GiB. Ask for fewer."
            ) from None

    def translate(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        team: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[str]:
        """One translation a text, in order; see `translate_best`."""
        search = (beam, length_penalty, max_tokens, progress, team)
        return [one.text for one in self.translate_scored(texts, *search, **sampling)]

    def translate_scored(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        team: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Translation]:
        """One translation a text, in order, with its score; see `translate_best`."""
        search = (beam, length_penalty, max_tokens, progress, team)
        return [best[0] for best in self.translate_best(texts, 1, *search, **sampling)]

    def translate_best(
        self,
        texts: Sequence[str],
        num_best: int,
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        team: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[list[Translation]]:
        """Up to `num_best` translations a text, best first, in order; white space alone gives "".

        With sampling keywords they are drawn, `num_best` times, and beam must be 1; one that
        reaches `max_tokens` is scored without an end. `max_tokens` None: twice the source and 10
        more, as far as the model reaches. A source longer than the model's max_len is cut, which
        the tokenizer's report counts. `team`: processes that search instead of this one (team.py).
        """
        self.refuse("translate")
        refuse_one_text(texts)
        rows = [row for row, text in enumerate(texts) if text.strip()]
        sources = self.tokenizer.encode_batch(
            [texts[row] for row in rows], max_len=self.model.config.max_cached_len
        )
        decode = self.tokenizer.target.decode
        if sampling:
            refuse_team(team is not None)
            options = drawing(num_best, beam, max_tokens, sampling)
            writings = [self.requests.drawn(source, options) for source in sources]
            found = drawn(self.desk, writings, decode, length_penalty, progress)
        else:
            search = BeamConfig(beam, length_penalty, num_best)
            writings = [self.requests.searched(source, max_tokens, search) for source in sources]
            found = searched(team or self.desk, writings, decode, progress)
        results = dict(zip(rows, found, strict=True))
        return [results.get(row, [NOTHING]) for row in range(len(texts))]

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: Literal[False] = False,
        **wanted: Unpack[WritingKeywords],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        *,
        stream: Literal[True],
        **wanted: Unpack[WritingKeywords],
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: bool = False,
        **wanted: Unpack[WritingKeywords],
    ) -> str | Iterator[str]:
        """The text that follows a prompt, or with `stream` its pieces as they come.

        `max_tokens` None: 128, as far as the model reaches. Keywords are stop, json_schema, regex
        and those of SamplingParams; temperature 0 is greedy, and the default is 1.
        """
        self.refuse("generate")
        options = Options.of(max_tokens, **wanted)
        texts = pieces(self.write(self.prompt_ids(prompt), options))
        return texts if stream else "".join(texts)

    def answers(
        self,
        prompts: Sequence[str],
        max_tokens: int | None = None,
        n: int = 1,
        progress: Progress | None = None,
        **wanted: Unpack[WritingKeywords],
    ) -> Iterator[list[Answer]]:
        """The n answers to each prompt, in order, each as soon as it and those before it are
        complete. The engine works on all of them at once; keywords as in `generate`."""
        self.refuse("generate")
        refuse_one_text(prompts, "prompts")
        options = Options.of(max_tokens, n, **wanted)
        writings = [self.requests.continued(self.prompt_ids(one), options) for one in prompts]
        return self.answer_all(writings, progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int | None = None,
        **wanted: Unpack[WritingKeywords],
    ) -> Iterator[str]:
        """The answer to a conversation of {"role", "content"}, piece by piece; keywords as in
        `generate`, but greedy unless a temperature is given."""
        self.refuse("chat")
        wanted.setdefault("temperature", 0.0)
        return pieces(self.write(self.chat_ids(messages), Options.of(max_tokens, **wanted)))

    def prompt_ids(self, prompt: str) -> list[int]:
        """What a decoder reads of a prompt: its begin token and the text, never cut."""
        return self.requests.prompt_ids(prompt)

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation in the model's own template, up to where its answer begins."""
        return self.requests.chat_ids(messages)

    def write(self, ids: Sequence[int], options: Options) -> Iterator[Update]:
        """What follows `ids`: tokens and text of each step, as they come."""
        writing = self.requests.continued(ids, options)
        assert writing.n == 1, f"{writing.n} samples at once are answers, not a stream"
        return self.desk.follow(self.desk.open(writing))

    def answer_all(
        self, writings: Sequence[Writing], progress: Progress | None = None
    ) -> Iterator[list[Answer]]:
        """The answers to requests that `requests` made, in order."""
        return answers(self.desk, writings, progress)

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Tensor:
        """One vector of length 1 a text, vectors_BD, in order; see embed.py."""
        refuse_one_text(texts)
        pooling = self.generation_config.pooling
        return embed_texts(self.desk, self.tokenizer, texts, pooling, progress or ignore)

    def loss(self, texts: Sequence[str], progress: Progress | None = None) -> TextLoss:
        """Summed loss and number of tokens over all texts."""
        self.refuse("perplexity")
        refuse_one_text(texts)
        budget = self.engine_config.encoder_budget
        return text_loss(self.desk, self.tokenizer, texts, budget, progress or ignore)

    def perplexity(self, texts: Sequence[str]) -> float:
        """exp of the mean loss per token over all texts."""
        return self.loss(texts).perplexity

    def refuse(self, task: Task) -> None:
        """A UsageError if this kind of model cannot do the task."""
        refuse_kind(self.kind, task)


def pieces(updates: Iterator[Update]) -> Iterator[str]:
    return (update.text for update in updates if update.text)


def ignore(amount: int) -> None:
    """Progress that nobody watches."""
