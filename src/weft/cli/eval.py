"""`weft eval`: a model and held-out text -> BLEU, chrF and exact match, or perplexity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from weft.cli.options import (
    Activations,
    BatchTokens,
    Cache,
    Device,
    Model,
    PrefixCache,
    engine_settings,
    ready_model,
)
from weft.cli.output import print_json, print_table, progress
from weft.cli.translate import Beam, LengthPenalty, MaxTokens, one_line, warn_truncated
from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.loaded_model import LoadedModel

Pairs = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="SRC REF", help="Source file and reference file, line by line."),
]
Tsv = Annotated[str | None, typer.Option(metavar="FILE", help="Pairs in one tab-separated file.")]
Columns = Annotated[
    tuple[int, int], typer.Option(metavar="SRC REF", help="Columns of --tsv, counted from 1.")
]
Text = Annotated[str | None, typer.Option(metavar="FILE", help="Text file, for perplexity.")]
Documents = Annotated[
    Literal["line", "file"], typer.Option(help="What is scored as one text: a line or the file.")
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Case-insensitive scores.")]
Tokenize = Annotated[
    Literal["auto", "13a", "moses", "zh", "char", "none"],
    typer.Option(help="Tokenization of BLEU; auto: by the script of the references."),
]
Language = Annotated[str, typer.Option(help="Language of the references, for moses.")]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the translations to FILE, one per line.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def command(
    model: Model,
    pairs: Pairs = None,
    tsv: Tsv = None,
    columns: Columns = (1, 2),
    text: Text = None,
    documents: Documents = "line",
    beam: Beam = 1,
    length_penalty: LengthPenalty = 1.0,
    max_tokens: MaxTokens = None,
    batch_tokens: BatchTokens = 4096,
    lowercase: Lowercase = False,
    tokenize: Tokenize = "auto",
    language: Language = "en",
    out: Out = None,
    activations: Activations = "float32",
    cache: Cache = "1",
    prefix_cache: PrefixCache = "radix",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Score a model: BLEU, chrF and exact match on pairs, or perplexity on text.

    \b
    Example:
      weft eval runs/en-de --pairs test.en test.de --beam 5
      weft eval runs/en-de --pairs test.en test.de --lowercase --tokenize moses --language de
      weft eval runs/dates --tsv test.tsv --columns 1 2 --json
      weft eval runs/lm --text test.txt

    BLEU and chrF range from 0 to 100 and come with sacreBLEU's signature; exact match is the share
    of equal lines.
    """
    check_inputs(pairs, tsv, text, out)
    if out is not None:
        write_lines(out, [], mode="a")
    from weft.engine.loaded_model import check_model

    engine = engine_settings(cache, prefix_cache, batch_tokens, activations=activations)
    check_model(model, "translate" if text is None else "perplexity", max_tokens)
    loaded = ready_model(model, device, engine)
    if text is not None:
        result = score_text(loaded, text, documents)
    else:
        lines = read_both(pairs, tsv, columns)
        search = (beam, length_penalty, max_tokens)
        hypotheses = translate_all(loaded, [source for source, _ in lines], search)
        if out is not None:
            write_lines(out, hypotheses)
        references = [reference for _, reference in lines]
        result = score_lines(hypotheses, references, tokenize, lowercase, language)
    print_json(result) if json else print_table(["score", "value"], list(result.items()))


def check_inputs(
    pairs: tuple[str, str] | None, tsv: str | None, text: str | None, out: Path | None
) -> None:
    """Raise a UsageError unless there is exactly one input."""
    inputs = {"--pairs": pairs, "--tsv": tsv, "--text": text}
    used = [name for name, value in inputs.items() if value is not None]
    if not used:
        raise UsageError("there is nothing to score. Use --pairs SRC REF, --tsv FILE or --text.")
    if len(used) > 1:
        raise UsageError(f"{used[0]} and {used[1]} cannot be combined. Choose one.")
    if text is not None and out is not None:
        raise UsageError("--out is for translations, but --text has none. Leave --out out.")


def read_both(
    pairs: tuple[str, str] | None, tsv: str | None, columns: tuple[int, int]
) -> list[tuple[str, str]]:
    """Sources with their references."""
    from weft.text.corpus import read_columns, read_pairs

    if pairs is not None:
        return list(read_pairs(*pairs))
    assert tsv is not None, "check_inputs requires one of them"
    if min(columns) < 1:
        raise UsageError(f"--columns is {columns[0]} {columns[1]}: columns are counted from 1.")
    return [(row[0], row[1]) for row in read_columns(tsv, columns)]


def translate_all(
    loaded: LoadedModel, sources: list[str], search: tuple[int, float, int | None]
) -> list[str]:
    """One translation per source, each on one line."""
    loaded.tokenizer.report.has_warned = True
    with progress("translating", len(sources)) as step:
        translations = loaded.translate(sources, *search, step)
    warn_truncated(loaded)
    return [one_line(text) for text in translations]


def score_lines(
    hypotheses: list[str], references: list[str], tokenize: str, lowercase: bool, language: str
) -> dict[str, Any]:
    from weft.text.metrics import score

    scores = score(hypotheses, references, tokenize, lowercase, language)
    return {**scores.to_dict(), "lines": len(references)}


def score_text(loaded: LoadedModel, text: str, documents: str) -> dict[str, Any]:
    from weft.text.corpus import read_lines

    lines = list(read_lines(text))
    texts = lines if documents == "line" else ["\n".join(lines) + "\n"]
    with progress("scoring") as step:
        score = loaded.score(texts, step)
    return {"perplexity": score.perplexity, "loss": score.per_token, "tokens": score.tokens}


def write_lines(path: Path, lines: list[str], mode: Literal["w", "a"] = "w") -> None:
    """Write one line each. With no lines and mode "a" it only checks that the file is writable."""
    try:
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise DataError(f"cannot be written ({error.strerror}). Name another file.", path) from None
