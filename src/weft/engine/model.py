"""`LoadedModel`: what `weft.load(path)` returns. Texts in, texts out; ids stay inside.

    m.translate(["..."], beam=4)            encoder-decoder: one text for each, in order
    m.generate("...", stream=True)          decoder: the text that follows, piece by piece
    m.chat([{"role": "user", ...}])         decoder: the answer, in the model's own template
    m.embed(["..."])                        any kind: one vector a text
    m.perplexity(["..."])                   decoder: how well it foresees texts

What a kind of model cannot do is a UsageError that names the kind and what to use instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from weft.checkpoint.native import Checkpoint
from weft.core.errors import UsageError
from weft.engine.beam import BeamConfig
from weft.engine.desk import Desk
from weft.engine.embed import embed_texts
from weft.engine.engine import Engine
from weft.engine.loss import TextLoss, text_loss
from weft.engine.settings import EngineConfig
from weft.engine.writing import Update, Writing
from weft.models.decoder import Decoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.sampling.settings import SamplingConfig

if TYPE_CHECKING:
    from weft.text.chat import ChatTemplate

BATCH_TOKENS = 4096
DEFAULT_NEW_TOKENS = 128

Progress = Callable[[int], None]
"""Called with the number of texts that were just finished."""


@dataclass(frozen=True)
class Translation:
    """A translation and the score of its beam; None where there was nothing to translate."""

    text: str
    score: float | None


class LoadedModel:
    """A model in eval mode with its tokenizer. It never changes."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig | None = None) -> None:
        self.engine_config = engine or EngineConfig()
        self.model, self.tokenizer = checkpoint.model.eval(), checkpoint.tokenizer
        self.task, self.scores, self.use = checkpoint.task, checkpoint.scores, checkpoint.use
        self.checkpoint = checkpoint

    @property
    def kind(self) -> str:
        """encoder-decoder, decoder or encoder."""
        return self.model.config.kind

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def translate(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[str]:
        """One translation a text, in order; see `translate_scored`."""
        found = self.translate_scored(texts, beam, length_penalty, max_tokens, progress)
        return [one.text for one in found]

    def translate_scored(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[Translation]:
        """One translation a text, in order; white space alone gives "".

        `max_tokens` None: twice the source and 10 more, as far as the model reaches. A source
        longer than the model's max_len is cut, which the tokenizer's report counts.
        """
        model = self.encoder_decoder()
        refuse_one_text(texts)
        results = [Translation("", None) for _ in texts]
        rows = [row for row, text in enumerate(texts) if text.strip()]
        max_len, writer = model.config.max_len, self.tokenizer.target
        sources = self.tokenizer.encode_batch([texts[row] for row in rows], max_len=max_len)
        search = BeamConfig(
            beam, length_penalty, first=self.use.first, banned=tuple(self.use.banned)
        )
        writings = [self.searched(source, max_tokens, search, max_len) for source in sources]
        for index, update in self.desk.results(self.desk.open_all(writings)):
            best = update.hypotheses[0]
            results[rows[index]] = Translation(writer.decode(best.ids), best.score)
            if progress is not None:
                progress(1)
        return results

    def searched(
        self, source: list[int], max_tokens: int | None, search: BeamConfig, max_len: int
    ) -> Writing:
        """The request that searches for the translation of one source."""
        use, writer = self.use, self.tokenizer.target
        begin = writer.id_of("begin") if use.start is None else use.start
        end = use.ends[0] if use.ends else writer.id_of("end")
        limit = default_limit(source, max_len) if max_tokens is None else max_tokens
        ends = frozenset([end])
        return Writing((begin,), limit, tuple(source), ends=ends, beam=search)

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end what is written."""
        end = self.tokenizer.end_id
        return frozenset(self.use.ends or ([] if end is None else [end]))

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: Literal[False] = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        *,
        stream: Literal[True],
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> str | Iterator[str]:
        """The text that follows a prompt, or with `stream` its pieces as they come.

        `max_tokens` None: 128, as far as the model reaches. The other settings are those of
        SamplingConfig; temperature 0 is greedy.
        """
        sampling = SamplingConfig(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
        )
        texts = self.texts(self.prompt_ids(prompt), max_tokens, sampling)
        return texts if stream else "".join(texts)

    def prompt_ids(self, prompt: str, parse_special: bool = False) -> list[int]:
        """What a decoder reads of a prompt: its begin token and the text, never cut, as a prompt
        without its end would be continued at the wrong place."""
        body = self.tokenizer.encode(prompt, False, sys.maxsize, parse_special)
        begin = self.tokenizer.frame[0]
        # a chat template writes the begin token itself
        return body if parse_special and body[: len(begin)] == begin else [*begin, *body]

    def texts(
        self,
        ids: Sequence[int],
        max_tokens: int | None,
        sampling: SamplingConfig,
        stops: Sequence[str] = (),
    ) -> Iterator[str]:
        """The text that follows `ids`, piece by piece, up to a stop."""
        updates = self.write(ids, max_tokens, sampling, stops)
        return (update.text for update in updates if update.text)

    def write(
        self,
        ids: Sequence[int],
        max_tokens: int | None,
        sampling: SamplingConfig,
        stops: Sequence[str] = (),
    ) -> Iterator[Update]:
        """What follows `ids`: tokens and text of each step, as they come."""
        model = self.decoder("generate")
        if max_tokens is None:
            max_tokens = max(1, min(DEFAULT_NEW_TOKENS, model.config.max_len - len(ids)))
        writing = Writing(
            tuple(ids), max_tokens, sampling=sampling, ends=self.ends, stops=tuple(stops)
        )
        return self.desk.follow(self.desk.open(writing))

    @cached_property
    def desk(self) -> Desk:
        """The engine that serves this model, made when first needed."""
        return Desk(Engine(self.model, self.tokenizer, self.engine_config))

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation in the model's own template, up to where its answer begins."""
        if self.template is None:
            raise UsageError(
                "this model has no chat template: it was not trained to converse. `generate` "
                "continues a text."
            )
        return self.prompt_ids(self.template.render(messages), parse_special=True)

    @cached_property
    def template(self) -> ChatTemplate | None:
        from weft.text.chat import ChatTemplate  # jinja2: only who chats waits for it

        source, specials = self.checkpoint.chat_template, self.tokenizer.specials
        return None if source is None else ChatTemplate(source, specials)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
    ) -> Iterator[str]:
        """The answer to a conversation of {"role", "content"}, piece by piece."""
        sampling = sampling or SamplingConfig(temperature=0.0)
        return self.texts(self.chat_ids(messages), max_tokens, sampling)

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Tensor:
        """One vector of length 1 a text, vectors_BD, in order; see embed.py."""
        refuse_one_text(texts)
        pooling = self.use.pooling
        return embed_texts(self.desk, self.tokenizer, texts, pooling, progress or ignore)

    def loss(
        self,
        texts: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
    ) -> TextLoss:
        """Summed loss and number of tokens over all texts."""
        model = self.decoder("perplexity")
        refuse_one_text(texts)
        return text_loss(model, self.tokenizer, texts, batch_tokens, progress or ignore)

    def perplexity(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> float:
        """exp of the mean loss per token over all texts."""
        return self.loss(texts, batch_tokens).perplexity

    def encoder_decoder(self) -> EncoderDecoder:
        if not isinstance(self.model, EncoderDecoder):
            other = " `generate` continues a text." if isinstance(self.model, Decoder) else ""
            raise UsageError(
                f"this model is of kind {self.kind}: translate needs an encoder-decoder, which "
                f"reads a source.{other}"
            )
        return self.model

    def decoder(self, what: str) -> Decoder:
        if not isinstance(self.model, Decoder):
            is_pair = isinstance(self.model, EncoderDecoder)
            other = " `translate` is what this one does." if is_pair else ""
            raise UsageError(
                f"this model is of kind {self.kind}: {what} needs a decoder, which goes on from "
                f"the text before.{other}"
            )
        return self.model


def default_limit(source: Sequence[int], max_len: int) -> int:
    """Tokens that a translation may have: the begin token takes one place of max_len."""
    return max(1, min(2 * len(source) + 10, max_len - 1))


def refuse_one_text(texts: Sequence[str]) -> None:
    """A str is a sequence of str too: each of its characters would be taken for a text."""
    if isinstance(texts, str):
        raise UsageError("texts is one str: give a list of them. Use [text] for one.")


def ignore(amount: int) -> None:
    """Progress that nobody watches."""
