"""Model families: the table FAMILIES. A new family is a file in this folder and a line here.

base                Family: one entry of the table
hf_config           a config.json with typed access; RoPE, windows, activations
gguf_metadata       GGUF metadata with typed access; GGUFArchitecture; RoPE in GGUF
generation_config   token ids and pooling that a checkpoint defines
export_check        whether a model can be written as a family
llama, mistral, qwen, gemma3, deepseek, gpt2    decoders
bert                encoders
t5, bart, marian, fairseq                       encoder-decoders
deepseek_yarn       DeepSeek's RoPE scaling in GGUF
"""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.families import (
    bart,
    bert,
    deepseek,
    fairseq,
    gemma3,
    gpt2,
    llama,
    marian,
    mistral,
    qwen,
    t5,
)
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.gguf_metadata import GGUFArchitecture
from weft.core.errors import DataError, UsageError, shown

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen.QWEN2,
    qwen.QWEN3,
    gemma3.FAMILY,
    deepseek.DEEPSEEK_V2,
    deepseek.DEEPSEEK_V3,
    gpt2.FAMILY,
    bert.FAMILY,
    t5.FAMILY,
    bart.FAMILY,
    marian.FAMILY,
    fairseq.FAMILY,
)
"""In the order in which they are tried for a model that was not read from any of them."""
GGUF_ARCHITECTURES: dict[str, GGUFArchitecture] = {
    family.gguf.name: family.gguf for family in FAMILIES if family.gguf is not None
}
"""By general.architecture. Several families can have the same architecture."""


def family_of(model_type: object, path: Path) -> Family:
    """The family of a config.json's model_type; a DataError lists the known ones."""
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    raise DataError(f"model_type is {shown(model_type)}: Weft reads {known}.", path)


def gguf_architecture(name: object, path: Path) -> GGUFArchitecture:
    """The entry for a file's general.architecture; a DataError lists the known ones."""
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise DataError(
            f"general.architecture is {shown(name)}: Weft reads {known}. Use a model of one of "
            "these architectures; only `weft tokenize` works with any.",
            path,
        )
    return GGUF_ARCHITECTURES[name]


def gguf_family(model_type: object) -> tuple[Family, GGUFArchitecture]:
    """The family of a config.json's model_type that can be written as GGUF, and how."""
    for family in FAMILIES:
        if model_type in family.model_types and family.gguf is not None:
            return family, family.gguf
    writable = [family for family in FAMILIES if family.gguf is not None]
    known = ", ".join(name for family in writable for name in family.model_types)
    raise UsageError(
        f"model_type is {model_type!r}, which Weft cannot write as GGUF: it writes {known}. "
        "Convert to hf instead."
    )
