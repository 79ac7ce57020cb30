"""Beam search: prompts (and sources) -> the best continuations with their scores, over many
sentences at once, with a contiguous cache.

    rows of the model's batch     s0b0 s0b1 s0b2  s1b0 s1b1 s1b2      B sentences x W beams
    one step                      2W best of the W x V next tokens of each sentence;
                                  the W best that do not end go on, an end among the W best is found
    after it                      cache rows move to where their beams went; done sentences leave

score = log p(tokens, end) / length ** length_penalty, the end token counted, as fairseq and Marian
do it (GNMT divides by ((5 + length) / 6) ** penalty). 1: the mean per token; 0: the plain sum,
which likes short ones. At its limit a sentence may only end, so that every score is one of a whole
sentence. Beam 1 is greedy.

Differs from fairseq, whose choices these are, in when a sentence is done: with W found, as there,
but also once no running beam can beat what was found; that changes no best result. The first step
runs one row a sentence, so that cross-attention's rows are made once per source and then repeated
for its beams. They stay in place while beams change places, and are copied when sentences leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from weft.cache.contiguous import ContiguousCache
from weft.core.batch import ForwardBatch
from weft.core.errors import DataError, UsageError
from weft.models.decoder import Decoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.generate import check_prompts, first_batch


@dataclass(frozen=True)
class Hypothesis:
    """One continuation, the end token not included, with its score and its summed log
    probability."""

    ids: list[int]
    score: float
    logprob: float


@dataclass(frozen=True)
class WritingRule:
    """What some models must or must not write. Applied to log probabilities that are not made to
    add up again, as `transformers` does it, so that scores agree."""

    first: int | None = None
    """The token that every continuation begins with; it costs nothing."""
    banned: tuple[int, ...] = ()

    def apply(self, logp_BV: Tensor, length: int) -> Tensor:
        if self.banned:
            logp_BV[:, list(self.banned)] = -inf
        if self.first is not None and length == 0:
            logp_BV.fill_(-inf)[:, self.first] = 0.0
        return logp_BV


@dataclass(frozen=True)
class Candidates:
    """The best next tokens of each sentence, best first: X of them."""

    scores_BX: Tensor
    parents_BX: Tensor
    """The beam that each one continues."""
    ids_BX: Tensor


@torch.inference_mode()
def beam_search(
    model: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int | Sequence[int],
    end_id: int | None = None,
    beam: int = 5,
    length_penalty: float = 1.0,
    sources: Sequence[Sequence[int]] | None = None,
    num_best: int = 1,
    rule: WritingRule | None = None,
) -> list[list[Hypothesis]]:
    """At most `num_best` continuations of each prompt, best first. `max_tokens`: one limit, or one
    a prompt; a sentence's result does not depend on the limits of the others."""
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
    check_search(len(prompts), limits, beam, length_penalty, num_best)
    check_prompts(model, prompts, max(limits, default=1), sources)
    with next(model.parameters()).device:
        batch = first_batch(model, prompts, max(limits), sources)
    search = Search(model, batch, limits, end_id, beam, length_penalty, num_best, rule)
    while search.alive:
        search.step()
    refuse_broken(search.found)
    ranked = (sorted(found, key=lambda one: -one.score) for found in search.found)
    return [found[:num_best] for found in ranked]


class Search:
    """The state of one call. A sentence leaves every tensor when it is done."""

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        batch: ForwardBatch,
        limits: Sequence[int],
        end_id: int | None,
        beam: int,
        length_penalty: float,
        num_best: int,
        rule: WritingRule | None = None,
    ) -> None:
        self.rule = rule or WritingRule()
        self.model, self.batch, self.end_id = model, batch, end_id
        self.beam, self.length_penalty, self.num_best = beam, length_penalty, num_best
        assert isinstance(batch.cache, ContiguousCache), "the plain loop made its own cache"
        self.cache, B, device = batch.cache, len(limits), batch.ids_BT.device
        self.alive = list(range(B))
        """Numbers of the sentences that are still running."""
        self.limits = list(limits)
        self.scores_BW = torch.zeros(B, 1, dtype=torch.float64, device=device)
        self.history_BWT = torch.zeros(B, 1, 0, dtype=torch.long, device=device)
        self.found: list[list[Hypothesis]] = [[] for _ in limits]

    @property
    def length(self) -> int:
        """Tokens that every running beam has so far."""
        return self.history_BWT.shape[2]

    def step(self) -> None:
        """One pass: find what ends, let the best of the rest go on, dismiss done sentences."""
        logits_BV = last_logits(self.model, self.batch)
        is_last_B = torch.tensor([self.limits[s] == self.length for s in self.alive])
        best = self.candidates(logits_BV, is_last_B.to(logits_BV.device))
        is_end_BX = torch.zeros_like(best.ids_BX, dtype=torch.bool)
        if self.end_id is not None:
            is_end_BX = best.ids_BX == self.end_id
        self.collect(best, is_end_BX)
        scores_BX = best.scores_BX.masked_fill(is_end_BX, -inf)
        W = min(self.beam, scores_BX.shape[1])
        scores_BW, places_BW = scores_BX.topk(W, dim=1)
        parents_BW, ids_BW = best.parents_BX.gather(1, places_BW), best.ids_BX.gather(1, places_BW)
        self.go_on(scores_BW, parents_BW, ids_BW)

    def candidates(self, logits_BV: Tensor, is_last_B: Tensor) -> Candidates:
        """The 2W best next tokens of each sentence; where it is the last, only the end. Each beam
        offers its own 2W best, which is enough: at most W of them can be ends."""
        B, W = self.scores_BW.shape
        logp_BV = self.rule.apply(logits_BV.log_softmax(-1), self.length)
        logp, ids = logp_BV.topk(min(2 * self.beam, logp_BV.shape[1]), dim=-1)
        logp, ids = logp.view(B, W, -1).double(), ids.view(B, W, -1)
        if self.end_id is not None and bool(is_last_B.any()):
            end_BW = logp_BV[:, self.end_id].view(B, W).double()
            logp[is_last_B] = -inf
            logp[is_last_B, :, 0], ids[is_last_B, :, 0] = end_BW[is_last_B], self.end_id
        scores_BX = (self.scores_BW[..., None] + logp).flatten(1)
        scores_BX, places_BX = scores_BX.topk(min(2 * self.beam, scores_BX.shape[1]), dim=1)
        ids_BX = ids.flatten(1).gather(1, places_BX)
        return Candidates(scores_BX, places_BX // ids.shape[2], ids_BX)

    def collect(self, best: Candidates, is_end_BX: Tensor) -> None:
        """Keep the hypotheses that end and are among the W best; a dead beam's never are."""
        is_found_BX = is_end_BX & best.scores_BX.isfinite()
        for row, place in is_found_BX[:, : self.beam].nonzero().tolist():
            ids = self.history_BWT[row, best.parents_BX[row, place]].tolist()
            self.keep(row, ids, float(best.scores_BX[row, place]), len(ids) + 1)

    def keep(self, row: int, ids: list[int], logprob: float, length: int) -> None:
        score = logprob / length**self.length_penalty
        self.found[self.alive[row]].append(Hypothesis(ids, score, logprob))

    def go_on(self, scores_BW: Tensor, parents_BW: Tensor, ids_BW: Tensor) -> None:
        """The chosen beams become the running ones; done sentences leave."""
        B, old_W = self.scores_BW.shape
        sentence_B1 = torch.arange(B, device=ids_BW.device)[:, None]
        history_BWT = self.history_BWT[sentence_B1, parents_BW]
        self.scores_BW = scores_BW
        self.history_BWT = torch.cat((history_BWT, ids_BW[..., None]), dim=2)
        best = scores_BW[:, 0].tolist()
        running = [row for row in range(B) if not self.is_done(row, best[row])]
        rows_BW = sentence_B1 * old_W + parents_BW
        is_same_source = len(running) == B and scores_BW.shape[1] == old_W
        if len(running) < B:
            rows_BW, ids_BW = rows_BW[running], ids_BW[running]
            self.scores_BW, self.history_BWT = self.scores_BW[running], self.history_BWT[running]
            self.alive = [self.alive[row] for row in running]
        if self.alive:
            self.move(rows_BW.flatten(), ids_BW.flatten(), is_same_source)

    def move(self, rows_B: Tensor, ids_B: Tensor, is_same_source: bool) -> None:
        """The next pass reads the chosen tokens, each behind its own beam's rows."""
        self.cache.reorder(rows_B, sources=not is_same_source)
        memory_BSD, lengths_B = self.batch.memory_BSD, self.batch.memory_lengths_B
        if memory_BSD is not None and lengths_B is not None and not is_same_source:
            memory_BSD, lengths_B = memory_BSD[rows_B], lengths_B[rows_B]
        self.batch = ForwardBatch(
            ids_B[:, None], cache=self.cache, memory_BSD=memory_BSD, memory_lengths_B=lengths_B
        )

    def is_done(self, row: int, best: float) -> bool:
        """True when nothing that still runs can change a sentence's result. `best` runs ahead."""
        found, limit = self.found[self.alive[row]], self.limits[self.alive[row]]
        if self.end_id is None:
            return self.length == limit and self.keep_running(row)
        if len(found) >= self.beam or best == -inf or self.length > limit:
            return True
        # log probabilities only fall, and being longer helps at most up to the limit
        bound = best / (limit + 1) ** self.length_penalty
        return sum(one.score >= bound for one in found) >= self.num_best

    def keep_running(self, row: int) -> bool:
        """Without an end token, what runs at the limit is what was found."""
        for ids, score in zip(self.history_BWT[row], self.scores_BW[row].tolist(), strict=True):
            if score > -inf:
                self.keep(row, ids.tolist(), score, self.length)
        return True


def last_logits(model: Decoder | EncoderDecoder, batch: ForwardBatch) -> Tensor:
    """One pass; the logits behind each row's last token, in float32 or wider: logits_BV."""
    logits_BTV = model(batch)
    B, T = batch.ids_BT.shape
    cache, lengths_B = batch.cache, batch.lengths_B
    assert isinstance(cache, ContiguousCache), "the plain loop made its own cache"
    cache.advance(T if lengths_B is None else lengths_B)
    rows_B = torch.arange(B, device=logits_BTV.device)
    logits_BV = logits_BTV[:, -1] if lengths_B is None else logits_BTV[rows_B, lengths_B - 1]
    return logits_BV if logits_BV.dtype == torch.float64 else logits_BV.float()


def refuse_broken(found: Sequence[Sequence[Hypothesis]]) -> None:
    """Only probabilities that are no numbers leave a sentence without a result."""
    empty = sum(not hypotheses for hypotheses in found)
    if empty:
        raise DataError(
            f"the model gives no finite probability for {empty} of {len(found)} prompts: its "
            "weights may hold NaN or infinity. Use an earlier checkpoint."
        )


def check_search(
    num_prompts: int, limits: Sequence[int], beam: int, length_penalty: float, num_best: int
) -> None:
    """Refuse settings that no search can follow, with their values."""
    if beam < 1 or not 1 <= num_best <= beam:
        raise UsageError(
            f"beam is {beam} and num_best {num_best}: beam must be at least 1, and num_best from 1 "
            "to beam. Use a wider beam."
        )
    if not 0 <= length_penalty < inf:
        raise UsageError(
            f"length_penalty is {length_penalty:g}: it must be 0 or more. 1 is the mean per token, "
            "0 the plain sum."
        )
    if len(limits) != num_prompts or min(limits, default=1) < 1:
        raise UsageError(
            f"max_tokens is {list(limits)[:5]} for {num_prompts} prompts: give one number, or one "
            "a prompt, each at least 1."
        )
