"""`weft tokenize`: text -> tokens or ids, ids -> text, text files -> a new tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import print_json, status
from weft.core.errors import DataError, UsageError, shown

if TYPE_CHECKING:
    from weft.text.encoding import TextReport
    from weft.text.tokenizer import Tokenizer

SPACE = "\u2581"
"""Printed for a space inside a token, because spaces separate tokens."""

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model or a tokenizer.json.")]
Files = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="Plain or gzip; none or -: stdin.")
]
Train = Annotated[
    bool, typer.Option("--train", help="Train a tokenizer on the files and write it to MODEL.")
]
Kind = Annotated[str | None, typer.Option(help="character, word, bpe, unigram or byte.")]
VocabSize = Annotated[int | None, typer.Option(help="Maximum vocabulary size.")]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Convert text to lower case.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, e.g. normalise=nfc."),
]
Ids = Annotated[bool, typer.Option("--ids", help="Print ids instead of tokens.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Decode = Annotated[bool, typer.Option("--decode", help="Convert lines of ids to text.")]
Special = Annotated[
    bool | None,
    typer.Option("--special/--no-special", help="Add BOS and EOS (default, except with --decode)."),
]
MaxLen = Annotated[int | None, typer.Option(help="Truncate longer lines, and report how many.")]


def command(
    model: Model,
    files: Files = None,
    train: Train = False,
    kind: Kind = None,
    vocab_size: VocabSize = None,
    lowercase: Lowercase = False,
    change: Changes = None,
    ids: Ids = False,
    json: Json = False,
    decode: Decode = False,
    special: Special = None,
    max_len: MaxLen = None,
) -> None:
    """Show the tokens and ids of a text, or train a tokenizer.

    \b
    Example:
      weft --help | weft tokenize tok --train --kind bpe --vocab-size 400
      echo "Show the tokens." | weft tokenize tok
      echo "Show the tokens." | weft tokenize tok --ids | weft tokenize tok --decode
      weft tokenize tok --train train.de train.en --kind unigram --set normalise=nfc

    A token is printed as its text, with a mark for each space; bytes that are not whole characters
    are printed as <0xE8>. --json has the same tokens without marks.
    """
    settings = read_options(kind, vocab_size, lowercase, change or [])
    formats = [name for name, on in (("ids", ids), ("json", json), ("decode", decode)) if on]
    check_options(train, list(settings), formats)
    sources = files or ["-"]
    if train:
        train_tokenizer(Path(model), sources, settings, max_len)
    elif decode:
        print_text(model, sources, skip_special=special is not True)
    else:
        form = formats[0] if formats else "pieces"
        print_tokens(model, sources, form, special is not False, max_len)


def read_options(
    kind: str | None, vocab_size: int | None, lowercase: bool, changes: Sequence[str]
) -> dict[str, Any]:
    """The tokenizer settings that are set; the others keep their defaults."""
    from weft.core.config import parse_override

    settings: dict[str, Any] = dict(parse_override(change) for change in changes)
    named = {"kind": kind, "vocab_size": vocab_size, "lowercase": lowercase or None}
    return settings | {name: value for name, value in named.items() if value is not None}


def check_options(train: bool, settings: list[str], formats: list[str]) -> None:
    """Raise a UsageError for options that cannot be combined."""
    if train and formats:
        raise UsageError(f"--train and --{formats[0]} cannot be combined: train first.")
    if not train and settings:
        raise UsageError(
            f"{settings[0]} is a setting for training, but --train is missing. Add --train, or "
            f"leave {settings[0]} out."
        )
    if len(formats) > 1:
        raise UsageError(f"--{formats[0]} and --{formats[1]} cannot be combined. Choose one.")


def train_tokenizer(
    path: Path, sources: list[str], settings: dict[str, Any], max_len: int | None
) -> None:
    from weft.text.tokenizer import Tokenizer
    from weft.text.tokenizer_training import TokenizerConfig

    limit = {} if max_len is None else {"max_len": max_len}
    config = TokenizerConfig.from_dict({**settings, **limit}, where="tokenizer settings")
    tokenizer = Tokenizer.train_files(sources, config)
    file = tokenizer.save(path)
    names = ", ".join("standard input" if source == "-" else source for source in sources)
    status(
        f"{file}: a {config.kind} tokenizer with {tokenizer.vocab_size} ids, trained on {names}."
    )


def print_tokens(
    model: str, sources: list[str], form: str, add_special: bool, max_len: int | None
) -> None:
    """One line of tokens, ids or JSON per line of text."""
    from weft.checkpoint.formats import load_tokenizer
    from weft.text.encoding import TextReport
    from weft.text.token_labels import token_labels

    tokenizer, report = load_tokenizer(model), TextReport(has_warned=True)
    for _, _, line in numbered(sources):
        ids = tokenizer.encode(line, add_special, max_len, report=report)
        if form == "json":
            print_json(as_object(tokenizer, line, ids, add_special))
        else:
            shown = ids if form == "ids" else map(visible, token_labels(tokenizer, ids))
            print(" ".join(map(str, shown)))
    warn_losses(report)


def as_object(tokenizer: Tokenizer, line: str, ids: list[int], add_special: bool) -> dict[str, Any]:
    """Text, tokens, ids and character offsets; of a truncated line only the remaining tokens."""
    from weft.text.token_labels import token_labels

    before, after = tokenizer.frame if add_special else ([], [])
    spans = tokenizer.tokens(line, add_special=False).offsets[: len(ids) - len(before) - len(after)]
    offsets = [(0, 0)] * len(before) + spans + [(0, 0)] * len(after)
    return {"text": line, "tokens": token_labels(tokenizer, ids), "ids": ids, "offsets": offsets}


def visible(piece: str) -> str:
    """A token without spaces and line breaks, so that tokens on a line can be told apart."""
    marked = (SPACE if char == " " else char for char in piece)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in marked)


def warn_losses(report: TextReport) -> None:
    """Print how many lines were truncated and how many characters are unknown."""
    if report.cut_lines or report.unknown:
        status(report.summary())


def print_text(model: str, sources: list[str], skip_special: bool) -> None:
    """One line of text per line of ids."""
    from weft.checkpoint.formats import load_tokenizer

    tokenizer = load_tokenizer(model)
    for source, number, line in numbered(sources):
        print(tokenizer.decode(parse_ids(line, source, number), skip_special))


def parse_ids(line: str, source: str, number: int) -> list[int]:
    """'5 17 3' or '[5, 17, 3]' -> ids."""
    words = re.split(r"[\s,]+", line.strip().removeprefix("[").removesuffix("]").strip(" ,"))
    try:
        return [int(word) for word in words if word]
    except ValueError:
        # Python does not convert numbers of more than 4,300 digits
        others = (word for word in words if not re.fullmatch(r"[-+]?\d+", word))
        wrong = next(others, max(words, key=len))
        message = f"{shown(wrong)} is not an id. --decode reads integers separated by spaces."
        raise DataError(message, source, number) from None


def numbered(sources: list[str]) -> Iterator[tuple[str, int, str]]:
    """Name, line number and line. Empty standard input is not an error."""
    from weft.text.corpus import read_lines, source_name

    for source in sources:
        for number, line in enumerate(read_lines(source, allow_empty=source == "-"), start=1):
            yield source_name(source), number, line
