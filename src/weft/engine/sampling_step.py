"""The sampling half of an engine step: logits -> new tokens and outputs.

    prepare          what samples and beams choose from; changes nothing, so a forward pass that
                     fails up to here can be repeated
    choose_tokens    one call of the sampler for all rows; tokens are appended to their samples

With drafts a sample has several rows: its new tokens are those that would have been chosen without
drafts, as far as the drafts were right, and one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.beam import Beams
from weft.engine.beam_burst import BeamBurst
from weft.engine.burst import Burst
from weft.engine.detokenizer import FinishReason
from weft.engine.logprobs import TokenLogprob, token_logprob
from weft.engine.ranking import Best, advance_all, best_of_all
from weft.engine.request import RequestOutput, SampleState
from weft.engine.runner import Results
from weft.engine.scheduling.plan import Appended, Child, Chunk, Forked, Plan, SequenceId
from weft.engine.speculative import num_accepted
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.sampler import NO_TOKEN, sample

NOT_FINITE = (
    "the model's logits are not finite: its weights may contain NaN or infinity. Use an earlier "
    "checkpoint."
)

Samples = Mapping[str, Mapping[int, SampleState]]
"""Request id -> index -> sample."""
MultiStep = Burst | BeamBurst


@dataclass
class StepResult:
    """What the scheduler is told about a step."""

    grown: dict[SequenceId, Appended] = field(default_factory=dict)
    branched: dict[str, Forked] = field(default_factory=dict)
    ended: list[SequenceId] = field(default_factory=list)
    """Samples that ended with the first token after their prompt."""

    def end_chunk(self, chunk: Chunk) -> None:
        """No token could be chosen after a chunk: its request is about to be aborted."""
        if chunk.num_samples == 1:
            self.grown[chunk.sequence_id] = Appended([0], is_finished=True)
        else:
            self.branched[chunk.request.id] = Forked([])

    def add_tokens(self, rows: SampleRows, tokens: list[int], is_finished: bool) -> None:
        """New tokens of a sequence, or one of the n samples that start after a prompt."""
        chunk = rows.chunk
        if chunk.num_samples == 1:
            self.grown[chunk.sequence_id] = Appended(tokens or [0], is_finished)
            return
        request_id = chunk.request.id
        children = self.branched.get(request_id, Forked([])).children
        self.branched[request_id] = Forked([*children, Child(0, tokens[:1] or [0])])
        if is_finished:
            self.ended.append(SequenceId(request_id, rows.state.index))


@dataclass(frozen=True)
class SampleRows:
    """The rows of one sample in a step: of the logits, and what each choice depends on."""

    chunk: Chunk
    state: SampleState
    drafts: list[int]
    first: int
    """Its first row of the logits; the others follow."""
    rows: list[SamplingRow]


@dataclass
class SamplingBatch:
    """What the samples and beams of a step choose from."""

    chunks: list[tuple[Chunk, slice]] = field(default_factory=list)
    """Chunks of sampled requests, and their rows of the logits."""
    logits_NV: Tensor | None = None
    search_ids: list[str] = field(default_factory=list)
    """Ids of the beam search requests."""
    searches: list[Beams] = field(default_factory=list)
    candidates: Best | None = None
    """The best next tokens of all their beams."""


def prepare(
    plan: Plan, results: Results, samples: Samples, searches: Mapping[str, Beams]
) -> SamplingBatch:
    """Collect the logits of the samples and the candidates of the beams of a plan."""
    batch, chances = SamplingBatch(), results.chances
    if chances is None:
        return batch
    rows_of_chunks = zip(plan.chunks, results.rows, strict=True)
    sampled = [pair for pair in rows_of_chunks if pair[0].num_samples]
    batch.chunks = [pair for pair in sampled if pair[0].request.id in samples]
    if batch.chunks:
        batch.logits_NV = chances.logits_NV
    searched = [pair for pair in sampled if pair[0].request.id in searches]
    if searched:
        rows = [row for _, part in searched for row in range(part.start, part.stop)]
        batch.search_ids = list(dict.fromkeys(chunk.request.id for chunk, _ in searched))
        batch.searches = [searches[request_id] for request_id in batch.search_ids]
        batch.candidates = best_of_all(batch.searches, chances.of(rows))
    return batch


def choose_tokens(
    batch: SamplingBatch, samples: Samples, outputs: list[RequestOutput]
) -> StepResult:
    """Choose and append the tokens of all samples and beams; their outputs are appended."""
    result = StepResult()
    if batch.logits_NV is not None:
        sample_tokens(batch.chunks, samples, batch.logits_NV, result, outputs)
    if batch.candidates is not None:
        parents = advance_all(batch.searches, batch.candidates)
        result.branched |= publish_beams(batch.search_ids, batch.searches, parents, outputs)
    return result


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
    num_logprobs = state.request.sampling.logprobs
    accepted = min(num_accepted(rows.drafts, chosen), len(chosen) - 1)
    tokens: list[int] = []
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    error = None
    for i, token in enumerate(chosen[: accepted + 1]):
        if token == NO_TOKEN:
            error = "the grammar and the banned tokens together exclude every token."
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
    visible = tokens[:-1] if finish is not None and finish.reason == "end" else tokens
    request_id, text = rows.chunk.request.id, "".join(texts)
    outputs.append(
        RequestOutput(request_id, state.index, visible, text, logprobs, finish, error=error)
    )
    result.add_tokens(rows, tokens, is_finished=finish is not None or error is not None)


def publish_beams(
    ids: Sequence[str],
    searches: Sequence[Beams],
    parents: Sequence[list[int]],
    outputs: list[RequestOutput],
) -> dict[str, Forked]:
    """The forks of each beam search; the outputs of those that are done are appended."""
    branched: dict[str, Forked] = {}
    for request_id, search, chosen in zip(ids, searches, parents, strict=True):
        if search.is_done:
            branched[request_id] = Forked([])
            outputs.append(search_output(request_id, search))
        else:
            last = (history[-1] for history in search.histories)
            children = [Child(one, [token]) for one, token in zip(chosen, last, strict=True)]
            branched[request_id] = Forked(children)
    return branched


def multi_step_of(plan: Plan, searches: Mapping[str, Beams]) -> MultiStep | None:
    """What chooses tokens between the forward passes of a plan; None if it has only one."""
    if plan.num_steps == 1:
        return None
    chunks = [chunk for chunk in plan.chunks if chunk.index == 0]
    kind = BeamBurst if chunks[0].request.beam > 1 else Burst
    return kind(chunks, [searches[chunk.request.id] for chunk in chunks])


def publish_multi_step(
    multi_step: MultiStep, searches: Mapping[str, Beams], outputs: list[RequestOutput]
) -> StepResult:
    """The result of beam searches after several forward passes. Nothing is output for requests
    that have been aborted."""
    step_result = StepResult()
    results: Sequence[Appended | Forked] = multi_step.settle()
    for chunk, search, result in zip(multi_step.chunks, multi_step.searches, results, strict=True):
        if isinstance(result, Appended):
            step_result.grown[chunk.sequence_id] = result
        else:
            step_result.branched[chunk.request.id] = result
        if search.is_done and chunk.request.id in searches:
            outputs.append(search_output(chunk.request.id, search))
    return step_result


def search_output(request_id: str, search: Beams) -> RequestOutput:
    """The output of a beam search that is done."""
    hypotheses = search.best()
    error = None if hypotheses else NOT_FINITE
    finish = FinishReason("end")
    return RequestOutput(request_id, finish=finish, hypotheses=hypotheses, error=error)
