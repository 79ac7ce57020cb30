"""The files that sentence-transformers lays beside a model <-> how its texts become vectors.

    modules.json                 what a text goes through: a model, pooling, sometimes more
    1_Pooling/config.json        which of the vectors of a text's tokens make the text's
    sentence_bert_config.json    max_seq_length: where longer texts are cut

They are written where they say something that is not the rule: another pooling than the mean, or a
limit. A module that Weft does not have (a layer behind the pooling) is not passed over: its name
joins the pooling's, and embedding is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.checkpoint.families.base import GenerationConfig, HFConfig
from weft.checkpoint.weft_folder import write_json
from weft.core.config import read_settings, read_text
from weft.core.errors import DataError

MODULES, POOLING, LIMIT = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
OURS = ("Transformer", "Pooling", "Normalize")
"""The modules that `weft embed` is made of."""
BEFORE = "pooling_mode_"
MODES = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
"""Their names behind BEFORE, and ours. Others are kept as they are, and refused when a text is
embedded: what else the model can do is not their business."""


def read_sentences(path: Path, use: GenerationConfig) -> GenerationConfig:
    """How a folder's model is used, with what these files say of it."""
    pooling, limit = path / POOLING, path / LIMIT
    if pooling.is_file():
        use = replace(use, pooling=read_pooling(read_settings(pooling), use.pooling))
    if (path / MODULES).is_file():
        use = replace(use, pooling="+".join([use.pooling, *strange_modules(path / MODULES)]))
    if limit.is_file():
        given = HFConfig(read_settings(limit), limit)
        if given.get("max_seq_length") is not None:
            use = replace(use, max_tokens=given.size("max_seq_length"))
    return use


def strange_modules(path: Path) -> list[str]:
    """The modules that a text goes through and that Weft does not have, by the names of their
    classes."""
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in json.loads(read_text(path))]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(
            'is not a list of modules, each with a "type". Copy it anew.', path
        ) from None
    return [kind for kind in kinds if kind not in OURS]


def read_pooling(values: Mapping[str, Any], default: str) -> str:
    """The mode that is switched on; several become one vector side by side, theirs only."""
    on = [name for name, value in values.items() if name.startswith(BEFORE) and value is True]
    names = [name.removeprefix(BEFORE) for name in on]
    return "+".join(MODES.get(name, name) for name in names) or default


def write_sentences(folder: Path, use: GenerationConfig, width: int) -> None:
    """The way back."""
    if use.pooling != "mean":
        theirs = {ours: name for name, ours in MODES.items()}
        on = [theirs.get(name, name) for name in use.pooling.split("+")]
        modes = {BEFORE + name: name in on for name in (*on, *MODES)}
        (folder / POOLING).parent.mkdir()
        write_json(folder / POOLING, {"word_embedding_dimension": width, **modes})
    if use.max_tokens is not None:
        write_json(folder / LIMIT, {"max_seq_length": use.max_tokens, "do_lower_case": False})
