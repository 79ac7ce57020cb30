"""Marian's tokenizers: source.spm and target.spm segment the two sides, vocab.json has the ids of
both (Junczys-Dowmunt 2018; the format of the OPUS-MT models).

Each side is a unigram tokenizer with a row for every id of vocab.json. Its spelling decides
which text matches it; spaces can be used for that, as text has U+2581 in their place:

    "\u2581house"     a piece of this side
    " \u00e4 "          characters that this side does not know: matched if they are the whole run
                   between known characters, as spaces are inserted around every such run
    "  \u2581Haus"    any other piece of the other side: two spaces, so that no text matches it

The decoder removes the spaces. A language code such as >>fra<< at the start is one token.

Differs from `transformers`: text whose piece has no id is segmented into pieces that have one,
instead of becoming unknown; and an unknown language code stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError, shown
from weft.text.hf.sentencepiece import (
    SPACE,
    build_decoder,
    build_normalizer,
    split_special_names,
)
from weft.text.hf.sentencepiece_model import (
    PieceType,
    SentencePieceFile,
    SentencePiecePiece,
    read_sentencepiece,
)
from weft.text.hf.tokenizer_config import HFTokenizerConfig, TokenizerDefaults, build_tokenizer
from weft.text.hf.vocab_files import VOCAB_JSON, read_vocab_json
from weft.text.special_tokens import token_text
from weft.text.tokenizer import Tokenizer

SOURCE, TARGET = "source.spm", "target.spm"
TARGET_VOCAB_JSON = "target_vocab.json"
CODE = re.compile(r">>[^<>]+<<")
NONCHARACTER = "\ufdd0"


def load_marian(
    folder: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> Tokenizer:
    """The source side, with the target side as its `target`."""
    has_two = hf_config.flag("separate_vocabs", False)
    names = (VOCAB_JSON, TARGET_VOCAB_JSON if has_two else VOCAB_JSON)
    target = build_tokenizer(*load_side(folder / TARGET, folder / names[1], hf_config, defaults))
    return build_tokenizer(
        *load_side(folder / SOURCE, folder / names[0], hf_config, defaults), target=target
    )


def load_side(
    path: Path, vocabulary_path: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> tuple[Backend, HFTokenizerConfig, TokenizerDefaults, list[AddedToken]]:
    """The backend of one side, and the other arguments of `build_tokenizer`."""
    file = read_sentencepiece(path)
    if file.algorithm != "unigram" or file.byte_fallback or not file.add_dummy_prefix:
        raise DataError(
            f"is a {file.algorithm} model with byte_fallback={file.byte_fallback} and "
            f"add_dummy_prefix={file.add_dummy_prefix}: only a unigram model without byte fallback "
            "that adds a space in front can share a vocab.json. Put a tokenizer.json beside it.",
            path,
        )
    vocabulary = read_vocab_json(vocabulary_path)
    unknown = token_text(hf_config.settings.get("unk_token") or "<unk>")
    if unknown not in vocabulary:
        raise DataError(f"has no {shown(unknown)}, the token for unknown pieces.", vocabulary_path)
    codes = [name for name in vocabulary if CODE.fullmatch(name)]
    pieces = [piece.text for piece in file.pieces if piece.type == PieceType.NORMAL]
    file = replace(file, pieces=pieces_by_id(vocabulary, file, unknown))
    backend = build_backend_of_side(file, known=set().union(*pieces, *codes))
    if codes:
        add_language_codes(backend, codes)
    special = [name for name in (unknown, "</s>", "<pad>") if name in vocabulary]
    marks = [AddedToken(name, normalized=False, special=True) for name in special]
    return backend, hf_config, defaults, marks


def pieces_by_id(
    vocabulary: Mapping[str, int], file: SentencePieceFile, unknown: str
) -> tuple[SentencePiecePiece, ...]:
    """A piece for every id, spelled as the module docstring describes."""
    size = max(vocabulary.values()) + 1
    scores = {piece.text: piece.score for piece in file.pieces if piece.type == PieceType.NORMAL}
    reserved = {piece.text for piece in file.pieces} - scores.keys() | {"<pad>", "</s>"}
    known = set("".join(scores))
    pieces = [SentencePiecePiece(f"  {index}", 0.0, PieceType.UNUSED) for index in range(size)]
    for text, index in vocabulary.items():
        if text == unknown:
            pieces[index] = SentencePiecePiece(text, 0.0, PieceType.UNKNOWN)
        elif text in scores:
            pieces[index] = SentencePiecePiece(text, scores[text], PieceType.NORMAL)
        elif text in reserved or CODE.fullmatch(text):
            pieces[index] = SentencePiecePiece(text, 0.0, PieceType.CONTROL)
        else:
            row = f"  {text}" if known & set(text) else f" {text} "
            pieces[index] = SentencePiecePiece(row, 0.0, PieceType.UNUSED)
    return tuple(pieces)


def build_backend_of_side(file: SentencePieceFile, known: set[str]) -> Backend:
    """The backend of one side. `known`: the characters that its pieces contain."""
    pieces = [(piece.text, piece.score) for piece in file.pieces]
    backend = Backend(models.Unigram(pieces, unk_id=file.unknown_id, byte_fallback=False))
    inside, outside = f"[{letter_ranges(known)}]", f"[^{letter_ranges(known)}]"
    # nothing is inserted before the first character: the library would lose track of offsets
    edge = rf"(?<={inside})(?={outside})|(?<={outside})(?={inside})|(?<={outside})\z"
    backend.normalizer = normalizers.Sequence(
        [
            *charsmap_normalizers(file.charsmap),
            build_normalizer(replace(file, charsmap=b""), is_first_only=False),
            normalizers.Replace(Regex(edge), " "),
        ]
    )
    backend.pre_tokenizer = split_special_names(
        p for p in file.pieces if not CODE.fullmatch(p.text)
    )
    backend.decoder = decoders.Sequence([decoders.Replace(" ", ""), build_decoder(file)])
    return backend


def letter_ranges(letters: set[str]) -> str:
    """The content of a [...] pattern that matches these characters."""
    parts: list[list[int]] = []
    for code in sorted(map(ord, letters)):
        if parts and parts[-1][1] == code - 1:
            parts[-1][1] = code
        else:
            parts.append([code, code])
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in parts)


def charsmap_normalizers(charsmap: bytes) -> list[normalizers.Normalizer]:
    """The charsmap applied to one character at a time, then NFC if the charsmap composes.

    The library applies a charsmap to whole graphemes, where it loses some combining marks and
    leaves others decomposed; a noncharacter before each mark separates them.
    """
    if not charsmap:
        return []
    mapped = normalizers.Precompiled(charsmap)
    if mapped.normalize_str("e\u0301") != "\u00e9":
        return [mapped]
    apart = normalizers.Replace(Regex(r"(?<!\A)(?=\p{M})"), NONCHARACTER)
    return [apart, mapped, normalizers.Replace(NONCHARACTER, ""), normalizers.NFC()]


def add_language_codes(backend: Backend, codes: list[str]) -> None:
    """Make a language code one token at the start of a text, and only there."""
    code, rest = any_of(codes), any_of([name[1:] for name in codes])
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(rf"\A{code}\K(?=[^ ])"), " "),
            backend.normalizer,
            normalizers.Replace(Regex(rf"\A{SPACE}(?={code})"), ""),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"\A{code}"), "isolated"),
            pre_tokenizers.Split(Regex(rf"(?!\A)>(?={rest})"), "merged_with_previous"),
            backend.pre_tokenizer,
        ]
    )


def any_of(names: list[str]) -> str:
    return f"(?:{'|'.join(re.escape(name) for name in names)})"
