"""fairseq's dictionary and BPE codes -> a tokenizer.

    dict.xx.txt    "ab@@ 17" a line: a piece, here one with more of its word behind it, and a count;
                   ids follow those of <s> <pad> </s> <unk>
    bpe.code       "a b</w>" a line, best first (subword-nmt 0.2, or fastBPE with a count behind)

The pieces become what the `tokenizers` library calls them: "ab" inside a word, "ab</w>" at its end.
Some merges pass through a pair that is in no text by itself, and so not in the dictionary; a source
tokenizer gives it an id behind the dictionary's, for which the model's table repeats the unknown
word's row. Merges that lead to no piece at all are left out. Ids are those of fairseq wherever all
pieces are known; a word that is not may become more unknowns than there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.specials import Specials
from weft.text.tokenizer import Tokenizer

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
INSIDE, END = "@@", "</w>"

Merge = tuple[str, str]


def read_dictionary(path: Path) -> list[str]:
    """The pieces in the order of their ids, those of SPECIALS first."""
    pieces = list(SPECIALS)
    for number, line in enumerate(read_lines(path), 1):
        piece, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not piece or not count.isdecimal():
            raise DataError(f"is {line[:80]!r}: it must be a piece and a count.", path, number)
        pieces.append(piece)
    if len(set(pieces)) != len(pieces):
        raise DataError("has a piece twice: ids would not be those of its model.", path)
    return pieces


def read_codes(path: Path) -> list[Merge]:
    """Merges, best first; of a repeated one the first counts."""
    lines = read_lines(path)
    has_version = bool(lines) and lines[0].startswith("#version:")
    if has_version and lines[0].split()[-1] != "0.2":
        raise DataError(f"says {lines[0]!r}: Weft reads version 0.2.", path, 1)
    merges: dict[Merge, None] = {}
    for number, line in enumerate(lines[has_version:], 1 + has_version):
        parts = line.split(" ")
        # version 0.1 has neither header nor counts, and ends words by a piece of their own
        if len(parts) != (2 if has_version else 3) or not all(parts):
            raise DataError(f"is {line[:80]!r}: it must be two pieces to merge.", path, number)
        merges.setdefault((parts[0], parts[1]))
    return list(merges)


def read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError("there is no such file. Copy the whole model folder.", path) from None
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text.", path) from None
    # only \n ends a line: a piece may hold other characters that str.splitlines cuts at
    return text.removesuffix("\n").split("\n") if text else []


def source_tokenizer(
    pieces: Sequence[str], merges: Sequence[Merge], lowercase: bool | None = None
) -> Tokenizer:
    """Reads what the model reads; ids from len(pieces) on stand for the unknown word. `lowercase`
    None: where no piece has a capital letter."""
    vocabulary = inner_names(pieces)
    used = needed(vocabulary, merges)
    for symbol in (symbol for merge in used for symbol in merge):
        vocabulary.setdefault(symbol, len(vocabulary))
    return build(vocabulary, used, is_lower(pieces) if lowercase is None else lowercase)


def target_tokenizer(pieces: Sequence[str], merges: Sequence[Merge]) -> Tokenizer:
    """Writes what the model writes. It reads it too, but for words whose merges pass through a
    pair outside the dictionary: the model has no output for that."""
    vocabulary = inner_names(pieces)
    used = [(a, b) for a, b in merges if {a, b, a + b} <= vocabulary.keys()]
    return build(vocabulary, used, is_lower(pieces))


def is_lower(pieces: Sequence[str]) -> bool:
    return all(piece == piece.lower() for piece in pieces)


def inner_names(pieces: Sequence[str]) -> dict[str, int]:
    """Pieces as the library names them, with their ids."""
    names = [p.removesuffix(INSIDE) if p.endswith(INSIDE) else p + END for p in pieces[4:]]
    return {name: index for index, name in enumerate((*SPECIALS, *names))}


def needed(vocabulary: dict[str, int], merges: Sequence[Merge]) -> list[Merge]:
    """The merges on the way to some piece of the vocabulary."""
    wanted, used = set(vocabulary), []
    # a merge comes before those that build on it
    for first, second in reversed(merges):
        if first + second in wanted:
            wanted |= {first, second}
            used.append((first, second))
    return used[::-1]


def build(vocabulary: dict[str, int], merges: list[Merge], lowercase: bool) -> Tokenizer:
    model = models.BPE(vocabulary, merges, unk_token=SPECIALS[3], end_of_word_suffix=END)
    backend = Backend(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    backend.decoder = decoders.BPEDecoder(suffix=END)
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return Tokenizer(backend, Specials(pad="<pad>", begin="<s>", end="</s>", unknown="<unk>"))
