"""A model in any format -> the same model in another."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.shards import MAX_BYTES, parse_size
from weft.checkpoint.weft_folder import save_folder
from weft.core.errors import UsageError


def convert(
    model: str | Path,
    out: Path,
    to: Literal["hf", "gguf", "weft"],
    family: str | None = None,
    dtype: Literal["f32", "f16", "q8_0"] | None = None,
    max_shard: str | None = None,
) -> str:
    """Write `out`; the name of the family or format it was written as. `dtype`: how a gguf file
    stores numbers (None: f32). `max_shard`: how large a file of an hf folder may be (None: 5GB)."""
    max_bytes = MAX_BYTES if max_shard is None else parse_size(max_shard)
    if max_shard is not None and to != "hf":
        raise UsageError(f"only an hf folder is cut into files, not {to}. Leave the size out.")
    if dtype is not None and to != "gguf":
        raise UsageError(f"only a gguf file is stored as {dtype}; {to} is float32. Leave it out.")
    if out.exists():
        raise UsageError(f"{out} is there already: choose another place, or remove it.")
    checkpoint = load_checkpoint(model)
    if to == "weft":
        save_folder(out, checkpoint)
        return "weft"
    if to == "hf":
        from weft.checkpoint.huggingface import save_hf

        return save_hf(checkpoint, out, family, max_bytes)
    from weft.checkpoint.gguf.model import save_gguf

    return save_gguf(checkpoint, out, family, dtype or "f32")
