"""Scores of translations, held to sacreBLEU itself and to cases that can be counted by hand."""

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import ConfigError, DataError, UsageError
from weft.text.metrics import character_error_rate, edit_distance, score

HYPOTHESES = ["The cat sat on the mat.", "A man, a bike and a dog!", "Zwei Äpfel."]
REFERENCES = ["The cat sat on a mat.", "a man, a bike and two dogs!", "Zwei Äpfel."]
ROW = f"|version:{sacrebleu.__version__}"


def test_the_defaults_are_those_of_sacrebleu_with_its_signatures():
    result = score(HYPOTHESES, REFERENCES)
    assert result.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert result.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert result.signature == "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" + ROW
    assert result.chrf_signature == "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no" + ROW
    assert result.exact_match == pytest.approx(1 / 3)


def test_equal_lines_have_the_full_score():
    result = score(REFERENCES, REFERENCES)
    assert result.to_dict() | {"signature": "", "chrf_signature": ""} == {
        "bleu": pytest.approx(100),
        "chrf": pytest.approx(100),
        "exact_match": 1.0,
        "character_error_rate": 0.0,
        "signature": "",
        "chrf_signature": "",
    }


def test_lower_case_is_for_every_score():
    upper = [line.upper() for line in REFERENCES]
    assert score(upper, REFERENCES).exact_match == 0
    result = score(upper, REFERENCES, lowercase=True)
    assert (result.bleu, result.chrf, result.exact_match) == (
        pytest.approx(100),
        pytest.approx(100),
        1.0,
    )
    assert "case:lc" in result.signature and "case:lc" in result.chrf_signature


def test_moses_tokens_are_scored_as_they_are_and_the_signature_says_so(caplog):
    result = score(HYPOTHESES, REFERENCES, tokenize="moses", lowercase=True, language="de")
    cut_hypotheses = ["the cat sat on the mat .", "a man , a bike and a dog !", "zwei äpfel ."]
    cut_references = ["the cat sat on a mat .", "a man , a bike and two dogs !", "zwei äpfel ."]
    plain = sacrebleu.metrics.BLEU(tokenize="none", force=True)
    assert result.bleu == plain.corpus_score(cut_hypotheses, [cut_references]).score
    assert result.signature.startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:")
    assert "|moses:de|sacremoses:" in result.signature
    assert caplog.text == ""


def test_moses_leaves_words_with_dashes_whole_and_knows_the_language():
    result = score(["ein rot-weißes Auto z.B. da"], ["ein rot weißes Auto z.B. da"], "moses")
    split = score(["ein rot - weißes Auto z.B. da"], ["ein rot - weißes Auto z.B. da"], "moses")
    assert result.bleu < 100 and split.bleu == pytest.approx(100)
    lines = ["das ist z.B. Nr. 5 hier"], ["das ist z.B. Nr . 5 hier"]
    assert score(*lines, "moses", language="de").bleu < 100
    assert score(*lines, "moses", language="fr").bleu == pytest.approx(100)


@pytest.mark.parametrize("name", ["zh", "char", "none"])
def test_other_tokenizations_are_sacrebleus(name):
    hypotheses, references = ["我吃了苹果，它很甜"], ["我吃了香蕉，它很甜"]
    result = score(hypotheses, references, tokenize=name)
    assert result.bleu == sacrebleu.corpus_bleu(hypotheses, [references], tokenize=name).score
    assert f"|tok:{name}|" in result.signature


def test_white_space_at_the_ends_does_not_break_a_match():
    assert score(["a b ", "c"], ["a b", " c\t"]).exact_match == 1


def test_what_has_no_score_is_refused():
    with pytest.raises(DataError, match="2 hypotheses but 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there are 0 lines to score"):
        score([], [])
    with pytest.raises(UsageError, match="are lists of str, not one str"):
        score("a", ["a"])
    with pytest.raises(ConfigError, match="tokenize is 'mosess': choose one of auto, 13a"):
        score(["a"], ["a"], tokenize="mosess")


def slow_distance(left, right):
    """The recursion as it is defined."""
    if not left or not right:
        return len(left) + len(right)
    return min(
        slow_distance(left[1:], right) + 1,
        slow_distance(left, right[1:]) + 1,
        slow_distance(left[1:], right[1:]) + (left[0] != right[0]),
    )


@given(st.text("ab\u07ca", max_size=5), st.text("ab\u07ca", max_size=5))
def test_the_edit_distance_is_the_recursion(left, right):
    assert edit_distance(left, right) == slow_distance(left, right)


def test_the_character_error_rate_counts_over_the_whole_corpus():
    assert character_error_rate(["abc", "x"], ["abd", "xyz"]) == 3 / 6
    assert character_error_rate([" Ab "], ["ab"], lowercase=True) == 0
    assert character_error_rate([""], [""]) == 0


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        (["我吃了苹果，它很甜。", "OK！", "他在2016年来到Berlin。"], "zh"),
        (["私はりんごを食べました。", "東京です"], "char"),
        (["ผมกินแอปเปิล"], "char"),
        (["나는 사과를 먹었다.", "그것은 달다"], "13a"),
        (["I ate an apple (苹果).", "..."], "13a"),
        (["123", "!?"], "13a"),
    ],
)
def test_without_spaces_between_words_characters_are_counted(lines: list[str], tokens: str):
    """A Chinese sentence is one token to 13a, and one character that differs would make BLEU 0."""
    result = score(lines, lines)
    assert f"|tok:{tokens}|" in result.signature
    assert result == score(lines, lines, tokenize=tokens)
