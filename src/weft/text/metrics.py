"""Hypotheses and references -> corpus BLEU and chrF, each with sacreBLEU's signature, exact match
and character error rate.

    13a     what WMT papers report                   zh     Chinese: each character a token
    moses   sacremoses' tokens, then tok:none        char   each character; none: split at spaces
    auto    the default, by the references: zh for Chinese (sacreBLEU's choice for that language),
            char for other scripts without spaces, 13a otherwise

Scores are comparable only with equal signatures, so each comes with one. The published result for
Multi30k, 41.02 BLEU on test 2016 English-German (Wu 2021, Transformer-Tiny), was computed on
lower-cased text in Moses tokens with beam 5: `lowercase=True, tokenize="moses", language="de"`. It
is not comparable with cased 13a: report both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Literal, get_args

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from weft.core.errors import ConfigError, DataError, UsageError

Tokenization = Literal["auto", "13a", "moses", "zh", "char", "none"]
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
KANA = re.compile("[\u3040-\u30ff]")
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""Thai, Lao, Burmese, Khmer."""
TOKENIZATIONS: tuple[str, ...] = get_args(Tokenization)


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF from 0 to 100; exact match is the share of equal lines, from 0 to 1; the error
    rate is the edit distance per character of the references."""

    bleu: float
    chrf: float
    exact_match: float
    character_error_rate: float
    signature: str
    """Of the BLEU score."""
    chrf_signature: str

    def to_dict(self) -> dict[str, float | str]:
        return dict(vars(self))


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "auto",
    lowercase: bool = False,
    language: str = "en",
) -> Scores:
    """Corpus scores of line n against line n. `language` is used by moses only; chrF and exact
    match use the raw text, lower-cased if `lowercase`."""
    check_scorable(hypotheses, references, tokenize)
    tokenize = pick_tokenization(references) if tokenize == "auto" else tokenize
    equal = sum(is_equal(*pair, lowercase) for pair in zip(hypotheses, references, strict=True))
    bleu, signature = corpus_bleu(hypotheses, references, tokenize, lowercase, language)
    chrf = CHRF(lowercase=lowercase)
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    exact = equal / len(references)
    cer = character_error_rate(hypotheses, references, lowercase)
    return Scores(bleu, chrf_score, exact, cer, signature, str(chrf.get_signature()))


def pick_tokenization(references: Sequence[str]) -> str:
    """The tokenization for the script of most letters. In scripts without spaces, 13a takes a
    sentence for one token, and BLEU is 0."""
    letters = "".join(filter(str.isalpha, "".join(references)))
    han, kana, other = (len(script.findall(letters)) for script in (HAN, KANA, UNSPACED))
    if 2 * (han + kana + other) <= len(letters):
        return "13a"
    # Japanese has Han characters too, and Chinese no kana
    return "zh" if han > 10 * kana + other else "char"


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str,
    lowercase: bool,
    language: str,
) -> tuple[float, str]:
    """The score and its signature, which for moses includes the language and the tokenizer."""
    is_moses = tokenize == "moses"
    # force: sacreBLEU warns of text that looks tokenized, which is intended here
    bleu = BLEU(lowercase=lowercase, tokenize="none" if is_moses else tokenize, force=True)
    added = ""
    if is_moses:
        split = moses(language, lowercase)
        hypotheses, references = list(map(split, hypotheses)), list(map(split, references))
        added = f"|moses:{language}|sacremoses:{version('sacremoses')}"
    result = bleu.corpus_score(list(hypotheses), [list(references)]).score
    return result, f"{bleu.get_signature()}{added}"


def moses(language: str, lowercase: bool) -> Callable[[str], str]:
    """A line -> its Moses tokens, separated by spaces. Lower-cased before tokenization, like the
    published Multi30k text."""
    # imported here: it takes most of a second, and only this option needs it
    from sacremoses import MosesTokenizer  # type: ignore[import-untyped]

    tokenizer = MosesTokenizer(lang=language)
    split = partial(tokenizer.tokenize, aggressive_dash_splits=False, return_str=True, escape=False)
    return lambda line: str(split(line.lower() if lowercase else line))


def character_error_rate(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> float:
    """Edit distance of all lines per character of the references, ignoring white space at both
    ends. References without characters count as one."""
    changes = length = 0
    for pair in zip(hypotheses, references, strict=True):
        left, right = (text.lower() if lowercase else text for text in map(str.strip, pair))
        changes, length = changes + edit_distance(left, right), length + len(right)
    return changes / max(1, length)


def edit_distance(left: str, right: str) -> int:
    """Levenshtein distance in characters, one row of the table at a time."""
    columns = np.arange(len(right) + 1)
    codes, row = np.array([ord(char) for char in right], dtype=np.int64), columns
    for char in left:
        costs = np.minimum(row[1:] + 1, row[:-1] + (codes != ord(char)))
        costs = np.concatenate(([row[0] + 1], costs))
        # an insertion costs 1 more than the cell to its left, which may itself be an insertion
        row = np.minimum.accumulate(costs - columns) + columns
    return int(row[-1])


def is_equal(hypothesis: str, reference: str, lowercase: bool) -> bool:
    """Whether the texts are equal, ignoring white space at both ends."""
    left, right = hypothesis.strip(), reference.strip()
    return left.lower() == right.lower() if lowercase else left == right


def check_scorable(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> None:
    """Raise an error for input that cannot be scored."""
    if tokenize not in TOKENIZATIONS:
        raise ConfigError([f"tokenize is '{tokenize}': choose one of {', '.join(TOKENIZATIONS)}."])
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise UsageError("hypotheses and references are lists of str, not one str. Use [text].")
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} hypotheses but {len(references)} references: line n of one is "
            "scored against line n of the other. Make them equally many."
        )
    if not references:
        raise DataError("there are 0 lines to score. Give at least one.")
