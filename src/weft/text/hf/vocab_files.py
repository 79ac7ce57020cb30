"""Vocabulary files -> `Tokenizer`: byte-level BPE (GPT-2) and WordPiece (BERT).

vocab.json, merges.txt    byte-level BPE (Radford 2019): a pattern splits text into words, bytes
                          are written as letters, merges are applied in order. RoBERTa and BART
                          add begin and end; Qwen2 has another pattern and normalizes to NFC.
vocab.txt                 WordPiece (Wu 2016): one piece a line, the line number is the id. Text
                          is cleaned, split at spaces and punctuation, and lower-cased if
                          tokenizer_config.json says so.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.config import read_settings, read_text
from weft.core.errors import DataError, shown
from weft.text.hf.tokenizer_config import HFTokenizerConfig, TokenizerDefaults, build_tokenizer
from weft.text.special_tokens import token_text
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_files import check_max_id

VOCAB_JSON, MERGES, VOCAB_TXT = "vocab.json", "merges.txt", "vocab.txt"
SPACE_LETTER = "\u0120"
"""The letter for the space in GPT-2's byte alphabet."""
SUPPORTED_SETTINGS = {
    "do_basic_tokenize": True,
    "never_split": None,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
"""WordPiece settings that change the segmentation, with the only value that is supported."""


def load_byte_level(
    folder: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> Tokenizer:
    vocabulary = read_vocab_json(folder / VOCAB_JSON)
    if not any(SPACE_LETTER in token for token in vocabulary):
        raise DataError(
            f"no token has the letter {SPACE_LETTER!r}, so this is not byte-level BPE. Put the "
            "tokenizer.json of this model beside it.",
            folder / VOCAB_JSON,
        )
    merges = read_merges(folder / MERGES, vocabulary)
    backend = Backend(models.BPE(vocabulary, merges))
    if defaults.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = byte_level_pre_tokenizer(hf_config, defaults)
    backend.decoder = decoders.ByteLevel()
    return build_tokenizer(backend, hf_config, defaults)


def byte_level_pre_tokenizer(
    hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> pre_tokenizers.PreTokenizer:
    add_space = hf_config.flag("add_prefix_space", False)
    if defaults.split_pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=add_space)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(defaults.split_pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=add_space, use_regex=False),
        ]
    )


def read_vocab_json(path: Path) -> dict[str, int]:
    """Token -> id. Raises a DataError for anything else."""
    values = read_settings(path)
    for token, index in values.items():
        if not isinstance(index, int) or not 0 <= index < 1 << 31:
            raise DataError(
                f"the id of {shown(token)} is {shown(index)}: whole numbers are ids.", path
            )
    if len(set(values.values())) != len(values):
        raise DataError("two tokens have the same id. Fetch the file again.", path)
    check_max_id(max(values.values(), default=-1), len(values), path)
    return values


def read_merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges in order. Raises a DataError for the first line that is not a merge."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        parts = line.removesuffix("\r").split(" ")
        if parts == [""] or line.startswith("#version"):
            continue
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise DataError(
                f"{shown(line)} is not a pair of tokens whose concatenation is a token too. The "
                f"file does not belong to {VOCAB_JSON}.",
                path,
                number,
            )
        merges.append((parts[0], parts[1]))
    return merges


def load_wordpiece(
    folder: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> Tokenizer:
    for name, supported in SUPPORTED_SETTINGS.items():
        if hf_config.settings.get(name) not in (None, supported):
            value = hf_config.settings[name]
            raise DataError(
                f"{name} is {shown(value)}: only {supported!r} is known.", hf_config.path
            )
    path = folder / VOCAB_TXT
    vocabulary = read_vocab_txt(path)
    default_unknown = defaults.special_tokens.unknown or "[UNK]"
    unknown = token_text(hf_config.settings.get("unk_token") or default_unknown)
    if unknown not in vocabulary:
        raise DataError(f"has no line {shown(unknown)}, the token for unknown words.", path)
    backend = Backend(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=hf_config.flag("tokenize_chinese_chars", True),
        strip_accents=hf_config.optional_flag("strip_accents"),
        lowercase=hf_config.flag("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return build_tokenizer(backend, hf_config, defaults)


def read_vocab_txt(path: Path) -> dict[str, int]:
    """Piece -> line number from 0; a repeated piece has the number of its last line."""
    # only LF and CRLF: splitlines() would also split at U+2028, which is a piece in some files
    lines = read_text(path).removesuffix("\n").split("\n")
    return {line.removesuffix("\r"): index for index, line in enumerate(lines)}
