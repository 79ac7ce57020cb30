"""The plain loop: prompts -> continuations, one token at a time, with a contiguous cache. Greedy
or sampled.

Enough to check the layers: begin, attend to what is there, choose a token, feed it back, stop at
the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.cache.contiguous import ContiguousCache
from weft.core.batch import ForwardBatch
from weft.core.errors import UsageError
from weft.models.decoder import Decoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.sampling import shape_logits
from weft.sampling.draw import draw, greedy, uniform
from weft.sampling.settings import SamplingConfig


@torch.inference_mode()
def generate(
    model: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    end_id: int | None = None,
    sampling: SamplingConfig | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt, the end token not included. `sources` are what an
    encoder-decoder reads."""
    check_prompts(model, prompts, max_tokens, sources)
    sampling = sampling or SamplingConfig(temperature=0.0)
    batch = first_batch(model, prompts, max_tokens, sources)
    outputs: list[list[int]] = [[] for _ in prompts]
    done = [False] * len(prompts)
    for _ in range(max_tokens):
        ids_B = step(model, batch, prompts, outputs, sampling)
        for row, token in enumerate(ids_B.tolist()):
            done[row] = done[row] or token == end_id
            if not done[row]:
                outputs[row].append(token)
        if all(done):
            break
        batch = replace(batch, ids_BT=ids_B[:, None], lengths_B=None)
    return outputs


def step(
    model: Decoder | EncoderDecoder,
    batch: ForwardBatch,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    sampling: SamplingConfig,
) -> Tensor:
    """One pass and one chosen token for each row: ids_B."""
    logits_BTV = model(batch)
    B, T = batch.ids_BT.shape
    lengths_B = torch.full((B,), T) if batch.lengths_B is None else batch.lengths_B
    logits_BV = logits_BTV[torch.arange(B), lengths_B - 1]
    cache = batch.cache
    assert isinstance(cache, ContiguousCache), "the plain loop made its own cache"
    cache.advance(T if batch.lengths_B is None else lengths_B)
    if sampling.is_greedy:
        return greedy(logits_BV)
    places = [len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)]
    u_B = torch.tensor([uniform(sampling.seed + row, place) for row, place in enumerate(places)])
    return draw(shape_logits(logits_BV, sampling), u_B)


def first_batch(
    model: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sources: Sequence[Sequence[int]] | None,
) -> ForwardBatch:
    """The prompts padded on the right, an empty cache, and the encoded sources."""
    first = next(model.parameters())
    ids_BT, lengths_B = pad(prompts)
    room = ids_BT.shape[1] + max_tokens
    cache = ContiguousCache(model.kv_specs(), len(prompts), room, first.device, first.dtype)
    is_even = len({len(prompt) for prompt in prompts}) == 1
    batch = ForwardBatch(ids_BT, lengths_B=None if is_even else lengths_B, cache=cache)
    if sources is None or not isinstance(model, EncoderDecoder):
        return batch
    source_ids_BS, source_lengths_B = pad(sources)
    memory_BSD = model.encode(ForwardBatch(source_ids_BS, lengths_B=source_lengths_B))
    return replace(batch, memory_BSD=memory_BSD, memory_lengths_B=source_lengths_B)


def pad(rows: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids -> ids_BT padded on the right, and lengths_B."""
    longest = max(len(row) for row in rows)
    ids_BT = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows])
    return ids_BT, torch.tensor([len(row) for row in rows])


def check_prompts(
    model: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sources: Sequence[Sequence[int]] | None,
) -> None:
    """Refuse what cannot be generated, with the numbers."""
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UsageError(
            "a prompt is empty: generation needs at least one token to begin with. Pass the begin "
            "token."
        )
    longest = max(len(prompt) for prompt in prompts)
    if longest + max_tokens > model.config.max_len:
        raise UsageError(
            f"the longest prompt has {longest} tokens and {max_tokens} more are asked for, but the "
            f"model's max_len is {model.config.max_len}. Ask for at most "
            f"{max(0, model.config.max_len - longest)}."
        )
    if isinstance(model, EncoderDecoder) and (sources is None or len(sources) != len(prompts)):
        given = "none" if sources is None else str(len(sources))
        raise UsageError(
            f"{len(prompts)} prompts but {given} sources: an encoder-decoder reads one source a "
            "prompt."
        )
