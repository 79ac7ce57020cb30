"""Training speed: the same batches through Weft and its peers, alternately -> target tokens/s.

    weft     batch_loss, as `weft train` calls it
    marian   transformers' MarianMTModel, where transformers is installed
    torch    torch.nn.Transformer with embeddings and a tied output, as one would write it by hand

All have the size of recipes/tiny.toml, dropout, label smoothing, gradient clipping and torch's
fused AdamW; a step is batch -> loss -> gradients -> updated weights. Each runs in a process of its
own.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.busy import NEIGHBORS, busy_ratios, busy_rows, measure_seconds
from weft.bench.comparison import Goal, check_goals
from weft.bench.measure import machine, measure_alternately
from weft.core.registry import pick
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.native.contention import contention
from weft.text.batching import batches
from weft.text.packing import IGNORE
from weft.training.loss import LossConfig
from weft.training.objective import Batch, batch_loss
from weft.training.optimizer import OptimizerConfig, build_optimizers

WIDTH, FEEDFORWARD, HEADS, LAYERS, DROPOUT, SMOOTHING = 128, 256, 4, 4, 0.3, 0.1
BUSY_GOALS = (
    Goal("busy: weft, N = 1/fair share", 0.7),
    *(Goal(f"busy: weft, N = {count}/fair share", 0.6) for count in NEIGHBORS[1:]),
)
Step = Callable[[Batch], None]


@dataclass(frozen=True)
class TrainingWorkload:
    """Sentences of Multi30k's lengths with random tokens."""

    vocab_size: int = 9700
    batch_tokens: int = 4096
    num_batches: int = 6
    seed: int = 0

    def batches(self) -> list[Batch]:
        """A few batches, formed as by `weft train`."""
        rng = np.random.default_rng(self.seed)
        target = np.clip(rng.lognormal(math.log(14), 0.33, 6000).round(), 4, 60).astype(int)
        source = np.clip((target * rng.normal(0.95, 0.12, 6000)).round(), 4, 60).astype(int)
        lengths = np.stack((source, target), axis=1)
        rows_of_batches = batches(lengths, self.batch_tokens, self.seed)[: self.num_batches]
        return [self.make_batch(lengths[rows], rng) for rows in rows_of_batches]

    def make_batch(self, lengths: Any, rng: np.random.Generator) -> Batch:
        source_lengths_B, lengths_B = (torch.from_numpy(lengths[:, side]) for side in (0, 1))
        source_BS = self.words(len(lengths), int(source_lengths_B.max()), rng)
        ids_BT = self.words(len(lengths), int(lengths_B.max()), rng)
        targets_BT = ids_BT.roll(-1, 1)
        is_padding_BT = torch.arange(ids_BT.shape[1]) >= lengths_B[:, None]
        targets_BT[is_padding_BT] = IGNORE
        return Batch(ids_BT, lengths_B, targets_BT, source_BS, source_lengths_B)

    def words(self, rows: int, length: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(1, self.vocab_size, (rows, length)))


def num_target_tokens(batch: Batch) -> int:
    return int((batch.targets_BT != IGNORE).sum())


def make_step(model: nn.Module, loss_of: Callable[[Batch], Tensor]) -> Step:
    """A training step of any system: its loss, and the same optimizer for all."""
    optimizers = build_optimizers(model, OptimizerConfig(lr=1e-3))
    model.train()

    def step(batch: Batch) -> None:
        loss_of(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def weft_step(workload: TrainingWorkload) -> Step:
    config = ModelConfig(
        vocab_size=workload.vocab_size,
        width=WIDTH,
        num_layers=LAYERS,
        max_len=256,
        dropout=DROPOUT,
        attention={"num_heads": HEADS, "bias": True},
        feedforward={"kind": "relu", "width": FEEDFORWARD},
        norm={"placement": "after"},
        embedding={"tied": "all", "scale": True},
    )
    model = build_model(config)
    loss_config = LossConfig(SMOOTHING)
    compute = make_step(
        model, lambda batch: batch_loss(model, batch, loss_config) / num_target_tokens(batch)
    )

    def step(batch: Batch) -> None:
        compute(batch)
        contention().update()  # as `weft train` does

    return step


def marian_step(workload: TrainingWorkload) -> Step:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=workload.vocab_size,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FEEDFORWARD,
        decoder_ffn_dim=FEEDFORWARD,
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=256,
        scale_embedding=True,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    model = MarianMTModel(config)

    def loss(batch: Batch) -> Tensor:
        assert batch.source_BS is not None and batch.source_lengths_B is not None
        is_real_BS = torch.arange(batch.source_BS.shape[1]) < batch.source_lengths_B[:, None]
        logits_BTV = model(
            input_ids=batch.source_BS,
            attention_mask=is_real_BS.long(),
            decoder_input_ids=batch.ids_BT,
            use_cache=False,
        ).logits
        return smoothed_loss(logits_BTV, batch.targets_BT)

    return make_step(model, loss)


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoidal positions and a tied output."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, WIDTH)
        self.layers = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, FEEDFORWARD, DROPOUT, batch_first=True
        )
        self.dropout = nn.Dropout(DROPOUT)
        self.register_buffer("sinusoids_SD", sinusoids(256), persistent=False)

    def embed(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.words(ids_BT) * math.sqrt(WIDTH)
        return self.dropout(x_BTD + self.get_buffer("sinusoids_SD")[: ids_BT.shape[1]])

    def forward(self, batch: Batch) -> Tensor:
        assert batch.source_BS is not None and batch.source_lengths_B is not None
        is_pad_BS = torch.arange(batch.source_BS.shape[1]) >= batch.source_lengths_B[:, None]
        T = batch.ids_BT.shape[1]
        x_BTD = self.layers(
            self.embed(batch.source_BS),
            self.embed(batch.ids_BT),
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            src_key_padding_mask=is_pad_BS,
            memory_key_padding_mask=is_pad_BS,
            tgt_is_causal=True,
        )
        return F.linear(x_BTD, self.words.weight)


def torch_step(workload: TrainingWorkload) -> Step:
    model = TorchTransformer(workload.vocab_size)
    return make_step(model, lambda batch: smoothed_loss(model(batch), batch.targets_BT))


def sinusoids(length: int) -> Tensor:
    """Sinusoidal positions (Vaswani 2017)."""
    inv_freq = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
    angles = torch.arange(length)[:, None] * inv_freq
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def smoothed_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return F.cross_entropy(
        logits_BTV.flatten(0, 1),
        targets_BT.flatten(),
        ignore_index=IGNORE,
        label_smoothing=SMOOTHING,
    )


SYSTEMS: dict[str, Callable[[TrainingWorkload], Step]] = {
    "weft": weft_step,
    "marian": marian_step,
    "torch": torch_step,
}


def installed() -> list[str]:
    """Systems that can be measured on this machine."""
    return [name for name in SYSTEMS if name != "marian" or find_spec("transformers")]


def serve(pipe: Connection, name: str, workload: TrainingWorkload, threads: int) -> None:
    """Run a system in this process: one round for every message, answered with its seconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(workload.seed)
    step, work = pick(SYSTEMS, name, "system")(workload), workload.batches()
    step(work[0])  # a warm-up, not counted
    pipe.send(sum(num_target_tokens(batch) for batch in work))
    while pipe.recv():
        begin = time.perf_counter()
        for batch in work:
            step(batch)
        pipe.send(time.perf_counter() - begin)


class TrainingProcess:
    """The parent's end of `serve`."""

    def __init__(self, name: str, workload: TrainingWorkload, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        arguments = (end, name, workload, threads)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        end.close()
        self.tokens: int = self.pipe.recv()

    def round(self) -> float:
        self.pipe.send(True)
        return float(self.pipe.recv())

    def close(self) -> None:
        self.pipe.send(False)
        self.process.join()


@contextmanager
def training_processes(
    names: Sequence[str], workload: TrainingWorkload, threads: int
) -> Iterator[dict[str, TrainingProcess]]:
    """A process for each system, until the block ends."""
    for name in names:
        pick(SYSTEMS, name, "system")
    with ExitStack() as stack:
        processes = {}
        for name in names:
            processes[name] = TrainingProcess(name, workload, threads)
            stack.callback(processes[name].close)
        yield processes


def measure(
    names: Sequence[str],
    workload: TrainingWorkload,
    repeats: int,
    threads: int,
    step: Callable[[int], None] = lambda amount: None,
) -> dict[str, Any]:
    """{"rows": [{"system", "tokens_per_second"}], "ratios": {...}, "machine": {...}}."""
    with training_processes(names, workload, threads) as processes:
        medians = measure_alternately(names, lambda name: [processes[name].round()], repeats, step)
        tokens = processes[names[0]].tokens
    speeds = {name: tokens / seconds[0] for name, seconds in zip(names, medians, strict=True)}
    rows = [{"system": name, "tokens_per_second": speed} for name, speed in speeds.items()]
    ratios = {f"weft/{n}": speeds["weft"] / s for n, s in speeds.items() if n != "weft"}
    settings = {**vars(workload), "repeats": repeats, "tokens": tokens, "threads": threads}
    return {"rows": rows, "ratios": ratios, "machine": machine(), "settings": settings}


def measure_busy(
    names: Sequence[str],
    workload: TrainingWorkload,
    repeats: int,
    threads: int,
    step: Callable[[int], None] = lambda amount: None,
    neighbors: Sequence[int] = NEIGHBORS,
) -> dict[str, Any]:
    """The same beside other processes that use the CPUs, see busy.py."""
    with training_processes(names, workload, threads) as processes:
        tokens = processes[names[0]].tokens
        runs = {name: process.round for name, process in processes.items()}
        seconds = measure_seconds(runs, repeats, neighbors, step)
    rows = busy_rows(seconds, tokens, threads)
    settings = {**vars(workload), "repeats": repeats, "tokens": tokens, "threads": threads}
    ratios = busy_ratios(rows)
    goals = check_goals(BUSY_GOALS, ratios)
    return {
        "rows": rows,
        "ratios": ratios,
        "goals": goals,
        "machine": machine(),
        "settings": settings,
    }
