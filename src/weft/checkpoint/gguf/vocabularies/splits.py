r"""Where a byte-level BPE cuts text before it joins bytes: the kinds that tokenizer.ggml.pre names.

A kind is a row of patterns; each one cuts what the ones before it left whole, and what a pattern
matches and what lies between its matches are pieces alike. The patterns are those of the models'
own tokenizer.json files: llama.cpp's differ in form, as its engine lacks (?i:...), and are the same
in effect but for the normal form (NFC), which llama.cpp leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Marks with the line ends behind them, line ends, white space."""
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
"""Unicode's punctuation and those signs of ASCII that it calls symbols."""
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
class Split:
    """One kind of cutting."""

    patterns: tuple[str, ...]
    letters: tuple[str, ...] = ()
    """Patterns for what comes after them: the letters that stand for bytes."""
    nfc: bool = False
    """Whether text is put into the composed normal form first."""
    whole_words: bool = False
    """Whether a piece that is a token is taken whole, without joining."""
    add_begin: bool = False
    """Whether texts have a begin token where the file does not say."""


SPLITS: dict[str, Split] = {
    "gpt-2": Split((GPT2,)),
    "smollm": Split((r"\p{N}", GPT2)),
    "command-r": Split((r"\p{N}", GPT2), nfc=True),
    "mpt": Split((GPT2,), nfc=True),
    "llama-bpe": Split((LLAMA3,), whole_words=True, add_begin=True),
    "qwen2": Split((QWEN2,), nfc=True),
    "tekken": Split((TEKKEN,), whole_words=True, add_begin=True),
    "gpt-4o": Split((GPT4O,)),
    "falcon": Split((PUNCTUATION, GPT2), letters=(r"\p{N}+", "[0-9][0-9][0-9]")),
    "default": Split((PUNCTUATION.replace("`", ""), GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "deepseek-llm": Split(
        (
            "[\r\n]",
            rf"\s?[{SCRIPTS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            EAST,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, r"\p{N}")),
    "deepseek-v3": Split((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK)),
}
"""Kinds by the names that files give them."""

ALIASES = {
    "phi-2": "gpt-2",
    "starcoder": "smollm",
    "refact": "smollm",
    "olmo": "mpt",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "llama4": "gpt-4o",
}
"""Other names of the same kinds."""
