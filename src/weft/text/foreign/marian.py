"""Marian's pair: source.spm cuts the source, target.spm the target, vocab.json gives both their ids
(Junczys-Dowmunt 2018; as the OPUS-MT models are published).

Each side is a unigram tokenizer with a row for every id of vocab.json. How a row is written decides
what text finds it; spaces are free for that, as text has U+2581 in their place by then:

    "\u2581house"     a piece of this side
    " \u00e4 "          characters that this side does not know: found if they are all that stands
                   between known ones, for which spaces are put around every such run
    "  \u2581Haus"    anything else of the other side: two spaces, so that nothing finds it

The decoder takes the spaces away. A language code such as >>fra<< at the start is one token.

Differs from `transformers`: text whose piece has no id is spelled in pieces that have one, where
there it is unknown; and an unknown language code stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.foreign.byte_level import read_vocabulary
from weft.text.foreign.finish import finish
from weft.text.foreign.habits import Habits
from weft.text.foreign.sentencepiece import SPACE, build_decoder, build_normalizer, cut_names
from weft.text.foreign.sentencepiece_file import Kind, Piece, SentencePieceFile, read_sentencepiece
from weft.text.foreign.side import Side
from weft.text.specials import content
from weft.text.tokenizer import Tokenizer

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
TARGET_VOCABULARY = "target_vocab.json"
CODE = re.compile(r">>[^<>]+<<")
NO_CHARACTER = "\ufdd0"


def load(folder: Path, side: Side, habits: Habits) -> Tokenizer:
    """The source side, with the target side as its `target`."""
    has_two = side.flag("separate_vocabs", False)
    names = (VOCABULARY, TARGET_VOCABULARY if has_two else VOCABULARY)
    target = finish(*load_side(folder / TARGET, folder / names[1], side, habits))
    return finish(*load_side(folder / SOURCE, folder / names[0], side, habits), target=target)


def load_side(
    path: Path, vocabulary_path: Path, side: Side, habits: Habits
) -> tuple[Backend, Side, Habits, list[AddedToken]]:
    """One side's backend, and what `finish` needs with it."""
    file = read_sentencepiece(path)
    if file.algorithm != "unigram" or file.byte_fallback or not file.add_dummy_prefix:
        raise DataError(
            f"is a {file.algorithm} model with byte_fallback={file.byte_fallback} and "
            f"add_dummy_prefix={file.add_dummy_prefix}: only a unigram model without bytes that "
            "puts a space in front can share a vocab.json. Put a tokenizer.json beside it.",
            path,
        )
    vocabulary = read_vocabulary(vocabulary_path)
    unknown = content(side.settings.get("unk_token") or "<unk>")
    if unknown not in vocabulary:
        raise DataError(f"has no {unknown!r}, the token for unknown pieces.", vocabulary_path)
    codes = [name for name in vocabulary if CODE.fullmatch(name)]
    own = [piece.text for piece in file.pieces if piece.kind == Kind.NORMAL]
    file = replace(file, pieces=table(vocabulary, file, unknown))
    backend = build(file, known=set().union(*own, *codes))
    if codes:
        read_codes(backend, codes)
    special = [name for name in (unknown, "</s>", "<pad>") if name in vocabulary]
    marks = [AddedToken(name, normalized=False, special=True) for name in special]
    return backend, side, habits, marks


def table(
    vocabulary: Mapping[str, int], file: SentencePieceFile, unknown: str
) -> tuple[Piece, ...]:
    """A piece for every id, written as the file's first lines say."""
    size = max(vocabulary.values()) + 1
    if size > 4 * len(vocabulary):
        raise DataError(f"vocab.json has {len(vocabulary)} tokens with ids up to {size - 1}.")
    scores = {piece.text: piece.score for piece in file.pieces if piece.kind == Kind.NORMAL}
    reserved = {piece.text for piece in file.pieces} - scores.keys() | {"<pad>", "</s>"}
    known = set("".join(scores))
    found = [Piece(f"  {index}", 0.0, Kind.UNUSED) for index in range(size)]
    for text, index in vocabulary.items():
        if text == unknown:
            found[index] = Piece(text, 0.0, Kind.UNKNOWN)
        elif text in scores:
            found[index] = Piece(text, scores[text], Kind.NORMAL)
        elif text in reserved or CODE.fullmatch(text):
            found[index] = Piece(text, 0.0, Kind.CONTROL)
        else:
            row = f"  {text}" if known & set(text) else f" {text} "
            found[index] = Piece(row, 0.0, Kind.UNUSED)
    return tuple(found)


def build(file: SentencePieceFile, known: set[str]) -> Backend:
    """The backend of one side, which knows these characters."""
    pieces = [(piece.text, piece.score) for piece in file.pieces]
    backend = Backend(models.Unigram(pieces, unk_id=file.unknown_id, byte_fallback=False))
    one, other = f"[{letter_ranges(known)}]", f"[^{letter_ranges(known)}]"
    # nothing is put before the first character: the library loses count there
    edge = rf"(?<={one})(?={other})|(?<={other})(?={one})|(?<={other})\z"
    backend.normalizer = normalizers.Sequence(
        [
            *composed(file.charsmap),
            build_normalizer(replace(file, charsmap=b""), is_first_only=False),
            normalizers.Replace(Regex(edge), " "),
        ]
    )
    backend.pre_tokenizer = cut_names(p for p in file.pieces if not CODE.fullmatch(p.text))
    backend.decoder = decoders.Sequence([decoders.Replace(" ", ""), build_decoder(file)])
    return backend


def letter_ranges(letters: set[str]) -> str:
    """The inside of a [...] pattern that stands for these characters."""
    parts: list[list[int]] = []
    for code in sorted(map(ord, letters)):
        if parts and parts[-1][1] == code - 1:
            parts[-1][1] = code
        else:
            parts.append([code, code])
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in parts)


def composed(charsmap: bytes) -> list[normalizers.Normalizer]:
    """The charsmap, a character at a time, and marks joined with their letters where it does that.

    The library applies a charsmap to whole graphemes, where it loses some marks and leaves others
    apart; a character that no text has, put before each mark, makes it look at each one alone.
    """
    if not charsmap:
        return []
    mapped = normalizers.Precompiled(charsmap)
    if mapped.normalize_str("e\u0301") != "\u00e9":
        return [mapped]
    apart = normalizers.Replace(Regex(r"(?<!\A)(?=\p{M})"), NO_CHARACTER)
    return [apart, mapped, normalizers.Replace(NO_CHARACTER, ""), normalizers.NFC()]


def read_codes(backend: Backend, codes: list[str]) -> None:
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
