"""SentencePiece (Kudo 2018) on the `tokenizers` library: a .model file -> a backend with its ids.

                         BPE                                unigram
    pieces               merges, best score first           scores, as they are
    special names        no merge makes them                text that spells one is cut inside it

Text becomes what SentencePiece sees, step by step: charsmap, extra spaces away, a space in front,
every space a U+2581. Differs from SentencePiece where the library does: characters that combine are
normalised a grapheme at a time, and a symbol that the user defined starts a new text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.foreign.finish import finish
from weft.text.foreign.habits import Habits
from weft.text.foreign.sentencepiece_file import Kind, Piece, SentencePieceFile, read_sentencepiece
from weft.text.foreign.side import Side
from weft.text.tokenizer import Tokenizer

SPACE = "\u2581"
FAIRSEQ_FILE = "sentencepiece.bpe.model"
FILES = ("tokenizer.model", "spiece.model", FAIRSEQ_FILE)
RESERVED = (Kind.UNKNOWN, Kind.CONTROL, Kind.BYTE)
TURN_MARK = re.compile(r"<\|.+\|>|<(start|end)_of_turn>")
"""A symbol with such a name begins or ends a turn: as text, anybody could write it."""


def load(folder: Path, side: Side, habits: Habits) -> Tokenizer:
    path = next(folder / name for name in FILES if (folder / name).is_file())
    if path.name == FAIRSEQ_FILE and not habits.fairseq_ids:
        raise DataError(
            "families move the ids of such a file in different ways, and only xlm-roberta's is "
            "known here. Put a tokenizer.json beside it.",
            path,
        )
    file = read_sentencepiece(path)
    file = replace(
        file,
        pieces=arranged(renamed(file.pieces, side), side, habits),
        add_dummy_prefix=side.flag("add_prefix_space", file.add_dummy_prefix),
    )
    is_first_only = prefix_is_first_only(file, side)
    backend = Backend(build_model(file))
    backend.normalizer = build_normalizer(file, is_first_only)
    backend.pre_tokenizer = build_pre_tokenizer(file, is_first_only)
    backend.decoder = build_decoder(file)
    return finish(backend, side, with_names(habits, file), own_tokens(file))


def renamed(pieces: tuple[Piece, ...], side: Side) -> tuple[Piece, ...]:
    """The pieces with the names that the config gives to ids that were kept free."""
    taken = {piece.text for piece in pieces}
    found = list(pieces)
    for index, token in side.declared.items():
        if index < len(found) and token.content not in taken:
            kind = Kind.CONTROL if token.special else Kind.USER_DEFINED
            is_unknown = found[index].kind == Kind.UNKNOWN
            found[index] = Piece(token.content, 0.0, Kind.UNKNOWN if is_unknown else kind)
    return tuple(found)


def arranged(pieces: tuple[Piece, ...], side: Side, habits: Habits) -> tuple[Piece, ...]:
    """The pieces in the order of the model's ids, with those that the family adds."""
    if habits.fairseq_ids:
        names = ("<s>", "<pad>", "</s>", "<unk>")
        kinds = (Kind.CONTROL, Kind.CONTROL, Kind.CONTROL, Kind.UNKNOWN)
        head = [Piece(name, 0.0, kind) for name, kind in zip(names, kinds, strict=True)]
        if {piece.text for piece in pieces[:3]} != {"<unk>", "<s>", "</s>"}:
            raise DataError("the first three pieces are not <unk>, <s> and </s>.", side.path)
        return (*head, *pieces[3:], Piece("<mask>", 0.0, Kind.CONTROL))
    count = side.number("extra_ids", habits.extra_ids) if habits.extra_ids else 0
    known = {piece.text for piece in pieces}
    extra = (f"<extra_id_{index}>" for index in reversed(range(count)))
    return (*pieces, *(Piece(name, 0.0, Kind.CONTROL) for name in extra if name not in known))


def prefix_is_first_only(file: SentencePieceFile, side: Side) -> bool:
    """True: the space in front is for the start of a text only, not behind each special token.

    The library's way to do that drops a space where the text begins with one, so it is used only
    where the config asks for it, or where symbols inside a text would get a space each.
    """
    if not file.add_dummy_prefix or file.remove_extra_whitespaces:
        return False
    has_symbols = any(piece.kind == Kind.USER_DEFINED for piece in file.pieces)
    return side.told("legacy") is False or has_symbols


def build_model(file: SentencePieceFile) -> models.Model:
    if file.algorithm == "unigram":
        return models.Unigram(
            [(piece.text, piece.score) for piece in file.pieces],
            unk_id=file.unknown_id,
            byte_fallback=file.byte_fallback,
        )
    return models.BPE(
        {piece.text: index for index, piece in enumerate(file.pieces)},
        find_merges(file.pieces),
        unk_token=file.pieces[file.unknown_id].text,
        fuse_unk=True,
        byte_fallback=file.byte_fallback,
    )


def find_merges(pieces: Iterable[Piece]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, in the order in which SentencePiece prefers them.

    SentencePiece has no list of merges: it joins the neighbours that make the piece with the best
    score. Special names and bytes are no result and no part of a merge.
    """
    usable = {piece.text: piece.score for piece in pieces if piece.kind not in RESERVED}
    ranked = sorted(usable, key=lambda text: -usable[text])
    return [
        (text[:cut], text[cut:])
        for text in ranked
        for cut in range(1, len(text))
        if text[:cut] in usable and text[cut:] in usable
    ]


def build_normalizer(file: SentencePieceFile, is_first_only: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if file.charsmap:
        steps.append(normalizers.Precompiled(file.charsmap))
        # a space for every tokenizer.json of such models, but not for the charsmaps themselves
        steps.append(normalizers.Replace("\x85", " "))
    if file.remove_extra_whitespaces:
        # \A and \z: in the library's patterns ^ and $ stand at every line
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
        steps.append(cut_names(file.pieces))
    return pre_tokenizers.Sequence(steps) if steps else None


def cut_names(pieces: Iterable[Piece], more: str = "") -> pre_tokenizers.PreTokenizer:
    """Cut text inside every special name that it spells: the library's unigram model would take
    such text for the special token. `more` is a pattern of further cuts."""
    pieces = tuple(pieces)
    usable = {piece.text for piece in pieces if piece.kind == Kind.NORMAL and len(piece.text) > 1}
    names = (piece.text for piece in pieces if piece.kind in (Kind.UNKNOWN, Kind.CONTROL))
    cuts = [cut_pattern(name, usable) for name in names if len(name) > 1]
    if any(piece.kind == Kind.BYTE for piece in pieces):
        cuts.append("<(?=0x[0-9A-F]{2}>)")
    pattern = "|".join([*cuts, *([more] if more else [])])
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")


def cut_pattern(name: str, usable: set[str]) -> str:
    """A pattern for the beginning of a name, up to the first place that no piece bridges."""
    bridged = {
        place
        for start in range(len(name))
        for stop in range(start + 2, len(name) + 1)
        if name[start:stop] in usable
        for place in range(start + 1, stop)
    }
    cut = next((place for place in range(1, len(name)) if place not in bridged), 1)
    return f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})"


def build_decoder(file: SentencePieceFile) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if file.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if file.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def own_tokens(file: SentencePieceFile) -> list[AddedToken]:
    """The special tokens, and the symbols that the user defined.

    A symbol with spaces is found in text whose spaces are written as in pieces; that works only
    where no space is put in front, elsewhere merges make it.
    """
    found = []
    for piece in file.pieces:
        is_special = piece.kind in (Kind.CONTROL, Kind.UNKNOWN)
        if is_special or (piece.kind == Kind.USER_DEFINED and TURN_MARK.fullmatch(piece.text)):
            found.append(AddedToken(piece.text, normalized=False, special=True))
        elif piece.kind == Kind.USER_DEFINED and SPACE not in piece.text:
            found.append(AddedToken(piece.text, normalized=False))
        elif piece.kind == Kind.USER_DEFINED and not file.add_dummy_prefix:
            found.append(AddedToken(piece.text, normalized=True))
    return found


def with_names(habits: Habits, file: SentencePieceFile) -> Habits:
    """The family's habits with the names that the file itself gives."""
    if habits.fairseq_ids:
        return habits
    found = {
        "begin": file.name_of(file.begin_id),
        "end": file.name_of(file.end_id),
        "pad": file.name_of(file.pad_id),
        "unknown": file.pieces[file.unknown_id].text,
    }
    told = {role: name for role, name in found.items() if name is not None}
    return replace(habits, names=replace(habits.names, **told))
