"""Strings on which tokenizers differ: a fixed list, and as many more as wanted from a seed.

Many scripts, emoji that are joined, combining marks, runs of spaces and newlines, digits, code,
contractions, names of special tokens, full-width forms, and characters drawn from all of Unicode.
"""

import random
import unicodedata
from functools import cache

SCRIPTS = (
    "the cat sat on the mat, and it's 12 o'clock",
    "\u00c4pfel, \u00d6l und Stra\u00dfe: s\u00fc\u00df \u1e9e",
    "na\u00efve fa\u00e7ade \u00e0 la carte, o\u00f9?",
    "\u4e2d\u6587\u5206\u8bcd\uff0c\u5f88\u96be\u3002\u6211\u5403\u4e86\u82f9\u679c",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\uff01\u30ab\u30bf\u30ab\u30ca",
    "\ud55c\uad6d\uc5b4 \ud1a0\ud070 \ub098\ub204\uae30",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u043b\u043a\u0430",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u061f",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u1f08\u03b8\u1fc6\u03bd\u03b1\u03b9",
    "Ti\u1ebfng Vi\u1ec7t c\u00f3 d\u1ea5u, \u0130stanbul \u0131\u015f\u0131k",
)
EMOJI = (
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\u2764\ufe0f\U0001f525",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    "\U0001f44d\U0001f3fd",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "1\ufe0f\u20e3",
)
MARKS = (
    "e\u0301\u0302\u0303",
    "\u0301x",
    "Z\u0351\u036b\u0343\u030c",
    "\u00e9e\u0301\u212b\ufb01\ufb03",
    "a\u0328\u0301o\u0308",
    "\u0e01\u0e33",
)
SPACES = (
    " ", "  ", "   ", "      ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", " \n ", "\u00a0",
    "\u3000", "\u2009\u200a", "\u2028", "\u2029", "\x0b\x0c", "\u200b", "\ufeff", "\u1680", "\x85",
)  # fmt: skip
NUMBERS = (
    "0", "7", "42", "1234567890", "3.14159", "-1e-9", "1,000,000", "0x1F", "12:34:56", "2024-02-29",
    "\u0663\u0664", "\u00bd\u00b2\u2460\u2167", "\uff11\uff12\uff13",
)  # fmt: skip
CODE = (
    "def f(x):\n    return x**2  # why\n",
    "for(int i=0;i<10;++i){a[i]<<=1;}",
    '<div class="x">&amp;</div>',
    "\tif a != b:\r\n\t\tprint('%s' % {\"k\": [1, 2]})",
    "SELECT * FROM t WHERE a >= 'b';",
    "https://example.org/a?b=c&d=%20#e",
    "$\\frac{a_1}{b^2}$ ~/.bashrc && ls -la",
    "snake_case camelCase PascalCase SCREAMING_CASE",
)
CONTRACTIONS = (
    "I'm", "you're", "we'll", "they'd", "it's", "can't", "I've", "DON'T", "He'S", "l'\u00e9t\u00e9",
    "rock\u2019n\u2019roll", "'twas", "''s", "o'", "'", "'ll 've",
)  # fmt: skip
NAMES = (
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<bos>",
    "<eos>", "<0x41>", "<0x0A>", "<extra_id_0>", "<start_of_turn>", "[INST]", "<<SYS>>",
    "\u2581", "\u2581\u2581the", "\u0120the", "##ing", "</w>", "@@",
)  # fmt: skip
LOOKALIKES = (
    "<s >", "< s>", "</s", "s>", "<|endoftext", "[cls]", "[ SEP ]", "<S>", "</S>", "<pad", "<<s>>",
    "\uff1cs\uff1e", "\uff1c/s\uff1e", "\uff3bSEP\uff3d", "<\u200bs>", "<unk", "\u2039s\u203a",
)  # fmt: skip
WIDE = (
    "\uff28\uff45\uff4c\uff4c\uff4f\u3000\uff37",
    "\uff76\uff9e\uff77\uff9e",
    "\u2120\u2122\u33a1",
    "\uff01\uff1f",
)
CONTROL = ("\x00", "\x01\x02", "\x1b[31m", "\x7f\x80", "\u202eabc\u202c", "\ufffd", "\ue000\uffff")

PLAIN = (SCRIPTS, EMOJI, MARKS, SPACES, NUMBERS, CODE, CONTRACTIONS, LOOKALIKES, WIDE, CONTROL)
FIXED = ("", *(text for group in PLAIN for text in group))
FIXED_FRAMED = tuple(
    f"{before}{text}{after}"
    for text in ("hello world", "\u00e4\u4e2d", "1 2")
    for before in ("", " ", "  ", "\n", "\t", "\u2581")
    for after in ("", " ", "  ", "\n")
)


@cache
def hard_strings(count: int = 1000, seed: int = 0, names: bool = False) -> tuple[str, ...]:
    """`count` strings, always the same ones; with `names`, special tokens are among them."""
    rng = random.Random(seed)
    fixed = [*FIXED, *FIXED_FRAMED, *(NAMES if names else ())]
    groups = (*PLAIN, NAMES) if names else PLAIN
    drawn = [mixed(rng, groups) for _ in range(max(0, count - len(fixed)))]
    return tuple((fixed + drawn)[:count])


def mixed(rng: random.Random, groups: tuple[tuple[str, ...], ...]) -> str:
    """Some atoms in a row, often with one space between them."""
    glue = rng.choice(("", " ", " "))
    return glue.join(atom(rng, groups) for _ in range(rng.randint(1, 9)))


def atom(rng: random.Random, groups: tuple[tuple[str, ...], ...]) -> str:
    """A string of a group, a part of one, a run of one character, or random characters."""
    kind = rng.random()
    text = rng.choice(rng.choice(groups))
    if kind < 0.45:
        return text
    if kind < 0.65:
        start = rng.randrange(len(text))
        return text[start : start + rng.randint(1, 8)]
    if kind < 0.75:
        return rng.choice("a z .-=_#1e\n\u2581") * rng.randint(2, 17)
    if kind < 0.9:
        return "".join(chr(rng.randint(0x20, 0x17F)) for _ in range(rng.randint(1, 6)))
    return "".join(character(rng) for _ in range(rng.randint(1, 4)))


def character(rng: random.Random) -> str:
    """Any assigned character, of the first plane or beyond."""
    while True:
        result = chr(rng.choice((rng.randint(0, 0xFFFF), rng.randint(0x10000, 0x1FFFF))))
        if unicodedata.category(result) not in ("Cs", "Cn"):
            return result
