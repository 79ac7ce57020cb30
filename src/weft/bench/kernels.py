"""python -m weft.bench.kernels: speed of the compiled kernels on this machine, beside torch.

Three tables: matrix products at SmolLM2-135M's shapes, all matrices of one of its tokens, and paged
attention. What is compared runs alternately, and the median is reported. On a busy machine,
`--threads 1 --busy` measures the processor time of this thread, and the minimum of the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.kv_spec import PagedView, PageLayout
from weft.core.quantized import BITS, GROUP, Kind
from weft.native.attention_kernels import PagedAttentionParams
from weft.native.kernels import linear
from weft.native.library import native
from weft.native.packed import PackedMatrix
from weft.nn.attention.paged_attention import paged_attention

LAYER = ((576, 960), (576, 576), (576, 3072), (1536, 576))
"""Inputs and outputs of a layer's matrices: fused q, k, v; out; fused gate, up; down."""
HEAD = (576, 49152)
NUM_LAYERS = 30
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)


@dataclass(frozen=True)
class Clock:
    """How seconds are measured."""

    repeats: int
    is_busy: bool

    def seconds(self, tasks: Sequence[Callable[[], object]], longest: float = 1.0) -> list[float]:
        """Seconds of each task, run alternately; fewer repeats if a round takes long."""
        now = time.thread_time if self.is_busy else time.perf_counter
        rounds: list[list[float]] = [[] for _ in tasks]
        begin = time.perf_counter()
        for number in range(self.repeats + 1):
            for times, task in zip(rounds, tasks, strict=True):
                start = now()
                task()
                times.append(now() - start)
            if number > 2 and time.perf_counter() - begin > longest:
                break
        # the first round is a warm-up
        return [(min if self.is_busy else statistics.median)(times[1:]) for times in rounds]


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def random_weight(kind: Kind, inputs: int, outputs: int) -> PackedMatrix:
    """A packed matrix of random numbers."""
    library = native()
    assert library is not None, "there is no library to measure"
    width = library.panel_width
    num = -(-outputs // width)
    if kind == "f32":
        return PackedMatrix(kind, outputs, inputs, torch.randn(num, inputs, width))
    words = torch.randint(-(2**31), 2**31, (num, inputs * BITS[kind] // 32, width)).int()
    scales = torch.randn(num, inputs // GROUP, width).half()
    return PackedMatrix(kind, outputs, inputs, words, scales, scales if kind == "q4" else None)


def bench_products(clock: Clock, rows: Sequence[int]) -> None:
    print_line("q8r, q4r: int8 activations")
    names = ("torch", *BITS, "q8r", "q4r")
    columns = (*(f"{name} ms" for name in names), *names)
    print_line("inputs outputs rows " + " ".join(f"{c:>8}" for c in columns) + " GFLOP/s")
    for inputs, outputs in (*LAYER, HEAD):
        weight_OI = torch.randn(outputs, inputs)
        packed = [random_weight(kind, inputs, outputs) for kind in BITS]
        packed += [replace(one, int8_activations=True) for one in packed[1:]]
        for num in rows:
            x = torch.randn(num, inputs)
            tasks = [partial(F.linear, x, weight_OI), *(partial(linear, x, p) for p in packed)]
            seconds = clock.seconds(tasks)
            times = " ".join(f"{t * 1e3:8.3f}" for t in seconds)
            rates = " ".join(f"{2e-9 * num * inputs * outputs / t:8.1f}" for t in seconds)
            print_line(f"{inputs:6} {outputs:7} {num:4} {times} {rates}")


def bench_token(clock: Clock) -> None:
    print_line(f"\none token: {NUM_LAYERS} x {LAYER} and {HEAD}, each weight read once")
    each = [("f32", "f32", False), ("q8", "q8", False), ("q4", "q8", False)]
    for body, head, int8_activations in [*each, ("q8", "q8", True), ("q4", "q8", True)]:
        shapes = [(body, *shape) for shape in LAYER * NUM_LAYERS] + [(head, *HEAD)]
        weights = [random_weight(kind, *shape) for kind, *shape in shapes]  # type: ignore[arg-type]
        weights = [replace(weight, int8_activations=int8_activations) for weight in weights]
        inputs = {size: torch.randn(1, size) for size in (576, 1536)}

        def token(weights: list[PackedMatrix] = weights, x: dict[int, Tensor] = inputs) -> None:
            for weight in weights:
                linear(x[weight.inputs], weight)

        (seconds,) = clock.seconds([token], longest=3.0)
        num_bytes = sum(weight.num_bytes for weight in weights)
        speed = num_bytes / seconds / 1e9
        size = f"{num_bytes / 2**20:4.0f} MB"
        name = f"layers {body}, head {head}{', int8 activations' if int8_activations else ''}:"
        print_line(f"  {name:34} {seconds * 1e3:7.2f} ms  {size}  {speed:5.1f} GB/s")


def paged_case(
    num: int, length: int, new: int, is_shared: bool, K: int = 3, C: int = 64, U: int = 64
) -> PagedView:
    """`num` sequences of `length` keys in pages of 16, of which `new` are queries."""
    R, count = 16, -(-length // 16)
    pages = torch.randperm(num * count).view(num, count) + 1
    table_BP = (pages[:1].expand(num, count) if is_shared else pages).int().contiguous()
    k_PRKC = torch.randn(num * count + 1, R, K, C)
    v_PRKU = k_PRKC[..., :U] if U != C else torch.randn(num * count + 1, R, K, U)
    each = torch.full((num,), length, dtype=torch.int32)
    offsets = torch.arange(num + 1, dtype=torch.int32) * new
    return PagedView(k_PRKC, v_PRKU, PageLayout(offsets, each - new, each, table_BP))


def bench_attention(clock: Clock) -> None:
    print_line(
        "\npaged attention                                                  ms  GFLOP/s   GB/s"
    )
    for name, H, view in (
        ("1 x 1,024 keys, 9 heads over 3 of 64", 9, paged_case(1, 1024, 1, False)),
        ("16 x 1,024 keys, each its own", 9, paged_case(16, 1024, 1, False)),
        ("16 x 1,024 keys, all shared", 9, paged_case(16, 1024, 1, True)),
        ("a prompt of 1,024", 9, paged_case(1, 1024, 1024, False)),
        ("4 x 1,024 latent keys of 576, 16 heads", 16, paged_case(4, 1024, 1, False, 1, 576, 512)),
    ):
        (_, _, K, C), U = view.k_PRKC.shape, view.v_PRKU.shape[3]
        layout = view.layout
        new = int(layout.lengths_B[0] - layout.starts_B[0])
        q_NHC = torch.randn(int(layout.offsets[-1]), H, C)
        (seconds,) = clock.seconds(
            [partial(paged_attention, q_NHC, view, PagedAttentionParams(C**-0.5))]
        )
        seen = len(q_NHC) * (int(layout.lengths_B[0]) - (new - 1) / 2)
        flops = 2e-9 * seen * H * (C + U) / seconds
        read = int(layout.lengths_B.sum()) * K * (C + (U if U == C else 0)) * 4e-9 / seconds
        print_line(f"{name:60} {seconds * 1e3:9.3f} {flops:8.1f} {read:6.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m weft.bench.kernels", description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--busy", action="store_true", help="measure the processor time of this thread"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--only", choices=("products", "token", "attention"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = Clock(options.repeats, options.busy)
    with torch.inference_mode():
        if options.only in (None, "products"):
            bench_products(clock, options.rows)
        if options.only in (None, "token"):
            bench_token(clock)
        if options.only in (None, "attention"):
            bench_attention(clock)


if __name__ == "__main__":
    main()
