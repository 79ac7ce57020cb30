"""RoPE, rotary position embedding (Su 2021): x_BTHO -> x_BTHO, pairs rotated by their position.

    (a, b) -> (a cos - b sin, b cos + a sin)

The product of a rotated query and a rotated key depends on their distance alone. Differs from the
paper: pairs are two halves of the head (Llama) or neighbors (the paper, GPT-J, DeepSeek); part of
the head may remain unrotated; rope_scaling.py changes the angles for sequences longer than those of
training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.nn.positions.base import Position
from weft.nn.positions.config import PositionShape, RotaryConfig
from weft.nn.positions.position_table import LastResult, PositionTable
from weft.nn.positions.rope_scaling import inv_freq


class Rotary(Position):
    """x cos + rotate_half(x) sin, where rotate_half(x) swaps the elements of each pair and the sign
    is part of sin."""

    config_type = RotaryConfig

    def __init__(self, config: RotaryConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.config = config
        self.rotary_size = shape.rotary_size
        self.size = config.rotated_size(shape.rotary_size)
        config.check_shape(shape)
        self.table = PositionTable(self.cos_sin)
        self.last: LastResult[tuple[Tensor, Tensor]] = LastResult()

    def rotate_queries(self, q_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        return self.rotate(q_BTHO, positions_BT, lengths)

    def rotate_keys(self, k_BTKO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        return self.rotate(k_BTKO, positions_BT, lengths)

    def rotate(self, x_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        check_shapes(x_BTHO=x_BTHO, O=self.rotary_size)
        cos_BTHO, sin_BTHO = self.cos_sin_at(positions_BT, lengths, x_BTHO.dtype)
        if self.size == x_BTHO.shape[-1]:
            return self.apply_rotation(x_BTHO, cos_BTHO, sin_BTHO)
        x_BTHO, rest = x_BTHO[..., : self.size], x_BTHO[..., self.size :]
        return torch.cat((self.apply_rotation(x_BTHO, cos_BTHO, sin_BTHO), rest), dim=-1)

    def apply_rotation(self, x_BTHO: Tensor, cos_BTHO: Tensor, sin_BTHO: Tensor) -> Tensor:
        # in place on new tensors: half the memory traffic. No addcmul: it may round once instead
        # of twice, depending on the alignment of an element
        return (x_BTHO * cos_BTHO).add_(self.rotate_half(x_BTHO).mul_(sin_BTHO))

    def rotate_half(self, x_BTHO: Tensor) -> Tensor:
        """A copy in which the two elements of each pair are swapped."""
        if self.config.layout == "halves":
            return x_BTHO.roll(self.size // 2, -1)
        return x_BTHO.unflatten(-1, (-1, 2)).roll(1, -1).flatten(-2)

    def cos_sin_at(
        self, positions_BT: Tensor, lengths: int | Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine of each token, each [B or 1, T, 1, O]; computed once per forward
        pass."""
        is_dynamic = self.config.scaling.kind == "dynamic"
        key = (positions_BT, dtype, lengths if is_dynamic else None)
        return self.last.get(key, lambda: self.look_up(positions_BT, lengths, dtype))

    # ordinary tensors even inside inference_mode: a cached result must be usable in training too
    @torch.inference_mode(False)
    @torch.no_grad()
    def look_up(
        self, positions_BT: Tensor, lengths: int | Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        cos_BTHO, sin_BTHO = self.stacked_cos_sin(positions_BT, lengths).to(dtype).unbind(2)
        return cos_BTHO, sin_BTHO

    def stacked_cos_sin(self, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        """[B or 1, T, 2, 1, O], from the table; computed for sequences beyond the original length
        of dynamic scaling, each of which has its own angles."""
        scaling = self.config.scaling
        if scaling.kind != "dynamic":
            return self.table.rows(positions_BT)
        lengths_list = lengths.tolist() if isinstance(lengths, Tensor) else [lengths]
        if max(lengths_list) <= scaling.original_max_len:
            return self.table.rows(positions_BT)
        sequences = zip(
            positions_BT.expand(len(lengths_list), -1).unbind(0), lengths_list, strict=True
        )
        return torch.stack([self.cos_sin(positions_T, n) for positions_T, n in sequences])

    def cos_sin(self, positions_N: Tensor, length: int = 0) -> Tensor:
        """Cosine and signed sine in a sequence of this length, [N, 2, 1, O], float32."""
        scaling = self.config.scaling
        frequencies = inv_freq(scaling, self.config.base, self.size, length)
        angles = positions_N[:, None].float() * frequencies.to(positions_N.device)
        factor = scaling.attention_scaling
        cos, sin = angles.cos() * factor, angles.sin() * factor
        cos_NO, sin_NO = self.arrange_pairs(cos, cos), self.arrange_pairs(-sin, sin)
        return torch.stack((cos_NO, sin_NO), dim=1)[:, :, None]

    def arrange_pairs(self, first: Tensor, second: Tensor) -> Tensor:
        """Values for the first and the second element of each pair, in the order of the layout."""
        if self.config.layout == "halves":
            return torch.cat((first, second), dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)
