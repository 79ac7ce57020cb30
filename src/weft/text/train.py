"""Lines -> a trained tokenizer of the library: normalise, sample, learn, put the parts together.

Memory stays flat as the corpus grows: lines stream through once, a bounded sample waits on disk
(see spool), and the words that a kind counts in it are of bounded length.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.kinds import KINDS
from weft.text.settings import TokenizerConfig
from weft.text.spool import LineSpool

log = logging.getLogger(__name__)


def train_backend(lines: Iterable[str], config: TokenizerConfig) -> Backend:
    """Read the lines once; learn from a sample of them."""
    normalizer = build_normalizer(config)
    with LineSpool(config.sample_bytes, config.seed) as spool:
        spool.fill(lines if normalizer is None else normalised(lines, normalizer))
        if spool.kept_records == 0:
            raise DataError(
                f"the {spool.seen_lines} lines to train a tokenizer on are all empty. Give it text."
            )
        say_sample(spool)
        model = KINDS[config.kind].learn(spool, config.plan)
    return assemble(model, normalizer, config)


def say_sample(spool: LineSpool) -> None:
    if spool.was_thinned:
        log.warning(
            "tokenizer saw %d of %d lines (%d bytes; raise sample_bytes for more)",
            spool.kept_records, spool.seen_lines, spool.num_bytes,
        )  # fmt: skip


def assemble(
    model: models.Model, normalizer: normalizers.Normalizer | None, config: TokenizerConfig
) -> Backend:
    """The whole pipeline: normalise, cut into words, model, frame with begin and end, decode."""
    backend = Backend(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(KINDS[config.kind].pattern), "isolated")
    backend.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in config.special]
    )
    backend.post_processor = build_frame(config)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def build_normalizer(config: TokenizerConfig) -> normalizers.Normalizer | None:
    steps: list[normalizers.Normalizer] = []
    if config.normalise != "none":
        steps.append({"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}[config.normalise]())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps) if steps else None


def normalised(lines: Iterable[str], normalizer: normalizers.Normalizer) -> Iterator[str]:
    for line in lines:
        yield normalizer.normalize_str(line)


def build_frame(config: TokenizerConfig) -> processors.PostProcessor:
    """<begin> text <end>; of two texts: <begin> first <end> second <end>."""
    begin = [config.begin] if config.add_begin else []
    end = [config.end] if config.add_end else []
    single = [*begin, "$A", *end]
    pair = [*single, "$B:1", *(f"{name}:1" for name in end)]
    ids = [(name, config.special.index(name)) for name in (config.begin, config.end)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
