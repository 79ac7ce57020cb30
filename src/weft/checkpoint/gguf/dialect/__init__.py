"""The table of GGUF architectures. A new one is a file in this folder and a line here.

base         what an architecture is, and a file's metadata asked by name
rope         rotary positions, which most of them share
sharp_yarn   DeepSeek's
"""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.gguf.dialect import bert, deepseek2, gemma3, gpt2, llama, qwen, t5
from weft.checkpoint.gguf.dialect.base import GGUFArchitecture
from weft.core.errors import DataError, UsageError

ARCHITECTURES: dict[str, GGUFArchitecture] = {
    entry.name: entry
    for entry in (
        llama.ARCHITECTURE,
        qwen.QWEN2,
        qwen.QWEN3,
        gemma3.ARCHITECTURE,
        deepseek2.ARCHITECTURE,
        bert.ARCHITECTURE,
        gpt2.ARCHITECTURE,
        t5.ARCHITECTURE,
    )
}


def architecture_named(name: object, path: Path) -> GGUFArchitecture:
    """The architecture that a file's general.architecture names."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise DataError(
            f"general.architecture is {name!r}: Weft reads {known}. Use the model's safetensors "
            "files, or another model.",
            path,
        )
    return ARCHITECTURES[name]


def architecture_for(model_type: object) -> GGUFArchitecture:
    """The architecture that a config.json's model_type is written as."""
    for entry in ARCHITECTURES.values():
        if model_type in entry.model_types:
            return entry
    known = ", ".join(name for entry in ARCHITECTURES.values() for name in entry.model_types)
    raise UsageError(
        f"model_type is {model_type!r}, which Weft cannot write as GGUF: it writes {known}. "
        "Convert to hf instead."
    )
