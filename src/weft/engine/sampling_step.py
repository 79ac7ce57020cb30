"""The sampling half of an engine step: logits -> new tokens and outputs.

A `StepChooser` chooses the tokens of one plan, in two phases:

    choose     called by the model runner after each forward pass: keeps the logits of the samples,
               and ranks the candidates of the beam searches. It changes no request, so a forward
               pass that fails can be repeated
    results    one call of the sampler for all rows; tokens are appended to their samples, and
               copies of the searches are updated

With drafts a sample has several rows: its new tokens are those that would have been chosen without
drafts, as far as the drafts were right, and one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.beam_search import BeamBatch, BeamSearch
from weft.engine.detokenizer import FinishReason
from weft.engine.input_batch import InputBatch, SampledTokens
from weft.engine.logits import NextTokenLogits, not_finite_error
from weft.engine.logprobs import TokenLogprob, token_logprob
from weft.engine.model_runner import CompiledDecode
from weft.engine.request import RequestOutput, SampleState
from weft.engine.scheduling.plan import Appended, Child, Chunk, Forked, Plan, SequenceId
from weft.engine.speculative import num_accepted
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.sampler import NO_TOKEN, NOT_FINITE, sample

Samples = Mapping[str, Mapping[int, SampleState]]
"""Request id -> index -> sample."""
Searches = Mapping[str, BeamSearch]

ALL_EXCLUDED = "the grammar and the banned tokens together exclude every token."
"""The error of a request that contradicts itself: min_tokens bans end tokens, for example, and the
grammar allows nothing else."""


@dataclass
class StepResult:
    """What the scheduler is told about a step."""

    appended: dict[SequenceId, Appended] = field(default_factory=dict)
    forked: dict[str, Forked] = field(default_factory=dict)
    finished: list[SequenceId] = field(default_factory=list)
    """Samples that ended with the first token after their prompt."""
    searches: dict[str, BeamSearch] = field(default_factory=dict)
    """The beam searches after the step; the engine's own are unchanged."""

    def end_chunk(self, chunk: Chunk) -> None:
        """No token could be chosen after a chunk: its request is about to be aborted."""
        if chunk.num_samples == 1:
            self.appended[chunk.sequence_id] = Appended([0], is_finished=True)
        else:
            self.forked[chunk.request.id] = Forked([])

    def add_tokens(self, rows: SampleRows, tokens: list[int], is_finished: bool) -> None:
        """New tokens of a sequence, or one of the n samples that start after a prompt."""
        chunk = rows.chunk
        if chunk.num_samples == 1:
            self.appended[chunk.sequence_id] = Appended(tokens or [0], is_finished)
            return
        request_id = chunk.request.id
        children = self.forked.get(request_id, Forked([])).children
        self.forked[request_id] = Forked([*children, Child(0, tokens[:1] or [0])])
        if is_finished:
            self.finished.append(SequenceId(request_id, rows.state.index))


@dataclass(frozen=True)
class SampleRows:
    """The rows of one sample in a step: of the logits, and what each choice depends on."""

    chunk: Chunk
    state: SampleState
    drafts: list[int]
    first: int
    """Its first row of the logits; the others follow."""
    rows: list[SamplingRow]


@dataclass(frozen=True)
class BeamRows:
    """The beam searches of one width in a plan."""

    chunks: list[Chunk]
    """The first chunk of each search."""
    rows: list[int]
    """Their rows of the logits: all beams of the first search, then of the second."""
    batch: BeamBatch

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[Chunk, slice]], searches: Searches, is_multi_step: bool
    ) -> BeamRows:
        chunks = [chunk for chunk, _ in pairs if chunk.index == 0]
        rows = [row for _, part in pairs for row in range(part.start, part.stop)]
        of_chunks = [searches[chunk.request.id] for chunk in chunks]
        num_steps = [chunk.num_steps for chunk in chunks]
        return cls(chunks, rows, BeamBatch(of_chunks, num_steps, is_multi_step))


class StepChooser:
    """Chooses the tokens of one plan: samples by their logits, beam searches in batches of one
    width. Requests that are aborted during a forward pass are left out."""

    def __init__(
        self,
        plan: Plan,
        samples: Samples,
        searches: Searches,
        check_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_interrupt` is called after each forward pass; it may raise."""
        self.plan, self.samples, self.searches = plan, samples, searches
        self.check_interrupt = check_interrupt
        self.sampled: list[tuple[Chunk, slice]] = []
        """Chunks of sampled requests, and their rows of the logits."""
        self.logits_NV: Tensor | None = None
        self.beams: list[BeamRows] = []
        self.is_multi_step = plan.num_steps > 1
        if self.is_multi_step:  # then all requests are beam searches of one width
            self.beams = self.beam_rows(self.sampled_rows())

    def choose(self, logits: NextTokenLogits) -> SampledTokens | None:
        """After a forward pass: choose from the logits of its sampled rows."""
        self.check_interrupt()
        if self.is_multi_step:
            return self.beams[0].batch.choose(logits)
        pairs = self.sampled_rows()
        self.sampled = [pair for pair in pairs if pair[0].request.id in self.samples]
        if self.sampled:
            self.logits_NV = logits.logits_NV
        if len(self.sampled) < len(pairs):
            self.beams = self.beam_rows(pairs)
        for beams in self.beams:
            beams.batch.choose(logits.select(beams.rows))
        return None

    def run_greedy(self, batch: InputBatch, decode: CompiledDecode) -> bool:
        """All remaining steps of a multi-step plan in one call, if possible."""
        return self.beams[0].batch.run_greedy(batch, decode)

    def sampled_rows(self) -> list[tuple[Chunk, slice]]:
        """Chunks after which tokens are chosen, with their rows of the logits."""
        pairs, start = [], 0
        for chunk in self.plan.chunks:
            if chunk.num_samples:
                end = start + chunk.num_rows
                pairs.append((chunk, slice(start, end)))
                start = end
        return pairs

    def beam_rows(self, pairs: Sequence[tuple[Chunk, slice]]) -> list[BeamRows]:
        """The beam searches of the plan by width."""
        widths: dict[int, list[tuple[Chunk, slice]]] = {}
        for chunk, rows in pairs:
            if chunk.request.id in self.searches:
                widths.setdefault(chunk.request.beam, []).append((chunk, rows))
        return [BeamRows.of(part, self.searches, self.is_multi_step) for part in widths.values()]

    def results(self, outputs: list[RequestOutput]) -> StepResult:
        """Append the chosen tokens to all samples and to copies of the searches; their outputs are
        appended."""
        result = StepResult()
        if self.logits_NV is not None:
            sample_tokens(self.sampled, self.samples, self.logits_NV, result, outputs)
        for beams in self.beams:
            beams.batch.searches = [search.copy() for search in beams.batch.searches]
            for chunk, search, change in zip(
                beams.chunks, beams.batch.searches, beams.batch.results(), strict=True
            ):
                if isinstance(change, Appended):
                    result.appended[chunk.sequence_id] = change
                else:
                    result.forked[chunk.request.id] = change
                if chunk.request.id in self.searches:
                    result.searches[chunk.request.id] = search
                    if search.is_done:
                        outputs.append(search_output(chunk.request.id, search))
        if any(one.error for one in outputs):
            outputs[:] = until_errors(outputs)
        return result


def until_errors(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """The outputs of a step up to the first error of each request, which is its last output: those
    of its other samples that follow are dropped."""
    failed: set[str] = set()
    kept: list[RequestOutput] = []
    for output in outputs:
        if output.request_id not in failed:
            kept.append(output)
        if output.error is not None:
            failed.add(output.request_id)
    return kept


def sample_tokens(
    chunks: Sequence[tuple[Chunk, slice]],
    samples: Samples,
    logits_NV: Tensor,
    result: StepResult,
    outputs: list[RequestOutput],
) -> None:
    """One call of the sampler for all rows of all samples."""
    all_rows: list[SampleRows] = []
    for chunk, part in chunks:
        try:
            all_rows += sample_rows(chunk, part, samples)
        except UsageError as error:  # a grammar that is too large fails only when it is used
            outputs.append(RequestOutput(chunk.request.id, chunk.index, error=str(error)))
            result.end_chunk(chunk)
    if not all_rows:
        return
    indices = [one.first + i for one in all_rows for i in range(len(one.rows))]
    # usually each row of the logits is used once, in order: then nothing is copied
    is_all = indices == list(range(len(logits_NV)))
    rows = [row for one in all_rows for row in one.rows]
    ids = sample(logits_NV if is_all else logits_NV[indices], rows).tolist()
    start = 0
    for one in all_rows:
        chosen = ids[start : start + len(one.rows)]
        start += len(one.rows)
        append_tokens(one, chosen, logits_NV, result, outputs)


def sample_rows(chunk: Chunk, part: slice, samples: Samples) -> list[SampleRows]:
    """The samples that read the logits of a chunk: one, or all n after a shared prompt."""
    states = samples[chunk.request.id]
    if chunk.num_samples > 1:
        return [SampleRows(chunk, one, [], part.start, one.rows([])) for one in states.values()]
    drafts = chunk.tokens[len(chunk.tokens) - chunk.num_drafts :]
    state = states[chunk.index]
    return [SampleRows(chunk, state, drafts, part.start, state.rows(drafts))]


def append_tokens(
    rows: SampleRows,
    chosen: list[int],
    logits_NV: Tensor,
    result: StepResult,
    outputs: list[RequestOutput],
) -> None:
    """Append the accepted tokens to a sample, up to one that ends it."""
    state, detokenizer = rows.state, rows.state.detokenizer
    num_before = len(state.output)
    num_logprobs = state.request.sampling.logprobs
    # a grammar may leave fewer rows than drafts
    accepted = min(num_accepted(rows.drafts, chosen), len(chosen) - 1) if rows.drafts else 0
    tokens: list[int] = []
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    error = None
    for i, token in enumerate(chosen[: accepted + 1]):
        if token == NO_TOKEN:
            if state.is_complete:
                texts.append(detokenizer.finalize("end"))
            else:
                error = ALL_EXCLUDED
            break
        if token == NOT_FINITE:
            error = not_finite_error(len(state.output) + 1)
            break
        tokens.append(token)
        if num_logprobs is not None:
            logprobs.append(token_logprob(logits_NV[rows.first + i], token, num_logprobs))
        try:
            texts.append(state.append(token))
        except UsageError as failure:
            error = str(failure)
            break
        if detokenizer.finish is not None:
            break
    finish = detokenizer.finish
    if state.drafter is not None:
        state.drafter.lookup.extend(tokens)
        state.drafter.adapt(len(rows.drafts), accepted)
    visible, text = state.output[num_before:], "".join(texts)  # without an end token
    request_id = rows.chunk.request.id
    outputs.append(
        RequestOutput(request_id, state.index, visible, text, logprobs, finish, error=error)
    )
    result.add_tokens(rows, tokens, is_finished=finish is not None or error is not None)


def search_output(request_id: str, search: BeamSearch) -> RequestOutput:
    """The output of a beam search that is done."""
    hypotheses = search.best()
    error = None if hypotheses else "the banned tokens exclude every continuation."
    if search.not_finite is not None:
        hypotheses, error = [], not_finite_error(search.not_finite)
    finish = FinishReason("end")
    return RequestOutput(request_id, finish=finish, hypotheses=hypotheses, error=error)
