"""Text that the tests of this room share: a small corpus in three scripts, and hard strings."""

from functools import cache

from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

CORPUS = [
    "我吃了苹果，它很甜",
    "他吃了苹果和香蕉，它们很甜",
    "the cat sat on the mat and ate 12 apples",
    "The dog sat near the cat; they ate apples.",
    "القطة أكلت التفاحة وهي حلوة",
    "ein Apfel, zwei \u00c4pfel: s\u00fc\u00df",
] * 4

HARD = {
    "nothing": "",
    "chinese": "我吃了苹果，它很甜。龘",
    "arabic": "مرحبا بالعالم، كيف حالك؟",
    "emoji": "👩‍👩‍👧‍👦 ❤️ 🇩🇪 👍🏽",
    "combining": "e\u0301\u0302\u0303 \u0301x Z\u0351\u036b\u0343",
    "composed and not": "\u00e9 e\u0301 \u212b \ufb01",
    "control": "\x00\x01\x1b[0m\x1f\x7f\x80\x85",
    "separators": "a\u2028b\u2029c\x0bd\x0ce\rf\ng\r\n",
    "direction": "\u200f\u202eabc\u202c \ufeff\u200b\u200d",
    "spaces": "  a   b\t\tc \u00a0\u3000 ",
    "special names": "<end><pad> <unknown> <mask><begin>",
    "byte names": "<0x41><0x0A> <0x",
    "markers of others": "\u2581\u2581the \u0120 ##x </w> @@",
    "planes": "\ue000\uffff\U0010ffff\U0001f600",
    "numbers": "1234567 3.14 \u0663\u00bd",
}


@cache
def trained(kind: str = "bpe", **settings: object) -> Tokenizer:
    """A small tokenizer; the same settings give the same object. Do not change it."""
    return Tokenizer.train(
        CORPUS, TokenizerConfig.from_dict({"kind": kind, "vocab_size": 420, **settings})
    )
