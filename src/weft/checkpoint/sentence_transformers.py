"""Files of sentence-transformers in a model folder <-> pooling and length limit for embeddings.

    modules.json                 the steps of the pipeline: a model, pooling, sometimes more
    1_Pooling/config.json        the pooling mode
    sentence_bert_config.json    max_seq_length: longer texts are truncated

They are written only for non-default values: a pooling other than the mean, or a length limit.
The name of a module that Weft does not have (a dense layer after the pooling) is appended to the
pooling, and `weft embed` reports it as unsupported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.folder_files import write_json
from weft.core.config import read_settings, read_text
from weft.core.errors import DataError

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
LIMIT_FILE = "sentence_bert_config.json"
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
MODE_PREFIX = "pooling_mode_"
MODES = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
"""Their modes without MODE_PREFIX, and Weft's names. Other modes keep their name, and are reported
as unsupported when a text is embedded: the model can still be used otherwise."""


def read_pooling_files(path: Path, config: GenerationConfig) -> GenerationConfig:
    """`config` with the pooling and the limit of a folder's files."""
    if (path / POOLING_FILE).is_file():
        pooling = read_pooling(read_settings(path / POOLING_FILE), config.pooling)
        config = replace(config, pooling=pooling)
    if (path / MODULES_FILE).is_file():
        unsupported = unsupported_modules(path / MODULES_FILE)
        config = replace(config, pooling="+".join([config.pooling, *unsupported]))
    if (path / LIMIT_FILE).is_file():
        values = HFConfig(read_settings(path / LIMIT_FILE), path / LIMIT_FILE)
        if values.get("max_seq_length") is not None:
            config = replace(config, max_tokens=values.size("max_seq_length"))
    return config


def unsupported_modules(path: Path) -> list[str]:
    """Class names of the modules that Weft does not have."""
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in json.loads(read_text(path))]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(
            'is not a list of modules, each with a "type". Copy the file again.', path
        ) from None
    return [kind for kind in kinds if kind not in SUPPORTED_MODULES]


def read_pooling(values: Mapping[str, Any], default: str) -> str:
    """The enabled mode; several are joined by '+' (sentence-transformers concatenates them)."""
    enabled = [key for key, on in values.items() if key.startswith(MODE_PREFIX) and on is True]
    names = [key.removeprefix(MODE_PREFIX) for key in enabled]
    return "+".join(MODES.get(name, name) for name in names) or default


def write_pooling_files(folder: Path, config: GenerationConfig, width: int) -> None:
    """Write the files that `read_pooling_files` needs to return the same values."""
    if config.pooling != "mean":
        hf_modes = {mode: name for name, mode in MODES.items()}
        enabled = [hf_modes.get(name, name) for name in config.pooling.split("+")]
        modes = {MODE_PREFIX + name: name in enabled for name in (*enabled, *MODES)}
        (folder / POOLING_FILE).parent.mkdir()
        write_json(folder / POOLING_FILE, {"word_embedding_dimension": width, **modes})
    if config.max_tokens is not None:
        write_json(
            folder / LIMIT_FILE, {"max_seq_length": config.max_tokens, "do_lower_case": False}
        )
