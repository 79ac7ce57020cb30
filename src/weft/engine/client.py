"""Engine client: the synchronous side of an `AsyncEngine`, for any number of threads.

    submit / submit_all       requests -> ids
    stream                    outputs of one request, step by step
    results                   the last output of each request, as they finish
    completions               requests -> Completions, in order
    abort                     free the pages of a request that is not needed any more; a thread that
                              reads it gets an EngineError

A caller waits for outputs in a queue, which the engine thread fills. An iterator that is closed or
dropped early aborts its requests. If the AsyncEngine has no thread, the caller that waits runs the
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

from weft.core.errors import DataError, EngineError
from weft.engine.async_engine import AsyncEngine, Submission
from weft.engine.attention_rows import AttentionRow
from weft.engine.detokenizer import FinishReason
from weft.engine.engine import Engine
from weft.engine.engine_state import PreparedRequest
from weft.engine.logprobs import TokenLogprob
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.request_iterator import RequestIterator
from weft.text.tokenizer import Tokenizer

T = TypeVar("T")

IndexedOutput = tuple[int, RequestOutput]
"""Index of a request among several, and its last output."""

Progress = Callable[[int], None]
"""Called with the number of texts that have finished since the last call."""


class Searcher(Protocol):
    """Runs beam searches: an EngineClient or a WorkerPool."""

    def search(self, requests: Sequence[GenerationRequest]) -> Iterator[IndexedOutput]:
        """Iterate over (index, last output) of beam searches, as they finish. An output has
        hypotheses or an error."""


@dataclass
class Completion:
    """One generated text, complete once `finish` is set."""

    index: int = 0
    """Index among the n completions of the prompt."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """Generated token ids, without the end token."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities, one per token and one for an end token; empty unless requested."""
    finish: FinishReason | None = None
    num_prompt: int = 0
    """Number of prompt tokens."""
    error: str | None = None
    """Error message of a request that failed; None: it succeeded."""

    def add(self, output: RequestOutput) -> None:
        """Append the output of one step."""
        self.text += output.text
        self.tokens += output.tokens
        self.logprobs += output.logprobs
        self.finish = output.finish

    def score(self, length_penalty: float) -> float:
        """As in beam search: log-probability / length ** length_penalty, with the end token."""
        total = sum(one.logprob for one in self.logprobs)
        return total / max(1, len(self.logprobs)) ** length_penalty


class AbortedOutput(RequestOutput):
    """The last output of a request that was aborted, for a thread that reads it."""


@dataclass(frozen=True)
class Translation:
    """A translation and its score; None if the source was empty."""

    text: str
    score: float | None
    unknown_ids: tuple[int, ...] = ()
    """Generated ids that the tokenizer does not have, left out of the text. A model whose
    vocabulary size is rounded up can generate them."""
    error: str | None = None
    """Error message of a text that failed; the other texts are not affected."""


EMPTY_TRANSLATION = Translation("", None)


class OutputQueue:
    """Outputs of some requests that one caller waits for, in the order of their steps."""

    def __init__(self) -> None:
        self.outputs: SimpleQueue[RequestOutput] = SimpleQueue()
        self.num_left: dict[str, int] = {}
        """Number of samples whose last output has not been read, by request."""

    def read(self, output: RequestOutput) -> bool:
        """Count an output that was read; returns whether it was the last of its request."""
        if output.request_id not in self.num_left:
            return False
        if output.error is not None:
            self.num_left[output.request_id] = 0
        elif output.finish is not None:
            self.num_left[output.request_id] -= 1
        return self.num_left[output.request_id] < 1


class EngineClient:
    """Submits requests to one engine and waits for their outputs. May be used by several threads;
    an iterator that it returns belongs to one of them."""

    def __init__(self, engine: Engine | AsyncEngine, is_threaded: bool = True) -> None:
        self.async_engine = (
            AsyncEngine(engine, is_threaded) if isinstance(engine, Engine) else engine
        )
        self.engine = self.async_engine.engine
        """Do not use while requests run; use `call` instead."""
        self.output_queues: dict[str, OutputQueue] = {}
        """By request id, until the request is aborted or its last output was read."""

    def __repr__(self) -> str:
        return f"EngineClient({self.async_engine!r})"

    def submit(self, request: GenerationRequest) -> str:
        """Submit a request and return its id; then read it with `stream`, or `abort` it."""
        return self.open_iterator(self.engine.prepare, [request]).release()[0]

    def submit_embedding(self, ids: Sequence[int]) -> str:
        """Submit a text to embed; its output has the hidden states."""
        return self.open_iterator(self.engine.prepare_embedding, [ids]).release()[0]

    def submit_score(self, ids: Sequence[int]) -> str:
        """Submit a text to score; its output has the log-probabilities of its tokens."""
        return self.open_iterator(self.engine.prepare_score, [ids]).release()[0]

    def submit_all(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Submit all requests, or none if one is rejected. Each has its own queue."""
        return self.open_iterator(self.engine.prepare, requests, has_own_queues=True).release()

    def open_iterator(
        self,
        prepare: Callable[[T], PreparedRequest],
        items: Iterable[T],
        has_own_queues: bool = False,
    ) -> RequestIterator[RequestOutput]:
        """Submit all items, with one queue unless each has its own, or none if one is rejected. The
        iterator has no results yet."""
        prepared = [prepare(item) for item in items]
        iterator: RequestIterator[RequestOutput] = RequestIterator(self)
        queue, submissions = OutputQueue(), []
        try:
            for request in prepared:
                iterator.ids.append(request.id)
                queue = OutputQueue() if has_own_queues else queue
                queue.num_left[request.id] = request.num_samples
                self.output_queues[request.id] = queue
                set_times = partial(iterator.times.__setitem__, request.id)
                submissions.append(Submission(request, queue.outputs.put, set_times))
            self.async_engine.submit_all(submissions)
            return iterator
        except BaseException:
            iterator.close()
            raise

    def generate(self, request: GenerationRequest) -> RequestIterator[RequestOutput]:
        """Submit a request and iterate over its outputs, one per step."""
        iterator = self.open_iterator(self.engine.prepare, [request])
        return iterator.then(self.outputs(iterator.ids[0]))

    def stream(self, request_id: str) -> RequestIterator[RequestOutput]:
        """Iterate over the outputs of a submitted request until it ends."""
        return RequestIterator(self, [request_id], self.outputs(request_id))

    def outputs(self, request_id: str) -> Iterator[RequestOutput]:
        queue = self.queue_of(request_id)
        while True:
            output = self.next_output(queue)
            if queue.read(output):
                self.output_queues.pop(request_id, None)
            yield check_output(output)
            if queue.num_left[request_id] < 1:
                return

    def results(self, ids: Sequence[str]) -> RequestIterator[IndexedOutput]:
        """Iterate over (index in `ids`, last output) of the requests, as they finish."""
        return RequestIterator(self, ids, self.last_outputs(ids))

    def embeddings(self, texts: Sequence[Sequence[int]]) -> RequestIterator[IndexedOutput]:
        """Iterate over (index, output with the hidden states) of the texts, as they are
        computed."""
        iterator = self.open_iterator(self.engine.prepare_embedding, texts)
        return iterator.then(self.last_outputs(iterator.ids))

    def scores(self, texts: Sequence[Sequence[int]]) -> RequestIterator[IndexedOutput]:
        """Iterate over (index, output with the log-probabilities) of the texts, as they are
        computed."""
        iterator = self.open_iterator(self.engine.prepare_score, texts)
        return iterator.then(self.last_outputs(iterator.ids))

    def last_outputs(self, ids: Sequence[str], is_checked: bool = True) -> Iterator[IndexedOutput]:
        """Raises a DataError for a request that failed, if `is_checked`."""
        waiting = {request_id: index for index, request_id in enumerate(ids)}
        while waiting:
            queue = self.queue_of(next(iter(waiting)))  # one of its own, or one for all
            output = self.next_output(queue)
            if queue.read(output):
                self.output_queues.pop(output.request_id, None)
                last = check_output(output) if is_checked else output
                yield waiting.pop(output.request_id), last

    def search(self, requests: Sequence[GenerationRequest]) -> RequestIterator[IndexedOutput]:
        """Iterate over (index, last output) of beam searches, as they finish. An output has
        hypotheses or an error."""
        iterator = self.open_iterator(self.engine.prepare, requests)
        return iterator.then(self.last_outputs(iterator.ids, is_checked=False))

    def completions(
        self,
        requests: Sequence[GenerationRequest],
        progress: Progress | None = None,
        is_checked: bool = True,
    ) -> RequestIterator[list[Completion]]:
        """The n completions of each request, in order, each once the ones before it are complete.
        All requests are submitted, or rejected, when this is called. Raises a DataError for a
        request that failed, unless not `is_checked`: then its completions have the error."""
        iterator = self.open_iterator(self.engine.prepare, requests)
        return iterator.then(self.collect(requests, iterator.ids, progress, is_checked))

    def collect(
        self,
        requests: Sequence[GenerationRequest],
        ids: Sequence[str],
        progress: Progress | None,
        is_checked: bool,
    ) -> Iterator[list[Completion]]:
        completions = {
            name: [Completion(index, num_prompt=len(request.prompt)) for index in range(request.n)]
            for name, request in zip(ids, requests, strict=True)
        }
        errors: dict[str, RequestOutput] = {}
        for name in list(ids):
            queue = self.output_queues.get(name)
            while queue is not None and queue.num_left[name] > 0:
                output = self.next_output(queue)
                if queue.read(output):
                    self.output_queues.pop(output.request_id, None)
                if output.error is not None:
                    errors[output.request_id] = output
                elif output.request_id in completions:  # not aborted
                    completions[output.request_id][output.index].add(output)
            if any(one.finish is None for one in completions[name]):
                errors.setdefault(name, aborted_output(name))
            if name in errors:
                if is_checked:
                    check_output(errors[name])
                for one in completions[name]:
                    one.error = errors[name].error
            if progress is not None:
                progress(1)
            yield completions.pop(name)

    def queue_of(self, request_id: str) -> OutputQueue:
        """The queue of a request; an EngineError if no output can follow."""
        queue = self.output_queues.get(request_id)
        if queue is None:
            raise not_active(request_id)
        return queue

    def next_output(self, queue: OutputQueue) -> RequestOutput:
        """The next output in a queue. Waits for it, or runs as many engine steps as it takes. What
        follows the last output of a request that was aborted is left out."""
        while True:
            while not self.async_engine.is_threaded and queue.outputs.empty():
                self.step()
            output = queue.outputs.get()
            if queue.num_left.get(output.request_id, 1) > 0:
                return output

    def step(self) -> None:
        """Without an engine thread: run the commands and one engine step."""
        assert not self.async_engine.is_threaded, "the engine thread runs the steps"
        self.async_engine.run_commands()
        self.async_engine.run_step()

    def attention(
        self, request_id: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """Attention weights of one token of a running or finished request."""
        return self.call(lambda engine: engine.attention(request_id, layer, head, query, sample))

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function with the engine between two steps, and wait for its result."""
        future = self.async_engine.call(function)
        if not self.async_engine.is_threaded:
            self.async_engine.run_commands()
        return future.result()

    def abort(self, request_id: str) -> None:
        """Drop a request, its outputs and its pages. Does nothing if it is unknown. A thread that
        waits for its outputs gets an EngineError; only its owner may close its iterator."""
        self.abort_later([request_id])
        if not self.async_engine.is_threaded:
            self.async_engine.run_commands()

    def abort_later(self, ids: Sequence[str]) -> None:
        """Abort requests before the next step. May be called in any thread and at any time, as by
        the garbage collector."""
        for request_id in ids:
            queue = self.output_queues.get(request_id)
            if queue is not None:
                self.async_engine.abort(request_id)
                queue.outputs.put(aborted_output(request_id))
                self.output_queues.pop(request_id, None)

    def close(self) -> None:
        """End the engine thread."""
        self.async_engine.close()


def check_output(output: RequestOutput) -> RequestOutput:
    """The output; raises a DataError if its request failed, an EngineError if it was aborted."""
    if output.error is not None:
        raise (EngineError if isinstance(output, AbortedOutput) else DataError)(output.error)
    return output


def aborted_output(request_id: str) -> AbortedOutput:
    return AbortedOutput(request_id, error=str(not_active(request_id)))


def not_active(request_id: str) -> EngineError:
    """The error of a caller who waits for outputs that will not come."""
    return EngineError(
        f"request {request_id} is not active: it was aborted, or its outputs were read. "
        "Submit it again."
    )


def translation(tokenizer: Tokenizer, ids: Sequence[int], score: float | None) -> Translation:
    """The text of ids that a model generated; `tokenizer` is that of the target."""
    unknown = tuple(token_id for token_id in ids if token_id >= tokenizer.vocab_size)
    known = [token_id for token_id in ids if token_id < tokenizer.vocab_size] if unknown else ids
    return Translation(tokenizer.decode(known), score, unknown)


def failed(error: str) -> Translation:
    return Translation("", None, error=error)


def beam_translations(
    searcher: Searcher,
    requests: Sequence[GenerationRequest],
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> list[list[Translation]]:
    """The hypotheses of each beam search as translations, best first."""
    translations: list[list[Translation]] = [[] for _ in requests]
    for index, output in searcher.search(requests):
        best = [translation(tokenizer, one.ids, one.score) for one in output.hypotheses]
        translations[index] = best if output.error is None else [failed(output.error)]
        if progress is not None:
            progress(1)
    return translations


def sampled_translations(
    client: EngineClient,
    requests: Sequence[GenerationRequest],
    tokenizer: Tokenizer,
    length_penalty: float,
    progress: Progress | None,
) -> list[list[Translation]]:
    """The samples of each request as translations, most likely first; needs `logprobs`."""
    translations = []
    for samples in client.completions(requests, progress, is_checked=False):
        if samples[0].error is not None:
            translations.append([failed(samples[0].error)])
            continue
        ranked = sorted(samples, key=lambda one: -one.score(length_penalty))
        translations.append(
            [translation(tokenizer, one.tokens, one.score(length_penalty)) for one in ranked]
        )
    return translations
