"""A model in any format -> the same model in another."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.native import save_folder
from weft.core.errors import UsageError


def convert(
    model: str | Path,
    out: Path,
    to: Literal["hf", "gguf", "weft"],
    family: str | None = None,
    dtype: Literal["f32", "f16", "q8_0"] = "f32",
) -> str:
    """Write `out`; the name of the family or format it was written as."""
    if out.exists():
        raise UsageError(f"{out} is there already: choose another place, or remove it.")
    checkpoint = load_checkpoint(model)
    if to == "weft":
        save_folder(out, checkpoint)
        return "weft"
    if to == "hf":
        from weft.checkpoint.huggingface import save_foreign

        return save_foreign(checkpoint, out, family)
    from weft.checkpoint.gguf.model import save_gguf

    return save_gguf(checkpoint, out, family, dtype)
