"""`open_gguf`: a GGUF file -> what a folder of Hugging Face's would have held.

Only the header is read here; tensors are read when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.checkpoint.gguf.dialect import architecture_named
from weft.checkpoint.gguf.dialect.base import GGUFMetadata
from weft.checkpoint.gguf.ends import role_ids
from weft.checkpoint.gguf.header import GGUFHeader, read_header
from weft.checkpoint.gguf.source import GGUFAsHFSource
from weft.checkpoint.gguf.tensors import GGUFSource


class GGUFFile(NamedTuple):
    """An open GGUF file."""

    config: dict[str, Any]
    """As a config.json: model_type, sizes, and the ids of begin, end and padding."""
    source: GGUFAsHFSource
    """Weights under Hugging Face's names, in its order of rows."""
    tokenizer: Mapping[str, Any]
    """All metadata of the tokenizer, for vocabulary.read_tokenizer; tokenizer.chat_template too."""


def open_gguf(path: str | Path) -> GGUFFile:
    """Settings, weights and tokenizer of a file; a DataError says why one cannot be used."""
    header = read_header(path)
    config, source = read_model(header)
    metadata = {
        key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")
    }
    return GGUFFile({**config, **role_ids(metadata)}, source, metadata)


def read_model(header: GGUFHeader) -> tuple[dict[str, Any], GGUFAsHFSource]:
    architecture = architecture_named(header.metadata.get("general.architecture"), header.path)
    source = GGUFSource(header)
    gguf = GGUFMetadata(header.metadata, source.shapes, source.read, header.path)
    config = architecture.read_config(gguf)
    rules = [*architecture.older_rules(config), *architecture.rules(config)]
    stacks = architecture.stacks(config)
    return config, GGUFAsHFSource(source, rules, stacks, architecture.unread)
