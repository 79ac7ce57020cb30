"""`weft eval`: pairs to BLEU, chrF and exact match, text to perplexity."""

import json

import pytest

from tests.engine.tiny import LINES, tiny_folder
from weft.cli.app import Command, main
from weft.cli.translate import one_line
from weft.engine.loaded_model import load
from weft.text.metrics import score

COMMANDS = {"eval": Command("weft.cli.eval", "Score a model.")}
SOURCES = ["the cat sat", "a dog ate two apples", "它很甜", "the mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "lm", "decoder")


@pytest.fixture
def pairs(tmp_path, model):
    """Sources, and references of which the model says all but the last."""
    said = [one_line(text) for text in load(model).translate(SOURCES)]
    references = [*said[:-1], "something else altogether"]
    paths = tmp_path / "src.txt", tmp_path / "ref.txt"
    for path, lines in zip(paths, (SOURCES, references), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return [*paths, said, references]


def weft(*args):
    return main(["eval", *map(str, args)], COMMANDS)


def evaluate(capsys, *args):
    assert weft(*args, "--json") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def test_pairs_give_scores_with_their_signatures(model, pairs, capsys):
    source, reference, said, references = pairs
    result = evaluate(capsys, model, "--pairs", source, reference)
    assert result == {**score(said, references).to_dict(), "lines": 4}
    assert result["exact_match"] == 0.75
    assert result["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")


def test_the_table_for_people_has_the_same_scores(model, pairs, capsys):
    assert weft(model, "--pairs", *pairs[:2]) == 0
    shown = capsys.readouterr().out
    assert "exact_match" in shown and "0.75" in shown and "tok:13a" in shown


def test_tsv_columns_may_stand_in_any_order(model, pairs, tmp_path, capsys):
    source, reference, said, references = pairs
    expected = evaluate(capsys, model, "--pairs", source, reference)
    rows = [f"{i}\t{r}\t{s}\n" for i, (s, r) in enumerate(zip(SOURCES, references, strict=True))]
    assert not any("\t" in text for text in references), "the fixed weights say no tab"
    (tmp_path / "p.tsv").write_text("".join(rows), encoding="utf-8", newline="\n")
    result = evaluate(capsys, model, "--tsv", tmp_path / "p.tsv", "--columns", 3, 2)
    assert result == expected


def test_scoring_as_the_published_figure_was(model, pairs, capsys):
    source, reference, said, references = pairs
    options = ["--lowercase", "--tokenize", "moses", "--language", "de", "--beam", 2]
    result = evaluate(capsys, model, "--pairs", source, reference, *options)
    hypotheses = [one_line(text) for text in load(model).translate(SOURCES, beam=2)]
    expected = score(hypotheses, references, "moses", lowercase=True, language="de")
    assert result == {**expected.to_dict(), "lines": 4}
    assert "|case:lc|" in result["signature"] and "|moses:de|" in result["signature"]


def test_out_holds_the_translations_line_by_line(model, pairs, tmp_path, capsys):
    out = tmp_path / "hyp.txt"
    evaluate(capsys, model, "--pairs", *pairs[:2], "--out", out)
    assert out.read_bytes().decode() == "".join(f"{line}\n" for line in pairs[2])


def test_text_gives_perplexity(language_model, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    loaded = load(language_model)
    result = evaluate(capsys, language_model, "--text", path)
    loss = loaded.score(LINES)
    assert result == pytest.approx(
        {"perplexity": loss.perplexity, "loss": loss.per_token, "tokens": loss.tokens}
    )
    whole = evaluate(capsys, language_model, "--text", path, "--documents", "file")
    assert whole["tokens"] == len(loaded.tokenizer.encode("\n".join(LINES) + "\n")) - 1


def test_errors_are_one_sentence(model, language_model, pairs, tmp_path, capsys):
    source, reference = pairs[:2]
    short = tmp_path / "short.txt"
    short.write_text("one\n")
    out = tmp_path / "no" / "where.txt"
    both = ["--pairs", source, reference]
    cases = [
        ([model], 2, "there is nothing to score. Use --pairs"),
        ([model, *both, "--text", short], 2, "--pairs and --text cannot be combined"),
        ([model, "--tsv", short, "--text", short], 2, "--tsv and --text cannot be combined"),
        ([model, "--text", short, "--out", out], 2, "--out is for translations, but --text has"),
        ([model, "--text", short], 2, "this model is of kind encoder-decoder: perplexity needs"),
        ([language_model, *both], 2, "this model is of kind decoder: translate needs"),
        ([model, "--pairs", source, short], 1, f"{source}: has 4 lines, but {short} has 1"),
        ([model, "--pairs", source], 2, "Option '--pairs' requires 2 arguments"),
        ([model, "--tsv", short], 1, f"{short}, line 1: has 1 columns, but column 2 is wanted"),
        ([model, "--tsv", short, "--columns", 0, 1], 2, "--columns is 0 1: columns are counted"),
        (
            [model, *both, "--tokenize", "mosess"],
            2,
            "--tokenize: 'mosess' is not one of 'auto', '13a', ",
        ),
        ([model, *both, "--out", out], 1, f"{out}: cannot be written (No such file"),
        ([tmp_path / "gone", *both], 1, f"{tmp_path / 'gone'}: there is no such model"),
    ]
    for args, code, message in cases:
        assert weft(*args) == code, args
        shown = capsys.readouterr()
        assert shown.err.startswith(message) and shown.err.count("\n") == 1, shown.err
        assert shown.out == ""


def test_out_that_cannot_be_written_is_said_before_the_work(model, tmp_path, capsys):
    assert weft("gone", "--pairs", "no.src", "no.ref", "--out", tmp_path) == 1
    assert "cannot be written (Is a directory)" in capsys.readouterr().err
