"""Self-attention weights: rows sum to 1, and a word's share is that of its tokens."""

import numpy as np
import pytest

from weft.core.errors import UsageError
from weft.look.attention_weights import self_attention
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

TEXT = "\u6211\u5403\u4e86\u82f9\u679c\uff0c\u5b83\u5f88\u751c"
IT, APPLE = "\u5b83", "\u82f9\u679c"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([TEXT], TokenizerConfig(kind="character", min_frequency=1))


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder", "decoder"])
def test_a_row_is_all_that_a_token_attends_to(tokenizer, kind):
    config = ModelConfig(
        kind=kind, vocab_size=tokenizer.vocab_size, width=32, num_layers=2, max_len=40,
        attention={"num_heads": 4},
    )  # fmt: skip
    model = build_model(config)
    seen = self_attention(model, tokenizer, TEXT)
    assert seen.tokens == ["<begin>", *TEXT, "<end>"]
    assert seen.weights_LHTS.shape == (2, 4, len(TEXT) + 2, len(TEXT) + 2)
    np.testing.assert_allclose(seen.weights_LHTS.sum(-1), 1, rtol=1e-5)
    if kind == "decoder":
        assert not np.triu(seen.weights_LHTS, 1).any()
    row, apple = 1 + TEXT.index(IT), 1 + TEXT.index(APPLE)
    expected = seen.weights_LHTS[:, :, row, apple] + seen.weights_LHTS[:, :, row, apple + 1]
    np.testing.assert_allclose(seen.share(TEXT, IT, APPLE), expected, rtol=1e-6)
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


def test_a_word_that_does_not_occur_once_is_refused(tokenizer):
    config = ModelConfig(kind="encoder", vocab_size=tokenizer.vocab_size, width=32, num_layers=1)
    seen = self_attention(build_model(config), tokenizer, TEXT)
    with pytest.raises(UsageError, match="occurs 0 times"):
        seen.share(TEXT, IT, "x")
