"""`write_gguf`: settings, weights and a tokenizer in Hugging Face's words -> a GGUF file.

Weights are turned, quantised and written one at a time; the file takes its name only when it is
whole. What GGUF cannot say is found by reading the settings back before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from weft.checkpoint.atomic import new_file
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect import architecture_for
from weft.checkpoint.gguf.dialect.base import GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.rope import rope_of
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.plan import TensorPlan, plan_tensors
from weft.checkpoint.gguf.vocabularies.table import write_tokenizer
from weft.core.choices import pick
from weft.core.errors import DataError, UsageError
from weft.text.tokenizer import Tokenizer

VocabularyKind = Literal["f32", "f16", "q8_0"]
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
"""What general.file_type says of each kind."""
NOT_COMPARED = (
    *("architectures", "model_type", "rope_theta", "rope_scaling"),
    *("add_pooling_layer", "tie_word_embeddings"),
)
"""Settings that are compared in another way, or that do not change what a model computes."""


def write_gguf(
    path: str | Path,
    hf_config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    kind: VocabularyKind = "f16",
) -> Path:
    """Write a file; a UsageError names what GGUF cannot say, and leaves what was there before.

    `tensors`: under Hugging Face's names, in its shapes. `kind`: what matrices become; everything
    else is F32.
    """
    path, hf = Path(path), HFConfig(hf_config, Path(path))
    file_type = pick(FILE_TYPES, kind, "kind of GGUF file")
    architecture = architecture_for(hf_config.get("model_type"))
    metadata = {
        "general.architecture": architecture.name,
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": file_type,
        **architecture.write_config(hf),
        **write_tokenizer(tokenizer, hf.size("vocab_size")),
        **extra_end_id(hf, tokenizer),
        **({"tokenizer.chat_template": chat_template} if chat_template else {}),
    }
    extra = architecture.extra(hf)
    planned = plan_tensors(architecture, hf_config, tensors, extra, kind)
    check_round_trip(architecture, metadata, planned, hf)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        # here and not above: the import takes a quarter of a second
        from weft.checkpoint.gguf import library

        library.write_file(temporary, metadata, planned)
        read_header(temporary)
    return path


def extra_end_id(hf: HFConfig, tokenizer: Tokenizer) -> dict[str, int]:
    """A second token that ends a text (a turn, in a chat), where the settings have one."""
    ends = hf.get("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    others = [index for index in ends if index != tokenizer.end_id]
    return {"tokenizer.ggml.eot_token_id": others[0]} if others and len(ends) > 1 else {}


def check_round_trip(
    architecture: GGUFArchitecture,
    metadata: Mapping[str, Any],
    planned: Sequence[TensorPlan],
    hf: HFConfig,
) -> None:
    """A UsageError unless the settings come back as they were given."""
    makers = {tensor.name: tensor.make for tensor in planned}
    shapes = {tensor.name: tensor.shape for tensor in planned}
    gguf = GGUFMetadata(metadata, shapes, lambda name: makers[name](), hf.path)
    try:
        back = architecture.read_config(gguf)
    except DataError as error:
        raise UsageError(f"this model cannot be written as GGUF: {error}") from None
    wrong = lost_settings(hf.values, back)
    if wrong:
        raise UsageError(
            f"a GGUF file of architecture {architecture.name} cannot say these settings: "
            f"{'; '.join(wrong[:3])}. Convert to hf instead."
        )


def lost_settings(hf: Mapping[str, Any], back: Mapping[str, Any]) -> list[str]:
    """The settings that come back with another value, as sentences."""
    pairs = {key: (hf.get(key), value) for key, value in back.items() if key not in NOT_COMPARED}
    if "rope_theta" in back and "full_attention" not in (hf.get("rope_parameters") or {}):
        ours, theirs = rope_of(hf), rope_of(back)
        pairs |= {f"rope {key}": (ours.get(key), value) for key, value in theirs.items()}
    return [
        f"{key} would become {value!r} from {before!r}"
        for key, (before, value) in pairs.items()
        if before is not None and not is_close(before, value)
    ]


def is_close(one: Any, other: Any) -> bool:
    """Equal, to the precision of a file's numbers."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)
