"""Two systems on the same lines -> their scores and whether the difference is significant, by
sacreBLEU's paired bootstrap resampling (Koehn 2004) of BLEU and chrF.

The p-value is the probability of a difference as large as the observed one if the systems were
equally good; the interval is that of the mean over the resamples with 95 % confidence. The seed is
sacreBLEU's, 12345 unless SACREBLEU_SEED is set, so that results can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from weft.text.metrics import check_scorable, moses, pick_tokenization

NUM_SAMPLES = 1000


@dataclass(frozen=True)
class PairedScore:
    """One metric of both systems."""

    metric: str
    baseline: float
    baseline_interval: float
    system: float
    system_interval: float
    p_value: float
    signature: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_systems(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    tokenize: str = "auto",
    lowercase: bool = False,
    language: str = "en",
    num_samples: int = NUM_SAMPLES,
) -> list[PairedScore]:
    """BLEU and chrF of two systems; the options are those of `metrics.score`."""
    for hypotheses in (baseline, system):
        check_scorable(hypotheses, references, tokenize)
    tokenize = pick_tokenization(references) if tokenize == "auto" else tokenize
    chrf = paired(CHRF(lowercase=lowercase), baseline, system, references, num_samples)
    added = ""
    if tokenize == "moses":
        split = moses(language, lowercase)
        baseline, system, references = ([*map(split, x)] for x in (baseline, system, references))
        tokenize, added = "none", f"|moses:{language}|sacremoses:{version('sacremoses')}"
    # force: sacreBLEU warns of text that looks tokenized, which is intended here
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    return [paired(metric, baseline, system, references, num_samples, added), chrf]


def paired(
    metric: BLEU | CHRF,
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    num_samples: int,
    added: str = "",
) -> PairedScore:
    """The test for one metric; `added` is put at the end of the signature."""
    systems: list[tuple[str, Sequence[str]]]
    systems = [("baseline", list(baseline)), ("system", list(system))]
    test = PairedTest(systems, {"metric": metric}, [list(references)], "bs", num_samples)
    signatures, scores = test()
    name = next(name for name in scores if name != "System")
    first, second = scores[name]
    assert isinstance(first, Result) and isinstance(second, Result), "only System has strings"
    # sacreBLEU gives the smallest p-value to two equal systems: no resample exceeds the mean
    p_value = 1.0 if list(baseline) == list(system) else second.p_value
    return PairedScore(
        metric=name,
        baseline=first.score,
        baseline_interval=number(first.ci),
        system=second.score,
        system_interval=number(second.ci),
        p_value=number(p_value),
        signature=f"{signatures[name]}{added}",
    )


def number(value: float | None) -> float:
    """A number that the bootstrap always has."""
    assert value is not None, "the paired bootstrap computes intervals and p-values"
    return float(value)
