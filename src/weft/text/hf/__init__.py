"""Tokenizers of Hugging Face folders, whichever files they have -> `Tokenizer`. One file a format:

tokenizer_json        tokenizer.json, which is complete
marian_vocab          source.spm, target.spm and vocab.json: two sides with shared ids
sentencepiece         tokenizer.model, spiece.model or sentencepiece.bpe.model
sentencepiece_model   reader of SentencePiece's .model files
vocab_files           vocab.json and merges.txt (byte-level BPE); vocab.txt (WordPiece)
tokenizer_config      tokenizer_config.json and related files, defaults by family, post-processor
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.core.gc_pause import gc_pause
from weft.text.hf.marian_vocab import SOURCE, TARGET, load_marian
from weft.text.hf.sentencepiece import FAIRSEQ_FILE, load_sentencepiece
from weft.text.hf.tokenizer_config import (
    DEFAULTS,
    UNSUPPORTED_FAMILIES,
    HFTokenizerConfig,
    TokenizerDefaults,
    family_name,
    read_tokenizer_config,
)
from weft.text.hf.tokenizer_json import load_tokenizer_json
from weft.text.hf.vocab_files import MERGES, VOCAB_JSON, VOCAB_TXT, load_byte_level, load_wordpiece
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_names import TOKENIZER_FILE

MODEL_CONFIG = "config.json"


@dataclass(frozen=True)
class TokenizerFormat:
    """One way to store a tokenizer."""

    files: tuple[str, ...]
    """A folder with all of these files has this format."""
    load: Callable[[Path, HFTokenizerConfig, TokenizerDefaults], Tokenizer]
    family: str
    """The family whose defaults apply if the folder names none."""


FORMATS: dict[str, TokenizerFormat] = {
    "tokenizer_json": TokenizerFormat((TOKENIZER_FILE,), load_tokenizer_json, "gpt2"),
    "marian": TokenizerFormat((SOURCE, TARGET, VOCAB_JSON), load_marian, "marian"),
    "sentencepiece": TokenizerFormat(("tokenizer.model",), load_sentencepiece, "llama"),
    "spiece": TokenizerFormat(("spiece.model",), load_sentencepiece, "t5"),
    "fairseq": TokenizerFormat((FAIRSEQ_FILE,), load_sentencepiece, "xlmroberta"),
    "byte_level": TokenizerFormat((VOCAB_JSON, MERGES), load_byte_level, "gpt2"),
    "wordpiece": TokenizerFormat((VOCAB_TXT,), load_wordpiece, "bert"),
}
"""In order of precedence."""


def load_tokenizer(folder: Path, model_type: str | None = None) -> Tokenizer:
    """The tokenizer of a folder. `model_type` (default: from config.json, if there is one) selects
    the defaults for what the tokenizer's files leave open."""
    folder = Path(folder)
    name = find_format(folder)
    if name is None:
        sets = [" with ".join(format.files) for format in FORMATS.values()]
        raise DataError(f"has no tokenizer. Looked for {', '.join(sets)}.", folder)
    hf_config = read_tokenizer_config(folder)
    family = family_name(hf_config.settings, model_type or read_model_type(folder))
    if family in UNSUPPORTED_FAMILIES and name != "tokenizer_json":
        raise DataError(
            f"the files of a {family} tokenizer need a reader of their own, which Weft does not "
            "have. Put its tokenizer.json beside them.",
            folder,
        )
    defaults = DEFAULTS.get(family or "", DEFAULTS[FORMATS[name].family])
    with gc_pause():
        return FORMATS[name].load(folder, hf_config, defaults)


def read_model_type(folder: Path) -> str | None:
    path = folder / MODEL_CONFIG
    model_type = read_settings(path).get("model_type") if path.is_file() else None
    return model_type if isinstance(model_type, str) else None


def find_format(folder: Path) -> str | None:
    """The first format whose files are all in the folder."""
    for name, format in FORMATS.items():
        if all((folder / file).is_file() for file in format.files):
            return name
    return None
