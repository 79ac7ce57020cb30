"""`CompiledDecode`: the decode steps of one plan by the compiled stack, from embedding to top k.

One call for each step, or one for all of them in greedy search. Where the modules have to compute,
there is none, and the runner goes through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from weft.engine.input_batch import InputBatch
from weft.native.compiled_stack import CompiledStack
from weft.native.kernels import TopK
from weft.native.stack_weights import PositionRows

CPU = torch.device("cpu")


@dataclass(frozen=True)
class CompiledDecode:
    """The compiled stack, and its position tables as far as the last step of the plan."""

    compiled: CompiledStack
    position_rows: PositionRows

    @property
    def is_light(self) -> bool:
        """Whether `greedy` is faster than one call for each step."""
        return self.compiled.is_light

    def top_k(self, batch: InputBatch, k: int, banned: Sequence[int]) -> TopK:
        """One step of these sequences."""
        ids_B, layouts = batch.packed.ids_1N[0], batch.layouts(CPU)
        return self.compiled.top_k(ids_B, layouts, k, banned, self.position_rows)

    def greedy(
        self,
        batch: InputBatch,
        ends_B: NDArray[np.int64],
        limits_B: NDArray[np.int64],
        scores_B: NDArray[np.float64],
        banned: Sequence[int],
    ) -> NDArray[np.int64]:
        """All steps until each sequence has ended or reached its limit: tokens_BT, -1 after the
        last one. `scores_B` is updated."""
        ids_B, layouts = batch.packed.ids_1N[0].numpy(), batch.layouts(CPU)
        arrays = (ends_B, limits_B, scores_B)
        return self.compiled.greedy(ids_B, layouts, *arrays, banned, self.position_rows)
