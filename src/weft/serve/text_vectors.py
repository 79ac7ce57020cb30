"""Vectors of texts for routes: texts or token ids -> one vector of length 1 each.

    vectors = await embed_inputs(call, served, ["a text", [1, 17, 2]])
    vectors.array_BD        float32, bit for bit those of `LoadedModel.embed`

Texts are tokenized in a thread; hidden states are computed and pooled in the engine thread, batched
with all other requests. A text that is too long is an error with both lengths, or is truncated and
counted if the protocol truncates.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weft.engine.engine_state import PreparedRequest
from weft.engine.output_stream import OutputStream
from weft.engine.pooling import Pool, find_pooling, max_embedded_len, nonempty, pool_vectors
from weft.engine.request import RequestOutput
from weft.serve.api_errors import ApiError, server_fault
from weft.serve.context import HttpCall
from weft.serve.generation import Usage
from weft.serve.served_model import ServedModel
from weft.serve.streaming import until_gone

MAX_TEXTS = 2048

TextOrIds = str | Sequence[int]
"""A text, or its token ids with begin and end."""


@dataclass(frozen=True)
class TextVectors:
    """The vectors of some texts, in order."""

    array_BD: NDArray[np.float32]
    num_tokens: int
    num_truncated: int = 0
    """Texts of which the end was cut off."""


async def embed_inputs(
    call: HttpCall,
    served: ServedModel,
    inputs: Sequence[TextOrIds],
    param: str = "input",
    truncate: bool = False,
    names: Sequence[str] = (),
) -> TextVectors:
    """One vector per input. `param`: the field that errors name, or `names`: a name of each input;
    `truncate`: cut off the end of texts that are too long."""
    if not 1 <= len(inputs) <= MAX_TEXTS:
        raise ApiError(
            400, f"{param} has {len(inputs)} entries: 1 to {MAX_TEXTS} are allowed.", param
        )
    names = names or [f"{param} {index}" for index in range(len(inputs))]
    return await until_gone(call, embed(call, served, inputs, names, truncate))


async def embed(
    call: HttpCall,
    served: ServedModel,
    inputs: Sequence[TextOrIds],
    names: Sequence[str],
    truncate: bool,
) -> TextVectors:
    pool = find_pooling(served.loaded.generation_config.pooling)

    def prepare() -> tuple[list[list[int]], int, list[PreparedRequest]]:
        call.limits.check_room(served)
        rows = input_rows(served, inputs)
        rows, num_truncated = fit(served, rows, names, truncate)
        key, engine = call.caller.name, served.engine.engine
        return rows, num_truncated, [engine.prepare_embedding(row, key=key) for row in rows]

    rows, num_truncated, prepared = await asyncio.to_thread(prepare)
    num_tokens = sum(len(row) for row in rows)
    call.record.used(Usage(num_tokens))
    stream = served.engine.stream(*prepared, convert=partial(pooled, pool))
    array_BD = np.zeros((len(rows), served.loaded.model.config.width), np.float32)
    await read_vectors(call, stream, array_BD)
    return TextVectors(array_BD, num_tokens, num_truncated)


def input_rows(served: ServedModel, inputs: Sequence[TextOrIds]) -> list[list[int]]:
    """The token ids of each input, not truncated."""
    tokenizer = served.tokenizer
    texts = [one for one in inputs if isinstance(one, str)]
    encoded = iter(tokenizer.encode_batch(texts, max_len=sys.maxsize))
    return [
        nonempty(next(encoded), tokenizer) if isinstance(one, str) else list(one) for one in inputs
    ]


def fit(
    served: ServedModel, rows: list[list[int]], names: Sequence[str], truncate: bool
) -> tuple[list[list[int]], int]:
    """Rows that the model can read, and how many were truncated."""
    limit = max_embedded_len(served.loaded.model.config, served.tokenizer)
    if truncate:
        end = served.tokenizer.frame[1]
        cut = [row if len(row) <= limit else [*row[: limit - len(end)], *end] for row in rows]
        return cut, sum(len(row) > limit for row in rows)
    for name, row in zip(names, rows, strict=True):
        if not 1 <= len(row) <= limit:
            raise ApiError(
                400,
                f"{name} has {len(row)} tokens, and the model reads 1 to {limit}. "
                "Split the text into shorter ones.",
                name.partition(" ")[0],
                "context_length_exceeded" if row else None,
            )
    return rows, 0


def pooled(pool: Pool, output: RequestOutput) -> RequestOutput:
    """Engine thread: the output with one vector instead of those of all tokens."""
    if output.vectors_TD is None:
        return output
    return replace(output, vectors_TD=pool_vectors(pool, output.vectors_TD)[None])


async def read_vectors(call: HttpCall, stream: OutputStream, array_BD: NDArray[np.float32]) -> None:
    """Write the vectors of a stream into the rows of an array."""
    rows = {name: row for row, name in enumerate(stream.ids)}
    try:
        async with asyncio.timeout_at(call.deadline):
            async for output in stream:
                if output.vectors_TD is None:
                    raise server_fault(output.error or "a text was not embedded.", call.id)
                array_BD[rows[output.request_id]] = output.vectors_TD[0].numpy()
    except TimeoutError:
        raise call.timed_out() from None
    finally:
        stream.close()


def normalized(array_BD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays."""
    lengths_B1 = np.sqrt((array_BD.astype(np.float64) ** 2).sum(1, keepdims=True))
    return (array_BD / np.maximum(lengths_B1, 1e-12)).astype(np.float32)
