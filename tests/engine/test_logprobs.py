"""Log-probabilities: the model's own, the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from weft.engine.logprobs import TokenLogprob, token_logprob


def test_they_are_the_models_distribution_and_the_likeliest_come_first() -> None:
    p = [0.1, 0.4, 0.2, 0.3]
    result = token_logprob(torch.tensor(p).log() + 5.0, 2, 3)
    assert result.id == 2 and result.logprob == pytest.approx(torch.tensor(0.2).log().item())
    assert [token for token, _ in result.top] == [1, 3, 2]
    assert [value for _, value in result.top] == pytest.approx(
        torch.tensor([0.4, 0.3, 0.2]).log().tolist()
    )
    assert result.top[2] == (result.id, result.logprob)


def test_equal_tokens_come_in_the_order_of_their_ids() -> None:
    result = token_logprob(torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0]), 0, 2)
    assert [token for token, _ in result.top] == [1, 2]


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    logits_V = torch.randn(7)
    assert len(token_logprob(logits_V, 1, 99).top) == 7
    assert token_logprob(logits_V, 3, 0) == TokenLogprob(3, float(logits_V.log_softmax(-1)[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    logits_BV = (torch.randn(13, 1003) * 5).to(dtype)
    ids = torch.randint(1003, (13,)).tolist()
    for row, token in enumerate(ids):
        alone = token_logprob(logits_BV[row : row + 1].clone()[0], token, 4)
        assert token_logprob(logits_BV[row], token, 4) == alone
