"""A Checkpoint, or the contents of a Hugging Face folder, -> a GGUF file.

Weights are transformed, quantized and written one at a time; the file gets its name only when it is
complete. What GGUF cannot express is found by reading the settings back before anything is written.
Quantizing and writing are the `gguf` library's, so this module is imported only to write.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType
from gguf.gguf_writer import GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.atomic import make_folder, new_file
from weft.checkpoint.disk_space import Report, check_space, no_report
from weft.checkpoint.families import gguf_family
from weft.checkpoint.families.gguf_metadata import GGUFArchitecture, GGUFMetadata, rope_rule
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.gguf.header import TENSOR_TYPES, TensorType, read_header
from weft.checkpoint.gguf.reader import TEMPLATE_KEY
from weft.checkpoint.gguf.vocabularies import write_tokenizer
from weft.checkpoint.huggingface import choose_family, generation_config_dict
from weft.checkpoint.tensor_source import split_state
from weft.checkpoint.weft_folder import Checkpoint
from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import DataError, UsageError
from weft.core.registry import pick
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FileType = Literal["f32", "f16", "q8_0"]
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
"""Values of general.file_type."""
TYPE_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
ALWAYS_F32 = (
    "position_embd.weight",
    "token_types.weight",
    "attn_rel_b.weight",
    "ffn_gate_inp.weight",
)
"""Suffixes of tables that llama.cpp adds unconverted, and of routers."""
NOT_COMPARED = (
    *("architectures", "model_type", "rope_theta", "rope_scaling"),
    *("add_pooling_layer", "tie_word_embeddings"),
)
"""Settings that are compared separately, or that do not change what a model computes."""
MAX_F16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    make: Callable[[], Tensor]
    """Computes the tensor in GGUF's row order."""


class HFTensors:
    """Hugging Face tensors, found with or without the prefixes of their family."""

    def __init__(self, tensors: Mapping[str, Tensor], prefixes: Sequence[str]) -> None:
        self.tensors, self.prefixes = tensors, prefixes
        self.used: set[str] = set()

    def find(self, name: str) -> str:
        """The name a tensor has here; a UsageError if it is missing."""
        others = [name.removeprefix(p) for p in self.prefixes] + [p + name for p in self.prefixes]
        present = next((n for n in (name, *others) if n in self.tensors), None)
        if present is None:
            raise UsageError(f"tensor {name} is missing. Pass all tensors of the model.")
        self.used.add(present)
        return present

    def unused(self, dropped: Sequence[str]) -> tuple[list[str], list[str]]:
        """Names that `find` never returned: those that match `dropped`, and the others."""
        names = [name for name in self.tensors if name not in self.used]
        known = [n for n in names if any(re.fullmatch(pattern, n) for pattern in dropped)]
        return known, [name for name in names if name not in set(known)]


def save_gguf(
    checkpoint: Checkpoint,
    out: Path,
    family: str | None,
    file_type: FileType,
    report: Report = no_report,
) -> str:
    """Write a checkpoint; returns the name of the family it was written as."""
    chosen, values = choose_family(checkpoint, family)
    tensors = split_state(checkpoint.model, chosen.rules(checkpoint.model.config))
    config = {**values, **generation_config_dict(checkpoint)}
    if checkpoint.model.config.kind == "encoder":
        # a key of families/bert.py
        config["pooling"] = checkpoint.generation_config.pooling
    tokenizer, template = checkpoint.tokenizer, checkpoint.chat_template
    write_gguf(out, config, tensors, tokenizer, template, file_type, report)
    return chosen.name


def write_gguf(
    path: str | Path,
    hf_config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    file_type: FileType = "f16",
    report: Report = no_report,
) -> Path:
    """Write a file atomically; a UsageError names what GGUF cannot express.

    `tensors`: under Hugging Face names, in its shapes. `file_type`: type of the matrices;
    everything else is F32.
    """
    path, hf = Path(path), HFConfig(hf_config, Path(path), tensors)
    file_type_number = pick(FILE_TYPES, file_type, "type of GGUF file")
    family, architecture = gguf_family(hf_config.get("model_type"))
    metadata = {
        "general.architecture": architecture.name,
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": file_type_number,
        **architecture.write_gguf(hf),
        **write_tokenizer(tokenizer, hf.size("vocab_size")),
        **second_end_id(hf, tokenizer),
        **({TEMPLATE_KEY: chat_template} if chat_template else {}),
    }
    plans = plan_tensors(architecture, hf, HFTensors(tensors, family.prefixes), file_type)
    check_round_trip(architecture, metadata, plans, hf)
    check_space(path, sum(map(plan_bytes, plans)), report)
    make_folder(path.parent)
    with new_file(path) as temporary:
        write_file(temporary, metadata, plans)
        read_header(temporary)
    return path


def second_end_id(hf: HFConfig, tokenizer: Tokenizer) -> dict[str, int]:
    """A second token that ends a text (a turn of a chat), if the settings have one."""
    ends = hf.get("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    others = [token_id for token_id in ends if token_id != tokenizer.end_id]
    return {"tokenizer.ggml.eot_token_id": others[0]} if others and len(ends) > 1 else {}


def check_round_trip(
    architecture: GGUFArchitecture,
    metadata: Mapping[str, Any],
    plans: Sequence[TensorPlan],
    hf: HFConfig,
) -> None:
    """A UsageError unless reading the metadata gives the settings back."""
    makers = {plan.name: plan.make for plan in plans}
    shapes = {plan.name: plan.shape for plan in plans}
    written = GGUFMetadata(metadata, shapes, lambda name: makers[name](), hf.path)
    try:
        restored = architecture.read_gguf(written)
    except DataError as error:
        raise UsageError(f"this model cannot be written as GGUF: {error}") from None
    wrong = lost_settings(hf.values, restored)
    if wrong:
        raise UsageError(
            f"a GGUF file of architecture {architecture.name} cannot express these settings: "
            f"{'; '.join(wrong[:3])}. Convert to hf instead."
        )


def lost_settings(values: Mapping[str, Any], restored: Mapping[str, Any]) -> list[str]:
    """Settings that come back with another value, described."""
    pairs = {key: (values.get(key), v) for key, v in restored.items() if key not in NOT_COMPARED}
    if "rope_theta" in restored and "full_attention" not in (values.get("rope_parameters") or {}):
        rule, restored_rule = rope_rule(values), rope_rule(restored)
        pairs |= {f"rope {key}": (rule.get(key), value) for key, value in restored_rule.items()}
    return [
        f"{key} would become {after!r} from {before!r}"
        for key, (before, after) in pairs.items()
        if before is not None and not is_close(before, after)
    ]


def is_close(one: Any, other: Any) -> bool:
    """Equal, to the precision of the numbers in a file."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def plan_tensors(
    architecture: GGUFArchitecture, hf: HFConfig, tensors: HFTensors, file_type: str
) -> list[TensorPlan]:
    """All tensors of a file in their order; a UsageError names what is missing or unexpected.
    Shapes are computed on meta tensors; no data is copied here."""
    plans = [
        TensorPlan(name, array.shape, TYPE_BY_NAME["F32"], partial(torch.from_numpy, array))
        for name, array in architecture.extra_tensors(hf).items()
    ]
    for rule in architecture.rules(hf.values):
        plans += plan_rule(rule, tensors, file_type)
    for stack, names in architecture.stacks(hf.values).items():
        plans.append(plan_stack(stack, names, tensors, file_type))
    dropped, unknown = tensors.unused(architecture.dropped)
    if unknown:
        raise UsageError(
            f"a GGUF file of architecture {architecture.name} has no tensor for {unknown[0]} (and "
            f"{len(unknown) - 1} more). Convert to hf instead."
        )
    if dropped:
        log.info("dropped=%s: GGUF does not store them", ",".join(dropped))
    return plans


def plan_rule(rule: WeightRule, tensors: HFTensors, file_type: str) -> Iterator[TensorPlan]:
    name = tensors.find(rule.target_name)
    shape = tensors.tensors[name].shape
    try:
        parts = rule.split(torch.empty(shape, device="meta"))
    except RuntimeError:
        raise UsageError(
            f"tensor {name} has shape {tuple(shape)}, which does not match the settings. Use the "
            "settings and tensors of one model."
        ) from None
    for index, (part, gguf_name) in enumerate(zip(parts, rule.file_names, strict=True)):
        part_shape = tuple(part.shape)
        make = partial(make_part, rule, tensors, name, index)
        yield TensorPlan(gguf_name, part_shape, type_of(gguf_name, part_shape, file_type), make)


def make_part(rule: WeightRule, tensors: HFTensors, name: str, index: int) -> Tensor:
    return rule.split(tensors.tensors[name])[index]


def plan_stack(stack: str, names: Sequence[str], tensors: HFTensors, file_type: str) -> TensorPlan:
    present = [tensors.find(name) for name in names]
    shape = (len(present), *tensors.tensors[present[0]].shape)
    make = partial(make_stack, tensors, present)
    return TensorPlan(stack, shape, type_of(stack, shape, file_type), make)


def make_stack(tensors: HFTensors, names: Sequence[str]) -> Tensor:
    return torch.stack([tensors.tensors[name] for name in names])


def type_of(name: str, shape: tuple[int, ...], file_type: str) -> TensorType:
    """F32 for vectors and ALWAYS_F32; F16 for rows that are not a multiple of the block length."""
    if len(shape) == 1 or name.endswith(ALWAYS_F32):
        return TYPE_BY_NAME["F32"]
    wanted = TYPE_BY_NAME[file_type.upper()]
    return TYPE_BY_NAME["F16"] if shape[-1] % wanted.block_len else wanted


def write_file(path: Path, metadata: Mapping[str, Any], plans: Sequence[TensorPlan]) -> None:
    """A complete GGUF file; each tensor is computed when it is written and freed afterwards."""
    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    try:
        writer.add_quantization_version(GGML_QUANT_VERSION)
        for key, value in metadata.items():
            if key != "general.architecture":
                add_value(writer, key, value)
        for plan in plans:
            add_info(writer, plan)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for plan in plans:
            writer.write_tensor_data(quantize_plan(plan).view(CheckedArray))
    finally:
        writer.close()


class CheckedArray(np.ndarray[Any, Any]):
    """An array whose `tofile` reports all errors: numpy's ignores those that occur when it flushes
    its buffer, and leaves a part of the array out."""

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        fid.write(np.ascontiguousarray(self).data)


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add a setting with the type that readers expect."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_info(writer: GGUFWriter, plan: TensorPlan) -> None:
    # the dtype is used only if no type is passed
    writer.add_tensor_info(
        plan.name,
        plan.shape,
        np.dtype(np.float32),
        plan_bytes(plan),
        GGMLQuantizationType(plan.type.number),
    )


def plan_bytes(plan: TensorPlan) -> int:
    """The size of a tensor in the file."""
    return math.prod(plan.shape) // plan.type.block_len * plan.type.block_bytes


def quantize_plan(plan: TensorPlan) -> NDArray[Any]:
    """A tensor's bytes; a UsageError for numbers that F16 cannot represent."""
    tensor = plan.make()
    largest = float(tensor.abs().max()) if plan.type.name == "F16" else 0.0
    if largest > MAX_F16:
        raise UsageError(
            f"tensor {plan.name} has a number of size {largest:g}, above the maximum of F16 "
            f"({MAX_F16:g}). Use f32."
        )
    return quantize_tensor(plan.type, tensor)


def quantize_tensor(kind: TensorType, tensor: Tensor) -> NDArray[Any]:
    """A tensor of any float type -> rows of numbers or of bytes."""
    numbers = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return quantize(numbers, GGMLQuantizationType(kind.number))
