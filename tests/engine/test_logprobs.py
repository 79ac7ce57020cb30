"""Log-probabilities: the model's own, the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from weft.engine.logprobs import TokenLogprob, logprobs, token_logprob


def test_they_are_the_models_distribution_and_the_likeliest_come_first() -> None:
    p = [0.1, 0.4, 0.2, 0.3]
    found = token_logprob(torch.tensor(p).log() + 5.0, 2, 3)
    assert found.id == 2 and found.logprob == pytest.approx(torch.tensor(0.2).log().item())
    assert [token for token, _ in found.top] == [1, 3, 2]
    assert [value for _, value in found.top] == pytest.approx(
        torch.tensor([0.4, 0.3, 0.2]).log().tolist()
    )
    assert found.top[2] == (found.id, found.logprob)


def test_equal_tokens_come_in_the_order_of_their_ids() -> None:
    found = token_logprob(torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0]), 0, 2)
    assert [token for token, _ in found.top] == [1, 2]


def test_more_than_the_vocabulary_is_the_vocabulary_and_none_is_none() -> None:
    logits_BV = torch.randn(3, 7)
    whole, nothing, bare = logprobs(logits_BV, [1, 2, 3], [99, None, 0])
    assert whole is not None and len(whole.top) == 7 and nothing is None
    assert bare == TokenLogprob(3, float(logits_BV[2].log_softmax(-1)[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    logits_BV = (torch.randn(13, 1003) * 5).to(dtype)
    ids = torch.randint(1003, (13,)).tolist()
    together = logprobs(logits_BV, ids, [4] * 13)
    for row in range(13):
        (alone,) = logprobs(logits_BV[row : row + 1].clone(), ids[row : row + 1], [4])
        assert alone == together[row]
        apart = logprobs(logits_BV[row:], ids[row:], [4] * (13 - row))
        assert apart == together[row:]
