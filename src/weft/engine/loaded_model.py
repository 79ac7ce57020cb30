"""`LoadedModel`: what `weft.load(path)` returns. Texts in, texts out.

    m.translate(["..."], beam=4)                encoder-decoder: one translation per text, in order
    m.translate_best(["..."], 3, beam=4)        the three best translations per text, with scores
    m.generate("...", stream=True)              decoder: the continuation, piece by piece
    m.completions(["...", "..."], n=2)          many prompts at once: texts, tokens, finish reasons
    m.chat([{"role": "user", ...}])             decoder: the answer, with the model's chat template
    m.embed(["..."])                            any model: one vector per text
    m.perplexity(["..."])                       decoder: perplexity of texts

Options of a generated text (temperature, stop, regex, ...) are those of GenerationKeywords and
SamplingParams. A task that a kind of model does not support raises a UsageError that names the kind
and an alternative.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from weft.checkpoint.description import describe
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.pulled_models import resolve
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.device import choose_device, choose_dtype, device_of, dtype_of
from weft.core.errors import DataError, UsageError, shown
from weft.engine.async_engine import AsyncEngine
from weft.engine.beam_search import BeamConfig
from weft.engine.client import (
    EMPTY_TRANSLATION,
    Completion,
    EngineClient,
    Progress,
    Searcher,
    Translation,
    beam_translations,
    failed,
    sampled_translations,
)
from weft.engine.config import EngineConfig, max_len_note
from weft.engine.engine import Engine
from weft.engine.engine_thread import EngineThread
from weft.engine.memory_budget import check_weights
from weft.engine.pooling import TextScore, embed_texts, score_texts
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.request_builder import (
    GenerationKeywords,
    GenerationOptions,
    RequestBuilder,
    sampling_options,
)
from weft.engine.request_checks import source_vocab_size
from weft.engine.request_iterator import RequestIterator
from weft.models.build import AnyModel
from weft.nn.packed_modules import use_int8_activations
from weft.sampling.params import SamplingKeywords

log = logging.getLogger(__name__)

Task = Literal["translate", "generate", "chat", "perplexity", "embed"]

NEEDS: dict[Task, str] = {
    "translate": "encoder-decoder",
    "generate": "decoder",
    "chat": "decoder",
    "perplexity": "decoder",
}
"""The kind of model that a task needs. All kinds support the other tasks."""

ALTERNATIVE = {
    "encoder-decoder": "Use `translate`.",
    "decoder": "Use `generate`, which continues a text.",
    "encoder": "Use `embed`, which returns a vector per text.",
}


def load(
    model: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    engine: EngineConfig | Mapping[str, Any] | None = None,
    thread: EngineThread | None = None,
) -> LoadedModel:
    """Load the model at a path, or of a name installed by `weft pull`, on a device: auto, cpu,
    cuda, cuda:N or mps. `engine`: an EngineConfig or its fields, such as {"cache_gib": 4}.
    `thread`: runs this model in turns with others; None: a thread for this model alone."""
    checkpoint, settings = load_checkpoint_for(model, device, dtype, engine)
    return LoadedModel(checkpoint, settings, thread=thread)


def load_checkpoint_for(
    model: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    engine: EngineConfig | Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, EngineConfig | None]:
    """The checkpoint on a device, ready for an engine with these settings, and the settings."""
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"model is {shown(model)}: it must be a path or a name. Use a str.")
    if not isinstance(engine, EngineConfig | Mapping | None):
        raise UsageError(
            f"engine is {shown(engine)}: it must be an EngineConfig or a dict of its fields. Use "
            'one, as {"cache_gib": 4}.'
        )
    place = choose_device(device)
    settings = EngineConfig.from_dict(engine, "engine") if isinstance(engine, Mapping) else engine
    number_format = choose_dtype(dtype, place)
    if place.type == "cpu":
        check_weights(resolve(model), settings or EngineConfig(), number_format)
    checkpoint = load_checkpoint(model, place, number_format)
    if settings is not None and settings.activations == "int8":
        enable_int8_activations(checkpoint.model)
    return checkpoint, settings


def enable_int8_activations(model: AnyModel) -> None:
    """Quantize the inputs of matrix products; logs a warning if the setting has no effect."""
    if not use_int8_activations(model):
        log.warning(
            "activations=float32 requested=int8 reason='int8 activations need quantized weights, a "
            "CPU and the compiled kernels'"
        )


def warn_ids_beyond_model(checkpoint: Checkpoint) -> None:
    """Log a warning for ids of the tokenizer or of the end tokens that the model does not have.
    Only requests that contain such an id fail."""
    config, tokenizer = checkpoint.model.config, checkpoint.tokenizer
    sizes = {
        "tokenizer_ids": (tokenizer.vocab_size, source_vocab_size(config)),
        "target_tokenizer_ids": (tokenizer.target.vocab_size, config.vocab_size),
        "eos_token_id": (max(checkpoint.generation_config.ends, default=-1) + 1, config.vocab_size),
    }
    if tokenizer.target is tokenizer:
        del sizes["target_tokenizer_ids"]
    for name, (size, num_ids) in sizes.items():
        if size > num_ids:
            log.warning(
                "%s=%d model_ids=%d effect='requests with ids beyond the model are rejected'",
                name,
                size if name != "eos_token_id" else size - 1,
                num_ids,
            )


def check_model(model: str | Path, task: Task, max_tokens: int | None = None) -> None:
    """Raise a UsageError for a task that the model's headers rule out. Reads no weights."""
    config = describe(model).config
    check_task(config.kind, task)
    limit = config.max_cached_len
    if max_tokens is not None and max_tokens >= limit:
        raise UsageError(
            f"max_tokens is {max_tokens} but the model's max_len is {limit}{max_len_note(config)}, "
            f"and the prompt takes at least one token. Use at most {limit - 1}."
        )


def check_task(kind: str, task: Task) -> None:
    """Raise a UsageError if models of this kind do not support the task."""
    needed = NEEDS.get(task, kind)
    if kind != needed:
        scores_pairs = task == "perplexity" and kind == "encoder-decoder"
        alternative = "Use `eval --pairs`, which scores translations."
        raise UsageError(
            f"this model is of kind {kind}: {task} needs a model of kind {needed}. "
            f"{alternative if scores_pairs else ALTERNATIVE[kind]}"
        )


def check_is_list(texts: Sequence[str], name: str = "texts") -> None:
    """Raise a UsageError for a str, each of whose characters would be taken for a text, and for
    everything else that is not a list of str."""
    if isinstance(texts, str):
        raise UsageError(f"{name} is a str: pass a list of them. Use [text] for one.")
    if isinstance(texts, Mapping) or not (hasattr(texts, "__len__") and hasattr(texts, "__iter__")):
        raise UsageError(f"{name} is {shown(texts)}: it must be a list of texts. Use one.")
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise UsageError(f"{name} has {shown(wrong[0])}: each of them must be a str. Decode it.")


class LoadedModel:
    """A model in eval mode with its tokenizer."""

    name: str = ""
    """Of the file or folder, if it is known."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: EngineConfig | None = None,
        is_threaded: bool = True,
        thread: EngineThread | None = None,
    ) -> None:
        """`is_threaded` False: engine steps run in the thread that waits for their outputs.
        `thread`: runs them in turns with those of other models; None: a thread of its own."""
        self.engine_config, self.is_threaded = engine or EngineConfig(), is_threaded
        self.engine_thread = thread
        self.client_lock = threading.Lock()
        self.model, self.tokenizer = checkpoint.model.eval(), checkpoint.tokenizer
        self.checkpoint, self.generation_config = checkpoint, checkpoint.generation_config
        self.task, self.scores = checkpoint.task, checkpoint.scores
        self.request_builder = RequestBuilder(checkpoint, self.engine_config)
        warn_ids_beyond_model(checkpoint)

    def __repr__(self) -> str:
        number_format = str(dtype_of(self.model)).removeprefix("torch.")
        name = f"{self.name!r}, " if self.name else ""
        summary = self.checkpoint.summary()
        return f"{type(self).__name__}({name}{summary}, {number_format} on {self.device})"

    @property
    def kind(self) -> str:
        """encoder-decoder, decoder or encoder."""
        return self.model.config.kind

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def client(self) -> EngineClient:
        """The client of this model's engine, which is created on first use."""
        with self.client_lock:
            return self.locked_client

    @cached_property
    def locked_client(self) -> EngineClient:
        try:
            engine = Engine(self.model, self.tokenizer, self.engine_config)
            return EngineClient(AsyncEngine(engine, self.is_threaded, thread=self.engine_thread))
        except MemoryError:
            gib = self.engine_config.cache_gib
            size = gib if isinstance(gib, str) else f"{gib:g}"
            raise UsageError(
                f"cache_gib is {size}: this machine cannot allocate a cache of this size. Use less."
            ) from None

    def translate(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        workers: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[str]:
        """One translation per text, in order; see `translate_best`. Raises a DataError if one
        fails."""
        search = (beam, length_penalty, max_tokens, progress, workers)
        scored = self.translate_scored(texts, *search, **sampling)
        errors = [(row, one.error) for row, one in enumerate(scored) if one.error is not None]
        if errors:
            row, error = errors[0]
            raise DataError(
                f"{len(errors)} of {len(texts)} texts failed, the first is text {row}: {error} "
                "translate_scored returns the translations of the others."
            )
        return [one.text for one in scored]

    def translate_scored(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        workers: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Translation]:
        """One translation per text with its score, in order; see `translate_best`."""
        search = (beam, length_penalty, max_tokens, progress, workers)
        return [best[0] for best in self.translate_best(texts, 1, *search, **sampling)]

    def translate_best(
        self,
        texts: Sequence[str],
        num_best: int,
        beam: int = 1,
        length_penalty: float = 1.0,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        workers: Searcher | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[list[Translation]]:
        """Up to `num_best` translations per text, best first, in order; "" for a blank text. A text
        that fails has one with an `error`; a DataError or UsageError if all of them fail.

        With sampling keywords, `num_best` translations are sampled, and beam must be 1; one that
        reaches `max_tokens` is scored without an end token. `max_tokens` None: twice the length of
        the source plus 10, up to the model's max_len. A source longer than max_len is truncated,
        which the tokenizer's report counts. `workers`: a WorkerPool that runs the beam searches.
        """
        self.check_task("translate")
        check_is_list(texts)
        rows = [row for row, text in enumerate(texts) if text.strip()]
        sources = self.tokenizer.encode_batch(
            [texts[row] for row in rows], max_len=self.model.config.max_cached_len
        )
        target = self.tokenizer.target
        if sampling:
            if workers is not None:
                raise UsageError(
                    "workers and sampling keywords are both set: workers only run beam search. "
                    "Leave one of them out."
                )
            options = sampling_options(num_best, beam, max_tokens, sampling)
            requests, errors = build_all(
                partial(self.request_builder.sample, options=options), sources
            )
            translations = sampled_translations(
                self.client, requests, target, length_penalty, progress
            )
        else:
            config = BeamConfig(beam, length_penalty, num_best)
            build = partial(self.request_builder.beam_search, max_tokens=max_tokens, beam=config)
            requests, errors = build_all(build, sources)
            translations = beam_translations(workers or self.client, requests, target, progress)
        results = iter(translations)
        by_row = {
            row: [failed(errors[place])] if place in errors else next(results)
            for place, row in enumerate(rows)
        }
        check_some(by_row.values())
        return [by_row.get(row, [EMPTY_TRANSLATION]) for row in range(len(texts))]

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: Literal[False] = False,
        **keywords: Unpack[GenerationKeywords],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        *,
        stream: Literal[True],
        **keywords: Unpack[GenerationKeywords],
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str,
        max_tokens: int | None = None,
        stream: bool = False,
        **keywords: Unpack[GenerationKeywords],
    ) -> str | Iterator[str]:
        """The continuation of a prompt, or with `stream` its pieces as they are generated.

        `max_tokens` None: 128, up to the model's max_len. Keywords are stop, json_schema, regex and
        those of SamplingParams; temperature 0 is greedy, and the default is 1.
        """
        self.check_task("generate")
        options = GenerationOptions.of(max_tokens, **keywords)
        texts = pieces(self.stream(self.prompt_ids(prompt), options))
        return texts if stream else "".join(texts)

    def completions(
        self,
        prompts: Sequence[str],
        max_tokens: int | None = None,
        n: int = 1,
        progress: Progress | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> Iterator[list[Completion]]:
        """The n completions of each prompt, in order, each once the ones before it are complete.
        The engine works on all prompts at once; keywords as in `generate`."""
        self.check_task("generate")
        check_is_list(prompts, "prompts")
        options = GenerationOptions.of(max_tokens, n, **keywords)
        requests = [
            self.request_builder.completion(self.prompt_ids(prompt), options) for prompt in prompts
        ]
        return self.complete_all(requests, progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> Iterator[str]:
        """The answer to a conversation of {"role", "content"}, piece by piece; keywords as in
        `generate`, but greedy unless a temperature is set."""
        self.check_task("chat")
        keywords.setdefault("temperature", 0.0)
        options = GenerationOptions.of(max_tokens, **keywords)
        return pieces(self.stream(self.chat_ids(messages), options))

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids of a prompt for a decoder: BOS and the text, never truncated."""
        return self.request_builder.prompt_ids(prompt)

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation in the model's chat template, up to the next answer."""
        return self.request_builder.chat_ids(messages)

    def stream(
        self, ids: Sequence[int], options: GenerationOptions
    ) -> RequestIterator[RequestOutput]:
        """The continuation of `ids`: tokens and text of each step. Closing or dropping it ends the
        request."""
        request = self.request_builder.completion(ids, options)
        assert request.n == 1, f"a stream has one sample, not {request.n}: use complete_all"
        request = replace(request, is_streamed=True)
        return self.client.generate(request)

    def complete_all(
        self, requests: Sequence[GenerationRequest], progress: Progress | None = None
    ) -> Iterator[list[Completion]]:
        """The completions of requests built by `request_builder`, in order."""
        return self.client.completions(requests, progress)

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Tensor:
        """One vector of length 1 per text, vectors_BD, in order; see pooling.py."""
        check_is_list(texts)
        pooling = self.generation_config.pooling
        return embed_texts(self.client, self.tokenizer, texts, pooling, progress or ignore)

    def score(self, texts: Sequence[str], progress: Progress | None = None) -> TextScore:
        """Summed loss and number of tokens of all texts."""
        self.check_task("perplexity")
        check_is_list(texts)
        return score_texts(self.client, self.tokenizer, texts, progress or ignore)

    def perplexity(self, texts: Sequence[str]) -> float:
        """exp of the mean loss per token over all texts."""
        return self.score(texts).perplexity

    def close(self) -> None:
        """End the engine thread; it also ends when the model is garbage collected."""
        if "locked_client" in self.__dict__:
            self.client.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check_task(self, task: Task) -> None:
        """Raise a UsageError if this kind of model does not support the task."""
        check_task(self.kind, task)


def build_all(
    build: Callable[[Sequence[int]], GenerationRequest], sources: Sequence[Sequence[int]]
) -> tuple[list[GenerationRequest], dict[int, str]]:
    """The requests of all sources, and the errors of those that are rejected, by place. Raises the
    error if all are."""
    requests: list[GenerationRequest] = []
    errors: dict[int, UsageError] = {}
    for place, source in enumerate(sources):
        try:
            requests.append(build(source))
        except UsageError as error:
            errors[place] = error
    if errors and not requests:
        raise next(iter(errors.values()))
    return requests, {place: str(error) for place, error in errors.items()}


def check_some(translations: Collection[list[Translation]]) -> None:
    """Raise a DataError if all of some texts failed."""
    errors = [best[0].error for best in translations if best[0].error is not None]
    if errors and len(errors) == len(translations):
        raise DataError(errors[0])


def pieces(outputs: RequestIterator[RequestOutput]) -> RequestIterator[str]:
    return outputs.then(output.text for output in outputs.results if output.text)


def ignore(count: int) -> None:
    """Progress that is not shown."""
