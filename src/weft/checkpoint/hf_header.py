"""Headers of a Hugging Face checkpoint -> family, settings and tensor names, without torch.

config.json and the names and shapes of the tensors -> HFHeader. GGUF files and fairseq folders are
read as if they had a config.json (gguf/hf_names.py, fairseq_header.py). The weights themselves are
read by huggingface.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.checkpoint.families import family_of
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.folder_files import CONFIG_FILE
from weft.checkpoint.pickle_header import BIN_FILE, BIN_INDEX, read_pickle_shapes
from weft.checkpoint.safetensors_header import INDEX_FILE, WEIGHTS_FILE, open_safetensors_header
from weft.checkpoint.sentence_transformers import read_pooling_files
from weft.checkpoint.weight_rules import Shape, WeightRule, check_tensor_names, names_in_file
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.config import ModelConfig


@dataclass(frozen=True)
class HFHeader:
    """What config.json and the names of the tensors say."""

    family: Family
    config: ModelConfig
    file_names: Mapping[str, str]
    """{name that the family's rules have: name in the files}"""
    generation_config: GenerationConfig


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    """Family and settings of a folder."""
    header = read_folder_header(path, *read_shapes(path))
    return header.family.name, header.config


def read_shapes(path: Path) -> tuple[Mapping[str, Shape], Path]:
    """Shapes of the tensors of a folder by name, and the file to name in messages."""
    header = open_safetensors_header(path)
    if header is not None:
        return header.shapes, header.path
    if (sizes := read_pickle_shapes(path)) is not None:
        return sizes
    from weft.checkpoint.pickle_files import open_pickles  # imports torch

    source = open_pickles(path)
    if source is None:
        raise missing_weights(path)
    return source.shapes, source.path


def read_folder_header(path: Path, shapes: Mapping[str, Shape], weights_path: Path) -> HFHeader:
    """The header of a folder whose weights have these shapes."""
    values = read_settings(path / CONFIG_FILE)
    file = path / "generation_config.json"
    generation_values = {**values, **(read_settings(file) if file.is_file() else {})}
    header = read_hf_header(values, generation_values, path / CONFIG_FILE, shapes, weights_path)
    generation_config = read_pooling_files(path, header.generation_config)
    return replace(header, generation_config=generation_config)


def read_hf_header(
    values: Mapping[str, Any],
    generation_values: Mapping[str, Any],
    path: Path,
    shapes: Mapping[str, Shape],
    weights_path: Path,
) -> HFHeader:
    """The header of a config.json and of tensors under Hugging Face names. `generation_values`:
    config.json overridden by generation_config.json. The paths are for messages."""
    family = family_of(values.get("model_type"), path)
    if values.get("quantization_config"):
        raise DataError(
            "has a quantization_config: Weft does not read its packed weights. Use the weights "
            "without quantization, or a GGUF file of the model.",
            path,
        )
    config = family.read_hf(HFConfig(values, path, shapes))
    generation_config = family.read_generation(HFConfig(generation_values, path))
    check_ids(generation_config, config.vocab_size, path)
    rules = family.rules(config)
    file_names = current_names(family, rules, shapes)
    check_tensor_names(rules, file_names, family.ignored, weights_path)
    return HFHeader(family, config, file_names, generation_config)


def check_ids(generation_config: GenerationConfig, vocab_size: int, path: Path) -> None:
    """A DataError for ids outside the vocabulary, with which nothing could be generated. An end
    token that is never generated is logged when the model is used."""
    ids_by_key: dict[str, list[int | None]] = {
        "decoder_start_token_id": [generation_config.start],
        "forced_bos_token_id": [generation_config.first],
        "bad_words_ids": [*generation_config.banned],
    }
    for key, ids in ids_by_key.items():
        for token_id in ids:
            if token_id is not None and token_id >= vocab_size:
                raise DataError(
                    f"{key} is {token_id}, but the model has {vocab_size} tokens, 0 to "
                    f"{vocab_size - 1}. Correct it in config.json or generation_config.json.",
                    path,
                )


def missing_weights(path: Path) -> DataError:
    """What a folder lacks: the index of its shards, or all weights."""
    problem = f"has no weights: neither {WEIGHTS_FILE} nor {BIN_FILE}"
    for kind, index in ((".safetensors", INDEX_FILE), (".bin", BIN_INDEX)):
        shards = sorted(file.name for file in path.glob(f"*-of-*{kind}"))
        if shards:
            problem = f"has {shards[0]}, one of several files of weights, but no {index}"
            break
    return DataError(f"{problem}. Copy the whole model folder.", path)


def current_names(
    family: Family, rules: Iterable[WeightRule], names_in_weights: Collection[str]
) -> dict[str, str]:
    """{name that the family's rules have: name in the files}: legacy suffixes replaced, and a
    prefix that some files lack or have in addition added or removed."""
    expected = names_in_file(rules)
    names = {current_name(name, family, names_in_weights): name for name in names_in_weights}
    best = names
    for prefix in family.prefixes:
        for renamed in (
            {prefix + new: old for new, old in names.items()},
            {new.removeprefix(prefix): old for new, old in names.items()},
        ):
            if len(expected & renamed.keys()) > len(expected & best.keys()):
                best = renamed
    return best


def current_name(name: str, family: Family, names_in_weights: Collection[str]) -> str:
    """A name with its legacy suffix replaced, unless the file has a tensor of that name too."""
    for suffix, new_suffix in family.legacy_suffixes.items():
        new = name.removesuffix(suffix) + new_suffix
        if name.endswith(suffix) and new not in names_in_weights:
            return new
    return name
