"""Texts on which tokenizers differ: a thousand, the same ones each time."""

from __future__ import annotations

import random

FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\n\n\n",
    " \n \n",
    "\r\n",
    "a",
    " a",
    "a ",
    "  a  b   c    d ",
    "Hello world",
    "hello  world",
    "HELLO World",
    "don't I'll we've they're it's I'm you'd",
    "DON'T I'LL WE'VE THEY'RE IT'S I'M YOU'D",
    "don\u2019t \u2018quoted\u2019",
    "'s 't 're",
    "1 12 123 1234 12345 123456 1234567",
    "3.14159 -2,000,000 1e-9 0xFF 50%",
    "\u0663\u0664 \u00b2\u00b3 \u2167 \u00bd",
    "<|im_end|>",
    "<|endoftext|> </s> <s> [CLS] [SEP] <pad> <unk> <0x41> <|im_start|>user",
    "<extra_id_0> <mask> [MASK] [PAD] [unused1] <bos> <eos> <start_of_turn>",
    "def f(x):\n    return x ** 2  # done\n\n\nclass A:\n\tpass\n",
    "for(i=0;i<10;++i){a[i]+=b;}",
    "SELECT * FROM t WHERE x != 'y' AND z >= 3;",
    "https://example.org/a?b=c&d=%20#e",
    "a@b.co",
    "\u00fcber stra\u00dfe \u00c5ngstr\u00f6m na\u00efve caf\u00e9 S\u00e3o",
    "u\u0308ber cafe\u0301 A\u030angstro\u0308m",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0932\u093f\u092a\u093f",
    "\u0e44\u0e17\u0e22",
    "\u4e2d\u6587\u6d4b\u8bd5\uff0c\u6807\u70b9\u3002",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8",
    "\ud55c\uad6d\uc5b4 \ub744\uc5b4\uc4f0\uae30",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero",
    "\ufeffbom",
    "\u2581under \u2581\u2581two \u0120g",
    "x\u0300\u0301\u0302\u0303y",
    "\u202eright-to-left\u202c",
    "...!!!???---___",
    "((([[[{{{",
    "$1,234.56 \u20ac9 \u00a35",
    "\u017fs 'S '\u017f \u212a \u2126 \ufb01 \u0130\u0131",
    "A" * 300,
    "ab" * 200,
    " " * 50 + "x" + "\n" * 20,
    "\u7532" * 120,
]
"""Texts that tokenizers have got wrong."""

SCRIPTS = [
    (0x20, 0x7E),
    (0xA0, 0x17F),
    (0x300, 0x36F),
    (0x370, 0x3FF),
    (0x400, 0x4FF),
    (0x590, 0x5FF),
    (0x600, 0x6FF),
    (0x900, 0x97F),
    (0xE00, 0xE7F),
    (0x1100, 0x11FF),
    (0x1E00, 0x1EFF),
    (0x2000, 0x206F),
    (0x20A0, 0x20BF),
    (0x2150, 0x218F),
    (0x2190, 0x22FF),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xFE00, 0xFE0F),
    (0xFF01, 0xFF5E),
    (0x1F300, 0x1F6FF),
    (0x10400, 0x1044F),
    (0x20000, 0x2A6DF),
]
WORDS = [
    "the",
    "of",
    "and",
    "token",
    "model's",
    "won't",
    "I'D",
    "don't",
    "2024",
    "007",
    "3,141",
    "naive",
    "caf\u00e9",
    "\u6211\u4eec",
    "\u043c\u0438\u0440",
    "foo_bar()",
    "--x",
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "\u00a0", "\u3000", "    "]


def hard_texts(count: int = 1000, seed: int = 0) -> list[str]:
    """The fixed texts, mixtures of words and spaces, and characters of all scripts."""
    rng = random.Random(seed)
    result = list(FIXED)
    while len(result) < count:
        kind = rng.randrange(4)
        if kind == 0:
            parts = [rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(1, 12))]
            result.append("".join(parts))
        elif kind == 1:
            low, high = rng.choice(SCRIPTS)
            result.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 25))))
        elif kind == 2:
            result.append("".join(letter(rng) for _ in range(rng.randrange(1, 40))))
        else:
            pool = [*WORDS, *SPACES, *FIXED[10:40]]
            result.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 6))))
    return result[:count]


def letter(rng: random.Random) -> str:
    """A character of any script, or a space, a digit or a line end."""
    if rng.random() < 0.3:
        return rng.choice(" \n\t0123456789'.,-<>|[]_/\\")
    low, high = rng.choice(SCRIPTS)
    return chr(rng.randint(low, high))
