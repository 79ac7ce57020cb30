"""The output head: x_BTD -> logits_BTV. One product with a word table, which may be the
embedding's own. And BERT's pooler: x_BTD -> x_BD, one vector a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import Config
from weft.native.kernels import is_inference_float32, linear_top_k
from weft.native.structs import ProductStruct
from weft.nn.hooks import is_looked_at
from weft.nn.linear import Linear, Product
from weft.nn.norm import NormConfig, build_norm

LEAST_ROWS = 6
"""For each thread: so many share what is read of the table."""


class HeadConfig(Config):
    """How the last vectors become logits."""

    bias: bool = False
    scale: float = Field(1.0, gt=0)
    """Factor on the vectors before the product (T5 with a tied table: width ** -0.5)."""
    softcap: float | None = Field(None, gt=0)
    """30.0: logits are squeezed into -30..30 by 30 tanh(x / 30) (Gemma 2)."""
    transform: bool = False
    """A dense layer, GELU and a norm before the product (BERT's masked-word head)."""


class Head(Product):
    """logits = softcap(transform(x) * scale . words^T + bias)."""

    def __init__(
        self, config: HeadConfig, words: nn.Embedding, norm: NormConfig, tied: bool
    ) -> None:
        super().__init__()
        vocab_size, width = words.weight.shape
        self.scale, self.softcap = config.scale, config.softcap
        self.weight = words.weight if tied else nn.Parameter(torch.empty_like(words.weight))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.transform = Transform(width, norm) if config.transform else nn.Identity()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.capped(self.product(self.entered(x_BTD)))

    def column(self, x_ND: Tensor, token: int) -> Tensor:
        """The logits of one token, logits_N: to the last bit what they are among all."""
        return self.capped(self.product(self.entered(x_ND), slice(token, token + 1)))[:, 0]

    def capped(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def entered(self, x: Tensor) -> Tensor:
        """What the product reads."""
        x = self.transform(x)
        return x if self.scale == 1.0 else x * self.scale

    def best(
        self, x_ND: Tensor, count: int, banned: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The best logits of each row that are not banned, their ids, and the logarithm of the sum
        of all exps, without the logits themselves. None where it takes the logits, where somebody
        looks at them, or where rows are so few that cores would wait: to the last bit it is the
        same."""
        packed = self.current()
        if packed is None or not packed.is_native or not is_inference_float32(x_ND):
            return None
        if self.softcap is not None or len(x_ND) < LEAST_ROWS * torch.get_num_threads():
            return None
        if is_looked_at(self.modules()):
            return None
        return linear_top_k(self.entered(x_ND), packed, self.bias, count, banned)

    def struct(self) -> ProductStruct | None:
        """The product, for the compiled library; None where there is more to do than it and a
        scale."""
        packed, is_plain_head = self.current(), type(self.transform) is nn.Identity
        if packed is None or not packed.is_native or self.softcap is not None or not is_plain_head:
            return None
        return ProductStruct(packed.address, None if self.bias is None else self.bias.data_ptr())


class Transform(nn.Module):
    """norm(gelu(x W + b)), BERT's step between the last layer and its word table."""

    def __init__(self, width: int, norm: NormConfig) -> None:
        super().__init__()
        self.dense = Linear(width, width)
        self.norm = build_norm(norm, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(x_BTD)))


class Pooler(nn.Module):
    """tanh(x_0 W + b): BERT's vector of a text, which its next-sentence training made."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, 0]))
