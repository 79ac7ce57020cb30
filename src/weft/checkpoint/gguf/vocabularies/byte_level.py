r"""tokenizer.ggml.model = gpt2: byte-level BPE. tokenizer.ggml.pre names how text is split first.

A split is a sequence of patterns; each one divides what the previous ones left whole, and its
matches and the text between them are pieces alike. The patterns are those of the models' own
tokenizer.json files: llama.cpp's differ in form, as its engine lacks (?i:...), and have the same
effect except for NFC, which llama.cpp leaves out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.vocabularies.base import (
    BosEosFrame,
    GGUFVocabulary,
    TokenizerParts,
    TokenizerStep,
    add_special_tokens,
    cannot_write,
    read_frame,
)
from weft.core.errors import DataError, shown

log = logging.getLogger(__name__)

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Punctuation with the line ends after it, line ends, white space."""
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{LINES}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{LINES}"

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}|{PATHS}"
GPT4O = (
    rf"{BEFORE}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{PATHS}"
)

PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
"""Unicode's punctuation and the ASCII characters that it classifies as symbols."""
SCRIPTS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of scripts with two cases, as DeepSeek's first tokenizer lists them."""
EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizerSplit:
    """One way to split text."""

    patterns: tuple[str, ...]
    byte_patterns: tuple[str, ...] = ()
    """Patterns applied afterwards, to the letters that stand for bytes."""
    nfc: bool = False
    """Whether text is normalized to NFC first."""
    whole_words: bool = False
    """Whether a piece that is a token is not merged from parts (ignore_merges)."""
    add_bos: bool = False
    """Whether BOS is added where the file does not say."""


SPLITS: dict[str, PreTokenizerSplit] = {
    "gpt-2": PreTokenizerSplit((GPT2,)),
    "smollm": PreTokenizerSplit((r"\p{N}", GPT2)),
    "command-r": PreTokenizerSplit((r"\p{N}", GPT2), nfc=True),
    "mpt": PreTokenizerSplit((GPT2,), nfc=True),
    "llama-bpe": PreTokenizerSplit((LLAMA3,), whole_words=True, add_bos=True),
    "qwen2": PreTokenizerSplit((QWEN2,), nfc=True),
    "tekken": PreTokenizerSplit((TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": PreTokenizerSplit((GPT4O,)),
    "falcon": PreTokenizerSplit((PUNCTUATION, GPT2), byte_patterns=(r"\p{N}+", "[0-9][0-9][0-9]")),
    "default": PreTokenizerSplit(
        (PUNCTUATION.replace("`", ""), GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
    ),
    "deepseek-llm": PreTokenizerSplit(
        (
            "[\r\n]",
            rf"\s?[{SCRIPTS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            EAST,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizerSplit(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, r"\p{N}")),
    "deepseek-v3": PreTokenizerSplit(
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK)
    ),
}
"""By the value of tokenizer.ggml.pre."""

SAME_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (
        *("phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
        *("gigachat", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe", "exaone4"),
    ),
    "smollm": ("starcoder", "refact"),
    "mpt": ("olmo",),
    "llama-bpe": (
        *("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        "jina-v5-nano",
    ),
    "qwen2": ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    "gpt-4o": ("llama4", "kanana2", "talkie"),
}
"""Other values of tokenizer.ggml.pre with the same meaning, as in llama.cpp."""
ALIASES = {alias: name for name, aliases in SAME_SPLITS.items() for alias in aliases}


def read(vocabulary: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and whether BOS and EOS are added."""
    split = read_split(vocabulary)
    model = models.BPE(
        vocabulary.token_to_id(), read_merges(vocabulary), ignore_merges=split.whole_words
    )
    backend = Backend(model)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = [*isolate(split.patterns), to_bytes, *isolate(split.byte_patterns)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    add_special_tokens(backend, vocabulary)
    return backend, read_frame(vocabulary, begin=split.add_bos, end=False)


def isolate(patterns: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def read_split(vocabulary: GGUFVocabulary) -> PreTokenizerSplit:
    name = vocabulary.get("pre")
    if name is None:
        log.warning(
            "%s: tokenizer.ggml.pre is missing: text is split as llama.cpp does by default, which "
            "may not be how the model was trained",
            vocabulary.path,
        )
        return SPLITS["default"]
    known = ", ".join([*SPLITS, *ALIASES])
    if not isinstance(name, str) or ALIASES.get(name, name) not in SPLITS:
        vocabulary.fail("pre", shown(name), f"one of {known}")
    return SPLITS[ALIASES.get(name, name)]


def read_merges(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """BPE merges, best first."""
    lines = vocabulary.get("merges")
    if not isinstance(lines, list):
        raise DataError(
            "has no tokenizer.ggml.merges, which this kind of tokenizer needs. Use another file.",
            vocabulary.path,
        )
    merges = [tuple(line.split(" ")) for line in lines]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        value = f"{shown(' '.join(wrong))} in one entry"
        vocabulary.fail("merges", value, "two pieces separated by a space")
    return [(left, right) for left, right in merges]


def matches(parts: TokenizerParts) -> bool:
    return parts.model["type"] == "BPE" and "ByteLevel" in [s["type"] for s in parts.decoders]


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a byte-level BPE; a UsageError if no entry of SPLITS splits as it does."""
    return {
        "model": "gpt2",
        "pre": split_name(parts),
        "merges": [" ".join(merge) for merge in parts.model["merges"]],
    }


def split_name(parts: TokenizerParts) -> str:
    """The entry of SPLITS that splits text as this tokenizer does."""
    normalizer_types = [step["type"] for step in parts.normalizers]
    types = [step["type"] for step in parts.pre_tokenizers]
    # the step that turns bytes into letters may split before it does so
    border = types.index("ByteLevel") + 1 if "ByteLevel" in types else len(types)
    split = PreTokenizerSplit(
        tuple(p for step in parts.pre_tokenizers[:border] for p in patterns_of(step)),
        byte_patterns=tuple(p for s in parts.pre_tokenizers[border:] for p in patterns_of(s)),
        nfc=normalizer_types == ["NFC"],
        whole_words=bool(parts.model.get("ignore_merges")),
    )
    for name, known in SPLITS.items():
        if replace(known, add_bos=False) == split and normalizer_types in ([], ["NFC"]):
            return name
    raise cannot_write(f"GGUF has no name for the way it splits text; it has {', '.join(SPLITS)}")


def patterns_of(step: TokenizerStep) -> list[str]:
    """A step of a pre-tokenizer as patterns whose matches are isolated."""
    kind = step["type"]
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return [GPT2] if step.get("use_regex", True) else []
    if kind == "Digits":
        return [r"\p{N}" if step["individual_digits"] else r"\p{N}+"]
    if kind == "Punctuation" and step["behavior"] == "Contiguous":
        return [PUNCTUATION]
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        pattern = step["pattern"]
        return [pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])]
    raise cannot_write(f"it splits text by {kind} with settings that GGUF has no name for")
