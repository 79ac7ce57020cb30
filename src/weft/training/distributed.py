"""Distributed training: reductions over processes, and a model replicated (DDP) or sharded (FSDP2).

torchrun starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK; without it there is one
process and every function here is a no-op. Each process computes the summed loss of its rows
divided by the number of tokens of all, so that the sum of the gradients equals those of a single
process. DDP and FSDP average gradients instead, so the loop multiplies the loss by the world size.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from weft.models.build import AnyModel
from weft.nn.mixture_of_experts import MixtureOfExperts
from weft.training.loss import LossConfig
from weft.training.objective import Batch, batch_loss

LossFunction = Callable[[Batch, LossConfig], Tensor]


class LossModule(nn.Module):
    """A model whose forward returns its loss: DDP and FSDP synchronize in `forward`."""

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, config: LossConfig) -> Tensor:
        return batch_loss(self.model, batch, config)


@dataclass(frozen=True)
class DistributedContext:
    """Rank, world size and device of this process."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.sum(float(flag)) > 0

    def gather_rows(self, local_rows: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
        """All rows of an array from the rows r with r % world_size == rank of each process."""
        if self.world_size == 1:
            return local_rows
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, local_rows)
        rows = np.zeros((num_rows, *local_rows.shape[1:]), dtype=local_rows.dtype)
        for rank, part in enumerate(parts):
            rows[rank :: self.world_size] = part
        return rows

    def on_rank_zero(self, work: Callable[[], None]) -> None:
        """Call `work` in the process of rank 0 while the others wait. An exception is raised in all
        processes, so that none waits forever."""
        problem: list[Any] = [None]
        if self.is_rank_zero:
            try:
                work()
            except Exception as error:
                if self.world_size == 1:
                    raise
                problem = [error]
        if self.world_size > 1:
            dist.broadcast_object_list(problem)
            if problem[0] is not None:
                raise problem[0]

    def wrap(self, model: AnyModel, shard: bool) -> LossFunction:
        """The loss function of a model that all processes train; gradients are averaged."""
        module = LossModule(model)
        if self.world_size == 1:
            return cast(LossFunction, module)
        if shard:
            apply_fsdp(module, self.world_size, self.device)
            return cast(LossFunction, module)
        has_experts = any(isinstance(part, MixtureOfExperts) for part in model.modules())
        wrapped = DistributedDataParallel(module, find_unused_parameters=has_experts)
        return cast(LossFunction, wrapped)


def apply_fsdp(module: LossModule, world_size: int, device: torch.device) -> None:
    """FSDP2: shard the weights of each block; a block's weights are complete only while it runs."""
    mesh = init_device_mesh(device.type, (world_size,))
    stacks = [
        s for s in (getattr(module.model, side, None) for side in ("encoder", "decoder")) if s
    ]
    for stack in stacks:
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with all its shards gathered. Collective: every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A full tensor sharded as `like` is; scalars, and all tensors if `like` is not sharded, stay
    as they are."""
    if not isinstance(like, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def copy_full(target: Tensor, source: Tensor) -> None:
    """Copy a full tensor into one that may be sharded."""
    target.copy_(shard_like(source, target))


@contextmanager
def init_distributed(device: torch.device) -> Iterator[DistributedContext]:
    """Join the process group that torchrun started, or be the only process."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield DistributedContext(device=device)
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=30))
    try:
        yield DistributedContext(rank, world_size, device)
        gc.collect()  # DDP must release the process group before it is destroyed, or exit may hang
        dist.barrier()
    finally:
        dist.destroy_process_group()
