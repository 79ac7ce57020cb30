"""A folder with a tokenizer.json, which describes the whole pipeline; the files beside it name the
roles of special tokens and may list tokens that were added later.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from weft.text.hf.tokenizer_config import HFTokenizerConfig, TokenizerDefaults, add_tokens
from weft.text.special_tokens import find_special_tokens
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_files import load_files
from weft.text.tokenizer_names import TARGET_FOLDER, TOKENIZER_FILE


def load_tokenizer_json(
    folder: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> Tokenizer:
    """Load the file. The defaults are not used: the file is complete."""
    backend, _, config = load_files(folder)
    if config is not None or (folder / TARGET_FOLDER / TOKENIZER_FILE).is_file():
        return Tokenizer.load(folder)
    # where the two disagree about an id, tokenizer.json is what the model was trained with
    declared = {
        index: token
        for index, token in hf_config.declared.items()
        if backend.token_to_id(token.content) in (None, index)
    }
    add_tokens(backend, (), replace(hf_config, declared=declared))
    return Tokenizer(backend, find_special_tokens(backend, hf_config.settings))
