"""Tokenizer settings that exist are usable; those that cannot work say why."""

import pytest

from weft.core.errors import ConfigError
from weft.text.settings import TokenizerConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bpp"}, "'bpp' is not a known kind of tokenizer. Did you mean 'bpe'"),
        (
            {"vocab_size": 200},
            "vocab_size is 200 but the special tokens and the 256 bytes take 261",
        ),
        ({"vocab_size": 5, "byte_fallback": False}, "special tokens take 5 ids.*more than 5"),
        ({"kind": "byte", "byte_fallback": False}, "kind is 'byte': bytes are all it has"),
        ({"end": "end"}, "special token 'end' could be ordinary text"),
        ({"end": "<>"}, "special token '<>' could be ordinary text"),
        ({"extra_special": ("<0x41>",)}, "special token '<0x41>' could be ordinary text"),
        ({"extra_special": ("<pad>",)}, "special token '<pad>' is given twice"),
        ({"max_len": 0}, "max_len is 0"),
        ({"normalise": "nfx"}, "normalise is 'nfx': allowed are none, nfc, nfkc"),
        ({"vocab_sise": 300}, "Did you mean 'vocab_size'"),
    ],
)
def test_settings_that_cannot_work_say_why(settings, message):
    with pytest.raises(ConfigError, match=message):
        TokenizerConfig.from_dict(settings)


def test_special_tokens_come_first_and_bytes_after_them():
    config = TokenizerConfig(extra_special=("<de>", "<|user|>"))
    assert config.plan.reserved[:8] == (
        "<pad>", "<begin>", "<end>", "<unknown>", "<mask>", "<de>", "<|user|>", "<0x00>",
    )  # fmt: skip
    assert len(config.plan.reserved) == 7 + 256


def test_only_words_are_unknown_by_default():
    falls = {k: TokenizerConfig(kind=k).falls_back for k in ("character", "word", "bpe", "byte")}
    assert falls == {"character": True, "word": False, "bpe": True, "byte": True}
    assert TokenizerConfig(kind="word", byte_fallback=True).falls_back
