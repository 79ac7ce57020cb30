"""Engine client: several callers of one process share an engine, each with its own requests.

    submit / submit_all       requests -> ids
    stream                    outputs of one request, step by step
    results                   the last output of each request, as they finish
    completions               requests -> Completions, in order
    abort                     free the pages of a request that is not needed any more

A caller that waits for an output runs engine steps; outputs of other requests are put into their
output queues. A generator that is closed early aborts its requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.core.errors import DataError, EngineError
from weft.engine.attention_rows import AttentionRow
from weft.engine.beam_search import Hypothesis
from weft.engine.detokenizer import FinishReason
from weft.engine.engine import Engine
from weft.engine.logprobs import TokenLogprob
from weft.engine.request import GenerationRequest, RequestOutput
from weft.text.tokenizer import Tokenizer

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

    def submit(self, request: GenerationRequest) -> str:
        """Submit a request and return its id; then read it with `stream`, or `abort` it."""
        return self.open_queue(self.engine.submit(request))

    def submit_all(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Submit all requests, or none if one is rejected."""
        ids: list[str] = []
        try:
            for request in requests:
                ids.append(self.submit(request))
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        return ids

    def submit_embedding(self, ids: Sequence[int]) -> str:
        """Submit a text whose hidden states are wanted."""
        return self.open_queue(self.engine.submit_embedding(ids))

    def submit_score(self, ids: Sequence[int]) -> str:
        """Submit a text whose log-probabilities are wanted."""
        return self.open_queue(self.engine.submit_score(ids))

    def open_queue(self, request_id: str) -> str:
        self.output_queues[request_id] = deque()
        return request_id

    def stream(self, request_id: str) -> Iterator[RequestOutput]:
        """The outputs of a request with one sample, up to its end."""
        try:
            while True:
                output = check_output(self.next_output(request_id))
                yield output
                if output.finish is not None:
                    return
        finally:
            self.abort(request_id)

    def results(self, ids: Sequence[str]) -> Iterator[tuple[int, RequestOutput]]:
        """Index in `ids` and last output of each request, as they finish."""
        waiting = {request_id: index for index, request_id in enumerate(ids)}
        try:
            while waiting:
                yield from self.finished_outputs(waiting)
        finally:
            for request_id in waiting:
                self.abort(request_id)

    def finished_outputs(self, waiting: dict[str, int]) -> list[tuple[int, RequestOutput]]:
        """Index and last output of the requests in `waiting` (id -> index) that have finished,
        which are removed from it. If there are none, runs one engine step first."""
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
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Index of a request and its hypotheses, as the beam searches finish."""
        for index, output in self.results(self.submit_all(requests)):
            yield index, output.hypotheses

    def completions(
        self, requests: Sequence[GenerationRequest], progress: Progress | None = None
    ) -> Iterator[list[Completion]]:
        """The n completions of each request, in order, each once the ones before it are complete.
        All requests are submitted, or rejected, when this is called."""
        return self.collect(requests, self.submit_all(requests), progress)

    def collect(
        self, requests: Sequence[GenerationRequest], ids: Sequence[str], progress: Progress | None
    ) -> Iterator[list[Completion]]:
        try:
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
        finally:
            for request_id in ids:
                self.abort(request_id)

    def next_output(self, request_id: str) -> RequestOutput:
        """The next output of a request; runs as many engine steps as it takes."""
        queue = self.output_queues[request_id]
        while not queue:
            self.check_active(request_id)
            self.step()
        return queue.popleft()

    def check_active(self, request_id: str) -> None:
        """Raise an EngineError if no output can follow: a failed step removes its requests."""
        if not self.engine.is_active(request_id) and request_id not in self.unread:
            raise EngineError(
                f"request {request_id} was removed because an engine step failed. Submit it again."
            )

    def step(self) -> None:
        """Run one engine step and distribute its outputs."""
        for output in self.engine.step():
            queue = self.output_queues.get(output.request_id)
            if queue is not None:
                queue.append(output)
                if output.finish is not None or output.error is not None:
                    self.unread.add(output.request_id)

    def attention(
        self, request_id: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """Attention weights of one token of a running or finished request."""
        return self.engine.attention(request_id, layer, head, query, sample)

    def abort(self, request_id: str) -> None:
        """Drop a request, its outputs and its pages. Does nothing if it is unknown."""
        self.unread.discard(request_id)
        if self.output_queues.pop(request_id, None) is not None:
            self.engine.abort(request_id)


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
