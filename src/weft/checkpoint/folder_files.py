"""The files of a model folder that `weft info` reads, without torch (weft_folder.py lists all)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import current_folder, write_file
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.safetensors_header import WEIGHTS_FILE, open_file
from weft.checkpoint.sha256sums import SUMS_FILE
from weft.core.config import read_settings
from weft.core.errors import DataError, UnreadableError, shown
from weft.models.config import ModelConfig
from weft.text.tokenizer_names import TARGET_FOLDER, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

CONFIG_FILE, SCORES_FILE, RUN_FILE = "config.json", "scores.json", "run.json"
TEMPLATE_FILE, EXAMPLES_FILE = "chat_template.jinja", "examples.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)
OPTIONAL_FILES = (
    *(TEMPLATE_FILE, EXAMPLES_FILE),
    *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES),
)
"""Files that not all models have: a model that has none of them removes those of the last one."""
MODEL_FILES = (
    *(CONFIG_FILE, WEIGHTS_FILE, SCORES_FILE, SUMS_FILE),
    *TOKENIZER_FILES,
    *OPTIONAL_FILES,
)
VERSION = 1


def has_model(path: Path) -> bool:
    """Whether a folder has settings and complete weights: the header is valid, and the length of
    the file is the one that it implies."""
    return read_consistently(path, MODEL_FILES, has_complete_weights)


def has_complete_weights(folder: Path) -> bool:
    try:
        open_file(folder / WEIGHTS_FILE)
    except UnreadableError:
        raise  # it may be complete
    except DataError:
        return False
    return (folder / CONFIG_FILE).is_file()


def is_finished(path: Path) -> bool:
    """Whether a run has written its model. Earlier versions wrote scores.json before the weights:
    a kill left one without them."""
    return (current_folder(path) / SCORES_FILE).is_file() and has_model(path)


def is_unfinished_run(path: Path) -> bool:
    """A run folder without a finished model."""
    return (path / RUN_FILE).is_file() and not has_model(path)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a Weft folder, of the version that is supported."""
    file = path / CONFIG_FILE
    if not file.is_file():
        raise DataError(
            f"has no {CONFIG_FILE}: this is not a model folder. Name a folder that is.", path
        )
    values = read_settings(file)
    if values.get("weft") != VERSION:
        raise DataError(
            f"says weft = {shown(values.get('weft'))}: this version reads {VERSION}. Use the Weft "
            "version that wrote it.",
            file,
        )
    if not isinstance(values.get("model"), dict) or "task" not in values:
        raise DataError("has no 'model' or no 'task'. Copy the file again.", file)
    return values


def describe_model(path: Path) -> tuple[str | None, ModelConfig]:
    """Family and settings of a folder."""
    values = read_consistently(path, MODEL_FILES, read_config)
    config = ModelConfig.from_dict(values["model"], where=str(path / CONFIG_FILE))
    return values.get("family"), config


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    write_file(path, text.encode())
