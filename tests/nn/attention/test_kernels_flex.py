"""The GPU kernel, reached on a CPU: FlexAttention uncompiled and forward only."""

import pytest
import torch

from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels.flex import flex_attention, flex_fits
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.masks import Blocks, Causal, Documents, Global, Padding, Window, dilated
from weft.nn.positions.base import Bias

B, T, S, H, K, C = 2, 5, 11, 4, 2, 16
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7, [2] * 9 + [3] * 2])


class Slope(Bias):
    """-0.1 * distance, for every head."""

    def at(self, t_T, q_BT, k_S):
        return (-0.1 * (q_BT[:, None, :, None] - k_S).abs()).expand(-1, H, -1, -1)


# uncompiled FlexAttention warns that it is slow, which is no news here
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("start", [6, torch.tensor([2, 6])], ids=str)
@pytest.mark.parametrize(
    "mask",
    [
        None,
        Causal(),
        Window(3) & Causal(),
        dilated(3, 2),
        Global((1, 9)) | Window(2),
        Documents(DOCUMENTS) & Causal(),
        Padding(torch.tensor([11, 4])),
        Blocks(torch.ones(4, 4).bool().tril(), 3),
    ],
    ids=lambda mask: type(mask).__name__,
)
def test_flex_equals_the_reference(mask, start):
    q, k, v = (torch.randn(B, n, h, C) for n, h in ((T, H), (S, K), (S, K)))
    view = DenseView(k, v, start)
    for bias, softcap in ((None, None), (Slope(), 2.0)):
        call = AttentionCall(q, view, mask, bias, softcap=softcap)
        with torch.no_grad():
            result = flex_attention(call)
        expected = reference_attention(call)
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_flex_is_for_gpus():
    q = torch.randn(B, T, H, C)
    assert not flex_fits(AttentionCall(q, DenseView(q, q)))
    far = torch.empty(B, T, H, C, device="meta")
    assert not flex_fits(AttentionCall(far, DenseView(far, far), bias=Slope()))
