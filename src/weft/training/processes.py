"""Many processes as one run: sums over all, and a model copied (DDP) or split (FSDP2) among them.

Started by torchrun, which sets RANK, WORLD_SIZE and LOCAL_RANK; without it there is one process and
every function here does nothing. Each process computes the summed loss of its own rows divided by
the tokens of all, so that adding up gradients gives exactly those of one process. DDP and FSDP give
the mean instead, so the loop multiplies the loss by their number before it goes back.
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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from weft.models.build import Model
from weft.nn.experts import Experts
from weft.training.data.base import Batch
from weft.training.loss import LossRule
from weft.training.objective import batch_loss

LossOf = Callable[[Batch, LossRule], Tensor]


class LossModule(nn.Module):
    """A model whose forward is its loss: what DDP and FSDP wrap, as both work in `forward`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, rule: LossRule) -> Tensor:
        return batch_loss(self.model, batch, rule)


@dataclass(frozen=True)
class Processes:
    """All processes of a run, seen from one of them."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and talks."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.world == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item()

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        return self.sum(float(flag)) > 0

    def merge_rows(self, own: np.ndarray[Any, Any], num_rows: int) -> np.ndarray[Any, Any]:
        """Values that each process has for its own rows -> the values of all rows, everywhere."""
        if self.world == 1:
            return own
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, own)
        whole = np.zeros((num_rows, *own.shape[1:]), dtype=own.dtype)
        for rank, part in enumerate(parts):
            whole[rank :: self.world] = part
        return whole

    def wait(self) -> None:
        """Go on when all processes are here."""
        if self.world > 1:
            dist.barrier()

    def first_does(self, work: Callable[[], None]) -> None:
        """The first process works; if it fails, all fail, so that none waits for ever."""
        problem: list[Any] = [None]
        if self.is_first:
            try:
                work()
            except Exception as error:
                if self.world == 1:
                    raise
                problem = [error]
        if self.world > 1:
            dist.broadcast_object_list(problem)
            if problem[0] is not None:
                raise problem[0]

    def spread(self, model: Model, is_split: bool) -> LossOf:
        """The loss of the model in all processes; its gradients come out as their mean."""
        module = LossModule(model)
        if self.world == 1:
            return cast(LossOf, module)
        if is_split:
            split(module, self.world, self.device)
            return cast(LossOf, module)
        has_experts = any(isinstance(part, Experts) for part in model.modules())
        wrapped = DistributedDataParallel(module, find_unused_parameters=has_experts)
        return cast(LossOf, wrapped)


def split(module: LossModule, world: int, device: torch.device) -> None:
    """FSDP2: a layer's weights lie in parts on all processes, and are whole only while it runs."""
    mesh = init_device_mesh(device.type, (world,))
    stacks = [
        s for s in (getattr(module.model, side, None) for side in ("encoder", "decoder")) if s
    ]
    for stack in stacks:
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may lie in parts, put together. Every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def split_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor in parts as `like` is; one number, and what is not in parts, stays whole."""
    if not isinstance(like, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def copy_whole(target: Tensor, source: Tensor) -> None:
    """Fill a tensor that may lie in parts from a whole one."""
    target.copy_(split_like(source, target))


@contextmanager
def join(device: torch.device) -> Iterator[Processes]:
    """Join the run that torchrun started, or be the only process."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(device=device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=30))
    try:
        yield Processes(rank, world, device)
        gc.collect()  # DDP must let go of the group before it goes, or leaving may hang
        dist.barrier()
    finally:
        dist.destroy_process_group()
