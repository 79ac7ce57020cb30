"""GGUF files -> a Checkpoint: a file is read as if it were a Hugging Face folder.

`open_gguf` reads only the header: the values of a config.json, tensors under Hugging Face names,
and the metadata of the tokenizer. The family of its architecture does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.hf_names import read_config, tokenizer_metadata
from weft.checkpoint.gguf.tensors import GGUFAsHFSource, GGUFSource
from weft.checkpoint.gguf.vocabularies import read_tokenizer
from weft.checkpoint.huggingface import TASKS, HFCheckpoint, build_hf, open_hf
from weft.checkpoint.weft_folder import Checkpoint
from weft.models.build import AnyModel
from weft.text.tokenizer import Tokenizer

TEMPLATE_KEY = "tokenizer.chat_template"


class GGUFFile(NamedTuple):
    """An open GGUF file."""

    config: dict[str, Any]
    """As a config.json: model_type, sizes, and the ids of BOS, EOS and PAD."""
    source: GGUFAsHFSource
    """Weights under Hugging Face names, in its row order."""
    tokenizer: Mapping[str, Any]
    """Metadata of the tokenizer and the chat template, for vocabularies.read_tokenizer."""


def open_gguf(path: str | Path) -> GGUFFile:
    """Settings, weights and tokenizer of a file; a DataError says why it cannot be used."""
    header = read_header(path)
    config, names = read_config(header)
    return GGUFFile(config, GGUFAsHFSource(GGUFSource(header), names), tokenizer_metadata(header))


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a file; quantized matrices stay quantized where `dtype` is float32."""
    file = open_gguf(path)
    opened = open_hf(file.config, file.config, path, file.source)
    template = file.tokenizer.get(TEMPLATE_KEY)
    return Checkpoint(
        tokenizer=read_tokenizer(file.tokenizer, path),
        model=build_on_one_thread(opened, device, dtype),
        task=TASKS[opened.config.kind],
        generation_config=opened.generation_config,
        chat_template=template if isinstance(template, str) else None,
        family=opened.family.name,
    )


def build_on_one_thread(opened: HFCheckpoint, device: torch.device, dtype: torch.dtype) -> AnyModel:
    """The model, with blocks dequantized by the source's threads: torch's would wait for each other
    after every tensor that is joined here, and use twice the processor time."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return build_hf(opened, device, dtype)
    finally:
        # new threads start with the setting of the thread that called last
        torch.set_num_threads(count)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file of any architecture."""
    return read_tokenizer(tokenizer_metadata(read_header(path)), path)
