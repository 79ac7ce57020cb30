"""Engine client: several callers of one process share an engine, each with its own requests.

    submit / submit_all       requests -> ids
    stream                    outputs of one request, step by step
    results                   the last output of each request, as they finish
    completions               requests -> Completions, in order
    abort                     free the pages of a request that is not needed any more

A caller that waits for an output runs engine steps; outputs of other requests are put into their
output queues. An iterator that is closed or dropped early aborts its requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from weft.core.errors import DataError, EngineError
from weft.engine.attention_rows import AttentionRow
from weft.engine.beam_search import Hypothesis
from weft.engine.detokenizer import FinishReason
from weft.engine.engine import Engine
from weft.engine.logprobs import TokenLogprob
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.request_iterator import RequestIterator
from weft.text.tokenizer import Tokenizer

T = TypeVar("T")

IndexedOutput = tuple[int, RequestOutput]
"""Index of a request among several, and its last output."""

Progress = Callable[[int], None]
"""Called with the number of texts that have just been finished."""


class Searcher(Protocol):
    """Runs beam searches: an EngineClient or a WorkerPool."""

    def search(
        self, requests: Sequence[GenerationRequest]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Index of a request and its hypotheses, as the searches finish."""


@dataclass
class Completion:
    """One generated text, complete once `finish` is set."""

    index: int = 0
    """Index among the n completions of its prompt."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """Without the end token."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One per token, and one for an end token; empty unless requested."""
    finish: FinishReason | None = None
    num_prompt: int = 0
    """Number of prompt tokens."""

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


@dataclass(frozen=True)
class Translation:
    """A translation and its score; None if the source was empty."""

    text: str
    score: float | None
    unknown_ids: tuple[int, ...] = ()
    """Ids that the tokenizer does not have, and that are left out of the text: a model whose
    vocabulary is rounded up can generate them."""


EMPTY_TRANSLATION = Translation("", None)


class EngineClient:
    """Submits requests to one engine and keeps an output queue for each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.output_queues: dict[str, deque[RequestOutput]] = {}
        self.unread: set[str] = set()
        """Finished requests whose results have not been read yet."""
        self.received: deque[RequestOutput] = deque()
        """Outputs of the last step that are not in a queue yet."""
        self.dropped: deque[str] = deque()
        """Requests to abort before the next step."""

    def submit(self, request: GenerationRequest) -> str:
        """Submit a request and return its id; then read it with `stream`, or `abort` it."""
        return self.open_queue(self.engine.submit, request)

    def submit_embedding(self, ids: Sequence[int]) -> str:
        """Submit a text whose hidden states are wanted."""
        return self.open_queue(self.engine.submit_embedding, ids)

    def submit_score(self, ids: Sequence[int]) -> str:
        """Submit a text whose log-probabilities are wanted."""
        return self.open_queue(self.engine.submit_score, ids)

    def open_queue(self, submit: Callable[[T, str], str], item: T) -> str:
        """Submit with an output queue, or neither if this is interrupted."""
        request_id = self.engine.new_id()
        try:
            self.output_queues[request_id] = deque()
            return submit(item, request_id)
        except BaseException:
            self.abort(request_id)
            raise

    def submit_all(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Submit all requests, or none if one is rejected."""
        return self.open_iterator(self.submit, requests).release()

    def open_iterator(
        self, submit: Callable[[T], str], items: Iterable[T]
    ) -> RequestIterator[RequestOutput]:
        """Submit all items, or none if one is rejected. The iterator has no results yet."""
        iterator: RequestIterator[RequestOutput] = RequestIterator(self)
        try:
            for item in items:
                iterator.ids.append(submit(item))
            return iterator
        except BaseException:
            iterator.close()
            raise

    def generate(self, request: GenerationRequest) -> RequestIterator[RequestOutput]:
        """Submit a request with one sample; its outputs, step by step, up to its end."""
        iterator = self.open_iterator(self.submit, [request])
        return iterator.then(self.outputs(iterator.ids[0]))

    def stream(self, request_id: str) -> RequestIterator[RequestOutput]:
        """The outputs of a request with one sample, up to its end."""
        return RequestIterator(self, [request_id], self.outputs(request_id))

    def outputs(self, request_id: str) -> Iterator[RequestOutput]:
        while True:
            output = check_output(self.next_output(request_id))
            yield output
            if output.finish is not None:
                return

    def results(self, ids: Sequence[str]) -> RequestIterator[IndexedOutput]:
        """Index in `ids` and last output of each request, as they finish."""
        return RequestIterator(self, ids, self.last_outputs(ids))

    def embeddings(self, texts: Sequence[Sequence[int]]) -> RequestIterator[IndexedOutput]:
        """Index of a text and its hidden states, as they are computed."""
        iterator = self.open_iterator(self.submit_embedding, texts)
        return iterator.then(self.last_outputs(iterator.ids))

    def scores(self, texts: Sequence[Sequence[int]]) -> RequestIterator[IndexedOutput]:
        """Index of a text and its log-probabilities, as they are computed."""
        iterator = self.open_iterator(self.submit_score, texts)
        return iterator.then(self.last_outputs(iterator.ids))

    def last_outputs(self, ids: Sequence[str]) -> Iterator[IndexedOutput]:
        waiting = {request_id: index for index, request_id in enumerate(ids)}
        while waiting:
            yield from self.finished_outputs(waiting)

    def finished_outputs(self, waiting: dict[str, int]) -> list[IndexedOutput]:
        """Index and last output of the requests in `waiting` (id -> index) that have finished,
        which are removed from it. If there are none, runs one engine step first."""
        self.distribute()
        if not self.unread & waiting.keys():
            for request_id in waiting:
                self.check_active(request_id)
            self.step()
        finished = self.unread & waiting.keys()
        self.unread -= finished
        return [
            (waiting.pop(request_id), check_output(self.output_queues.pop(request_id)[-1]))
            for request_id in finished
        ]

    def search(
        self, requests: Sequence[GenerationRequest]
    ) -> RequestIterator[tuple[int, list[Hypothesis]]]:
        """Index of a request and its hypotheses, as the beam searches finish."""
        iterator = self.open_iterator(self.submit, requests)
        return iterator.then(self.hypotheses(iterator.ids))

    def hypotheses(self, ids: Sequence[str]) -> Iterator[tuple[int, list[Hypothesis]]]:
        for index, output in self.last_outputs(ids):
            yield index, output.hypotheses

    def completions(
        self, requests: Sequence[GenerationRequest], progress: Progress | None = None
    ) -> RequestIterator[list[Completion]]:
        """The n completions of each request, in order, each once the ones before it are complete.
        All requests are submitted, or rejected, when this is called."""
        iterator = self.open_iterator(self.submit, requests)
        return iterator.then(self.collect(requests, iterator.ids, progress))

    def collect(
        self, requests: Sequence[GenerationRequest], ids: Sequence[str], progress: Progress | None
    ) -> Iterator[list[Completion]]:
        for request, request_id in zip(requests, ids, strict=True):
            completions = [
                Completion(index, num_prompt=len(request.prompt)) for index in range(request.n)
            ]
            while any(one.finish is None for one in completions):
                output = check_output(self.next_output(request_id))
                completions[output.index].add(output)
            if progress is not None:
                progress(1)
            yield completions

    def next_output(self, request_id: str) -> RequestOutput:
        """The next output of a request; runs as many engine steps as it takes."""
        self.distribute()
        queue = self.output_queues[request_id]
        while not queue:
            self.check_active(request_id)
            self.step()
        return queue.popleft()

    def check_active(self, request_id: str) -> None:
        """Raise an EngineError if no output can follow."""
        if not self.engine.is_active(request_id) and request_id not in self.unread:
            raise EngineError(
                f"request {request_id} is not active: it was aborted, or its outputs were read. "
                "Submit it again."
            )

    def step(self) -> None:
        """Run one engine step and distribute its outputs."""
        self.abort_dropped()
        if not self.received:
            self.received.extend(self.engine.step())
        self.distribute()

    def distribute(self) -> None:
        """Put received outputs into their queues. Nothing is lost if this is interrupted: then the
        next call continues."""
        while self.received:
            output = self.received[0]
            queue = self.output_queues.get(output.request_id, deque())
            is_last = output.finish is not None or output.error is not None
            if is_last and output.request_id in self.output_queues:
                self.unread.add(output.request_id)
            queue.append(self.received.popleft())

    def attention(
        self, request_id: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """Attention weights of one token of a running or finished request."""
        return self.engine.attention(request_id, layer, head, query, sample)

    def abort(self, request_id: str) -> None:
        """Drop a request, its outputs and its pages. Does nothing if it is unknown."""
        self.dropped.append(request_id)
        self.abort_dropped()

    def abort_later(self, ids: Sequence[str]) -> None:
        """Abort requests before the next step. May be called in any thread and at any time, as by
        the garbage collector: it only adds to a deque."""
        self.dropped.extend(ids)

    def abort_dropped(self) -> None:
        """Abort the requests of iterators that were dropped. One that is interrupted is repeated by
        the next call."""
        while self.dropped:
            request_id = self.dropped[0]
            self.engine.abort(request_id)
            self.unread.discard(request_id)
            self.output_queues.pop(request_id, None)
            self.dropped.popleft()


def check_output(output: RequestOutput) -> RequestOutput:
    """The output; raises a DataError if its request failed."""
    if output.error is not None:
        raise DataError(output.error)
    return output


def translation(tokenizer: Tokenizer, ids: Sequence[int], score: float | None) -> Translation:
    """The text of ids that a model generated; `tokenizer` is that of the target."""
    unknown = tuple(token_id for token_id in ids if token_id >= tokenizer.vocab_size)
    known = [token_id for token_id in ids if token_id < tokenizer.vocab_size] if unknown else ids
    return Translation(tokenizer.decode(known), score, unknown)


def beam_translations(
    searcher: Searcher,
    requests: Sequence[GenerationRequest],
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> list[list[Translation]]:
    """The hypotheses of each beam search as translations, best first."""
    translations: list[list[Translation]] = [[] for _ in requests]
    for index, hypotheses in searcher.search(requests):
        translations[index] = [translation(tokenizer, one.ids, one.score) for one in hypotheses]
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
    for samples in client.completions(requests, progress):
        ranked = sorted(samples, key=lambda one: -one.score(length_penalty))
        translations.append(
            [translation(tokenizer, one.tokens, one.score(length_penalty)) for one in ranked]
        )
    return translations
