"""Header of a GGUF file -> values of a config.json, and the rules that map its tensors to Hugging
Face tensors. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.checkpoint.families import gguf_architecture
from weft.checkpoint.families.gguf_metadata import GGUFMetadata
from weft.checkpoint.gguf.header import GGUFHeader, read_header
from weft.checkpoint.gguf.special_ids import read_special_ids
from weft.checkpoint.hf_header import read_hf_header
from weft.checkpoint.weight_rules import Shape, WeightRule
from weft.core.errors import DataError
from weft.models.config import ModelConfig

VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
"""Up to 750,000 strings, of which the settings need the ids of a few."""
SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys of GGUF's general.sampling, and their names in a generation_config.json."""


class HFTensorNames:
    """Hugging Face names and shapes of the tensors of a file. A tensor without a rule keeps its
    name, so that it is reported as unexpected when a model is described or filled."""

    def __init__(
        self,
        header: GGUFHeader,
        rules: Sequence[WeightRule],
        stacks: Mapping[str, Sequence[str]] | None = None,
        metadata_tensors: Sequence[str] = (),
    ) -> None:
        self.path = header.path
        self.file_shapes = {name: info.shape for name, info in header.tensors.items()}
        complete = [r for r in rules if all(name in self.file_shapes for name in r.file_names)]
        self.rules = {rule.target_name: rule for rule in complete}
        self.parts = {
            name: (stack, index)
            for stack, names in (stacks or {}).items()
            for index, name in enumerate(names)
            if index < self.file_shapes.get(stack, (0,))[0]
        }
        """Tensors that are an index of the first dimension of another."""
        used = {name for rule in complete for name in rule.file_names}
        used |= {*(stacks or ()), *metadata_tensors}
        self.shapes: Mapping[str, Shape] = {
            **{name: self.shape_of(rule) for name, rule in self.rules.items()},
            **{name: self.file_shapes[stack][1:] for name, (stack, _) in self.parts.items()},
            **{name: shape for name, shape in self.file_shapes.items() if name not in used},
        }

    def shape_of(self, rule: WeightRule) -> Shape:
        """Shape of the target; a DataError if it cannot be formed."""
        assert rule.shape is not None, f"{rule.target_name}: a rule for GGUF needs a shape"
        shapes = [self.file_shapes[name] for name in rule.file_names]
        try:
            return rule.shape(shapes)
        except ValueError:
            pairs = zip(rule.file_names, shapes, strict=True)
            text = ", ".join(f"{name} {shape}" for name, shape in pairs)
            raise DataError(
                f"{text} does not match its metadata (heads or sizes). Use another file.",
                self.path,
            ) from None


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    """Family and settings of a file."""
    config, names = read_config(read_header(path, skipped=VOCABULARY))
    header = read_hf_header(config, config, path, names.shapes, path)
    return header.family.name, header.config


def read_config(header: GGUFHeader) -> tuple[dict[str, Any], HFTensorNames]:
    """The values of a config.json, with the ids of BOS, EOS and PAD, and the tensors."""
    architecture = gguf_architecture(header.metadata.get("general.architecture"), header.path)
    shapes = {name: info.shape for name, info in header.tensors.items()}
    metadata = GGUFMetadata(
        header.metadata, shapes, lambda name: read_array(header, name), header.path
    )
    config = architecture.read_gguf(metadata)
    rules = [*architecture.legacy_rules(config), *architecture.rules(config)]
    stacks = architecture.stacks(config)
    names = HFTensorNames(header, rules, stacks, architecture.metadata_tensors)
    ids = read_special_ids(tokenizer_metadata(header))
    return {**config, **ids, **read_sampling(header.metadata)}, names


def read_sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Default sampling parameters under the names of a generation_config.json."""
    return {
        name: metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING_KEYS.items()
        if f"general.sampling.{key}" in metadata
    }


def tokenizer_metadata(header: GGUFHeader) -> dict[str, Any]:
    return {key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")}


def read_array(header: GGUFHeader, name: str) -> Any:
    """The numbers of a tensor that is a setting, which llama.cpp stores as float32."""
    info = header.tensors[name]
    if info.type.name != "F32":
        from weft.checkpoint.gguf.tensors import GGUFSource  # torch dequantizes other types

        return GGUFSource(header).read(name).numpy()
    with header.path.open("rb") as file:
        file.seek(info.start)
        data = file.read(info.num_bytes)
    if len(data) < info.num_bytes:
        raise DataError(f"ends inside tensor {name}. Copy the file again.", header.path)
    return np.frombuffer(data, "<f4").reshape(info.shape)
