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
    from weft.text.paired_bootstrap import PairedScore

Other = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Second model, compared with the first."),
]
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
    other: Other = None,
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
      weft eval runs/a runs/b@best --pairs test.en test.de

    With two models, the difference is tested by sacreBLEU's paired bootstrap. BLEU and chrF range
    from 0 to 100 and come with sacreBLEU's signature; exact match is the share of equal lines.
    """
    check_inputs(pairs, tsv, text, out, other)
    if out is not None:
        write_lines(out, [], mode="a")
    from weft.engine.loaded_model import check_model

    engine = engine_settings(cache, prefix_cache, batch_tokens, activations=activations)
    models = [model, *([other] if other is not None else [])]
    for name in models:
        check_model(name, "translate" if text is None else "perplexity", max_tokens)
    if text is not None:
        results = [
            score_text(ready_model(name, device, engine), text, documents) for name in models
        ]
        print_scores(models, results, json)
        return
    lines, search = read_both(pairs, tsv, columns), (beam, length_penalty, max_tokens)
    sources, references = [source for source, _ in lines], [reference for _, reference in lines]
    translations = [
        translate_all(ready_model(name, device, engine), sources, search) for name in models
    ]
    if out is not None:
        write_lines(out, translations[0])
    print_translation_scores(
        models, translations, references, (tokenize, lowercase, language), json
    )


def print_translation_scores(
    models: list[str],
    translations: list[list[str]],
    references: list[str],
    options: tuple[str, bool, str],
    is_json: bool,
) -> None:
    """The scores of each model, and of two models the paired bootstrap."""
    from weft.text.paired_bootstrap import compare_systems

    results = [score_lines(each, references, *options) for each in translations]
    print_scores(models, results, is_json)
    if len(models) > 1:
        baseline, system = translations
        print_comparison(compare_systems(baseline, system, references, *options), is_json)


def print_scores(models: list[str], results: list[dict[str, Any]], is_json: bool) -> None:
    """The scores of one model or two; JSON: one object per model."""
    if is_json:
        for name, result in zip(models, results, strict=True):
            print_json({"model": name, **result} if len(models) > 1 else result)
        return
    rows = [(name, *(result[name] for result in results)) for name in results[0]]
    print_table(["score", *(models if len(models) > 1 else ["value"])], rows)


def print_comparison(scores: list[PairedScore], is_json: bool) -> None:
    """The paired bootstrap; JSON: one object."""
    if is_json:
        print_json({"paired_bootstrap": [score.to_dict() for score in scores]})
        return
    rows = [
        (s.metric, s.system - s.baseline, s.p_value, "yes" if s.p_value < 0.05 else "no")
        for s in scores
    ]
    columns = ["paired bootstrap", "difference", "p-value", "significant (p < 0.05)"]
    print_table(columns, rows)
    for each in scores:
        print(f"{each.metric}: {each.signature}")


def check_inputs(
    pairs: tuple[str, str] | None,
    tsv: str | None,
    text: str | None,
    out: Path | None,
    other: str | None = None,
) -> None:
    """Raise a UsageError unless there is exactly one input."""
    if out is not None and other is not None:
        raise UsageError("--out is for one model, but two are given. Leave --out out.")
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
