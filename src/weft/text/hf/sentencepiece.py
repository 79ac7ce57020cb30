"""SentencePiece (Kudo 2018) on the `tokenizers` library: a .model file -> a backend with its ids.

                         BPE                                unigram
    pieces               merges, best score first           scores, as they are
    special names        no merge makes them                text that spells one is cut inside it

Normalization has SentencePiece's steps: charsmap, removal of extra spaces, a space in front, U+2581
for every space. Differs from SentencePiece where the library does: combining characters are
normalized one grapheme at a time, and a user-defined symbol starts a new text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import count as numbers
from operator import itemgetter
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.hf.sentencepiece_model import (
    PieceType,
    SentencePieceFile,
    SentencePiecePiece,
    read_sentencepiece,
)
from weft.text.hf.tokenizer_config import HFTokenizerConfig, TokenizerDefaults, build_tokenizer
from weft.text.piece_merges import Merges, merges_from_scores
from weft.text.tokenizer import Tokenizer

SPACE = "\u2581"
FAIRSEQ_FILE = "sentencepiece.bpe.model"
FILES = ("tokenizer.model", "spiece.model", FAIRSEQ_FILE)
RESERVED = (PieceType.UNKNOWN, PieceType.CONTROL, PieceType.BYTE)
MESSAGE_MARK = re.compile(r"<\|.+\|>|<(start|end)_of_turn>")
"""Names of symbols that begin or end a message: special, so that no text can inject them."""


def load_sentencepiece(
    folder: Path, hf_config: HFTokenizerConfig, defaults: TokenizerDefaults
) -> Tokenizer:
    path = next(folder / name for name in FILES if (folder / name).is_file())
    if path.name == FAIRSEQ_FILE and not defaults.fairseq_ids:
        raise DataError(
            "families shift the ids of such a file in different ways, and only xlm-roberta's is "
            "known. Put a tokenizer.json beside it.",
            path,
        )
    file = read_sentencepiece(path)
    file = replace(
        file,
        pieces=order_pieces(rename_pieces(file.pieces, hf_config), hf_config, defaults),
        add_dummy_prefix=hf_config.flag("add_prefix_space", file.add_dummy_prefix),
    )
    is_first_only = prefix_is_first_only(file, hf_config)
    backend = Backend(build_model(file))
    backend.normalizer = build_normalizer(file, is_first_only)
    backend.pre_tokenizer = build_pre_tokenizer(file, is_first_only)
    backend.decoder = build_decoder(file)
    return build_tokenizer(
        backend, hf_config, with_file_names(defaults, file), special_pieces(file)
    )


def rename_pieces(
    pieces: tuple[SentencePiecePiece, ...], hf_config: HFTokenizerConfig
) -> tuple[SentencePiecePiece, ...]:
    """The pieces with the names that the config gives to reserved ids."""
    if not hf_config.declared:
        return pieces
    known = {piece.text for piece in pieces}
    renamed = list(pieces)
    for index, token in hf_config.declared.items():
        if index < len(renamed) and token.content not in known:
            piece_type = PieceType.CONTROL if token.special else PieceType.USER_DEFINED
            if renamed[index].type == PieceType.UNKNOWN:
                piece_type = PieceType.UNKNOWN
            renamed[index] = SentencePiecePiece(token.content, 0.0, piece_type)
    return tuple(renamed)


def order_pieces(
    pieces: tuple[SentencePiecePiece, ...],
    hf_config: HFTokenizerConfig,
    defaults: TokenizerDefaults,
) -> tuple[SentencePiecePiece, ...]:
    """The pieces in the order of the model's ids, with those that the family adds."""
    if defaults.fairseq_ids:
        names = ("<s>", "<pad>", "</s>", "<unk>")
        types = (PieceType.CONTROL, PieceType.CONTROL, PieceType.CONTROL, PieceType.UNKNOWN)
        head = [SentencePiecePiece(*entry) for entry in zip(names, (0.0,) * 4, types, strict=True)]
        if {piece.text for piece in pieces[:3]} != {"<unk>", "<s>", "</s>"}:
            raise DataError("the first three pieces are not <unk>, <s> and </s>.", hf_config.path)
        return (*head, *pieces[3:], SentencePiecePiece("<mask>", 0.0, PieceType.CONTROL))
    count = hf_config.integer("extra_ids", defaults.extra_ids) if defaults.extra_ids else 0
    if count == 0:
        return pieces
    known = {piece.text for piece in pieces}
    extra = (f"<extra_id_{index}>" for index in reversed(range(count)))
    return (
        *pieces,
        *(SentencePiecePiece(name, 0.0, PieceType.CONTROL) for name in extra if name not in known),
    )


def prefix_is_first_only(file: SentencePieceFile, hf_config: HFTokenizerConfig) -> bool:
    """Whether a space is added only at the start of a text, not after each special token.

    The library's implementation drops a space where the text begins with one, so it is used only
    if the config requests it, or if every symbol inside a text would get a space.
    """
    if not file.add_dummy_prefix or file.remove_extra_whitespaces:
        return False
    has_symbols = any(piece.type == PieceType.USER_DEFINED for piece in file.pieces)
    return hf_config.optional_flag("legacy") is False or has_symbols


def build_model(file: SentencePieceFile) -> models.Model:
    if file.algorithm == "unigram":
        return models.Unigram(
            [(piece.text, piece.score) for piece in file.pieces],
            unk_id=file.unknown_id,
            byte_fallback=file.byte_fallback,
        )
    return models.BPE(
        dict(zip(map(itemgetter(0), file.pieces), numbers(), strict=False)),
        find_merges(file.pieces),
        unk_token=file.pieces[file.unknown_id].text,
        fuse_unk=True,
        byte_fallback=file.byte_fallback,
    )


def find_merges(pieces: Iterable[SentencePiecePiece]) -> Merges:
    """The merges of a BPE model. Special tokens and bytes take no part in merges."""
    normal = PieceType.NORMAL
    usable = {text: score for text, score, kind in pieces if kind is normal or kind not in RESERVED}
    return merges_from_scores(usable, longest_left_first=False)


def build_normalizer(file: SentencePieceFile, is_first_only: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if file.charsmap:
        steps.append(normalizers.Precompiled(file.charsmap))
        # U+0085 is a space in every tokenizer.json of such models, but not in the charsmaps
        steps.append(normalizers.Replace("\x85", " "))
    if file.remove_extra_whitespaces:
        # \A and \z: in the library's patterns ^ and $ match at every line
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if not is_first_only:
        if file.add_dummy_prefix:
            steps.append(normalizers.Prepend(SPACE))
        steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def build_pre_tokenizer(
    file: SentencePieceFile, is_first_only: bool
) -> pre_tokenizers.PreTokenizer | None:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if is_first_only:
        steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    if file.algorithm == "unigram":
        steps.append(split_special_names(file.pieces))
    return pre_tokenizers.Sequence(steps) if steps else None


def split_special_names(
    pieces: Iterable[SentencePiecePiece], more: str = ""
) -> pre_tokenizers.PreTokenizer:
    """Split text inside every special name that it contains: the library's unigram model would
    take such text for the special token. `more`: a pattern of further splits."""
    pieces = tuple(pieces)
    usable = {
        piece.text for piece in pieces if piece.type == PieceType.NORMAL and len(piece.text) > 1
    }
    names = (piece.text for piece in pieces if piece.type in (PieceType.UNKNOWN, PieceType.CONTROL))
    cuts = [split_pattern(name, usable) for name in names if len(name) > 1]
    if any(piece.type == PieceType.BYTE for piece in pieces):
        cuts.append("<(?=0x[0-9A-F]{2}>)")
    pattern = "|".join([*cuts, *([more] if more else [])])
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")


def split_pattern(name: str, usable: set[str]) -> str:
    """A pattern for the start of a name, up to the first position that no piece spans."""
    spanned = {
        position
        for start in range(len(name))
        for stop in range(start + 2, len(name) + 1)
        if name[start:stop] in usable
        for position in range(start + 1, stop)
    }
    cut = next((index for index in range(1, len(name)) if index not in spanned), 1)
    return f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})"


def build_decoder(file: SentencePieceFile) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if file.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if file.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def special_pieces(file: SentencePieceFile) -> list[AddedToken]:
    """The special tokens and the user-defined symbols.

    A symbol with spaces is matched in text whose spaces are already U+2581, which works only where
    no space is added in front; elsewhere merges produce it.
    """
    tokens = []
    normal = PieceType.NORMAL
    for piece in [piece for piece in file.pieces if piece[2] is not normal]:
        is_special = piece.type in (PieceType.CONTROL, PieceType.UNKNOWN)
        if is_special or (
            piece.type == PieceType.USER_DEFINED and MESSAGE_MARK.fullmatch(piece.text)
        ):
            tokens.append(AddedToken(piece.text, normalized=False, special=True))
        elif piece.type == PieceType.USER_DEFINED and SPACE not in piece.text:
            tokens.append(AddedToken(piece.text, normalized=False))
        elif piece.type == PieceType.USER_DEFINED and not file.add_dummy_prefix:
            tokens.append(AddedToken(piece.text, normalized=True))
    return tokens


def with_file_names(defaults: TokenizerDefaults, file: SentencePieceFile) -> TokenizerDefaults:
    """The defaults of the family with the special tokens that the file names."""
    if defaults.fairseq_ids:
        return defaults
    names = {
        "begin": file.name_of(file.begin_id),
        "end": file.name_of(file.end_id),
        "pad": file.name_of(file.pad_id),
        "unknown": file.pieces[file.unknown_id].text,
    }
    known = {role: name for role, name in names.items() if name is not None}
    return replace(defaults, special_tokens=replace(defaults.special_tokens, **known))
