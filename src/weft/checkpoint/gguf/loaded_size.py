"""The memory that the weights of a GGUF file take when they are loaded, from its header alone.

Weights of Q8_0, Q4_0 and Q4_1 stay quantized where the compiled kernels support it. All others are
converted to float32: Q4_K takes seven times its size in the file, F16 twice.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from weft.checkpoint.gguf.header import GGUFHeader, read_header
from weft.checkpoint.gguf.hf_names import VOCABULARY, HFTensorNames, read_config
from weft.checkpoint.hf_header import read_hf_header
from weft.checkpoint.weight_rules import WeightRule
from weft.models.config import ModelConfig
from weft.models.weight_shapes import weight_shapes

GROUP = 32
"""As in core/quantized.py, which imports torch: `weft info` does not."""
GROUP_BYTES = {"Q8_0": 34, "Q4_0": 20, "Q4_1": 20}
"""Of 32 numbers of the types that stay quantized: words, scale, and minimum (also of Q4_0)."""
BITS = {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4}


def loaded_size(path: Path, item_bytes: int, can_pack: bool) -> tuple[int, ModelConfig]:
    """Bytes of the weights in memory, and the settings of the model. `item_bytes`: of a float;
    `can_pack`: whether quantized matrices stay quantized."""
    header = read_header(path, skipped=VOCABULARY)
    values, names = read_config(header)
    described = read_hf_header(values, values, path, names.shapes, path)
    shapes = weight_shapes(described.config)
    size = 0
    for rule in described.family.rules(described.config):
        numbers = prod(shapes.get(rule.target_name, ()))
        parts = [described.file_names[name] for name in rule.file_names]
        kind = packed_type(rule, parts, header, names) if can_pack else None
        size += numbers * item_bytes if kind is None else numbers // GROUP * GROUP_BYTES[kind]
    return size, described.config


def packed_type(
    rule: WeightRule, parts: list[str], header: GGUFHeader, names: HFTensorNames
) -> str | None:
    """The type of the quantized matrices that form a weight; None if it becomes floats."""
    kinds: set[str] = set()
    for part in parts:
        inner = names.rules.get(part)
        stack = names.parts.get(part)
        tensors = (stack[0],) if stack else inner.file_names if inner else (part,)
        is_moved = inner is not None and not inner.permutes_rows
        infos = [header.tensors[name] for name in tensors]
        if is_moved or any(len(info.shape) != (3 if stack else 2) for info in infos):
            return None
        kinds |= {info.type.name for info in infos}
    is_packed = rule.permutes_rows and len({BITS.get(kind) for kind in kinds}) == 1
    return next(kind for kind in kinds) if is_packed and kinds <= BITS.keys() else None
