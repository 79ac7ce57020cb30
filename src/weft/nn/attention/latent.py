"""Multi-head latent attention (MLA, DeepSeek-V2, 2024): x_BTD -> y_BTD. The cache stores one latent
row for all heads.

    c = norm(x W_down)                  A numbers, compressed keys and values of every head
    r = rotate(x W_rope)                O numbers, the only part of a key with a position
    row = [c ; r]                       what the cache stores: A + O numbers instead of 2 H C

Two forms of one result. Expanded: k_h = [c W_UK_h ; r], v_h = c W_UV_h, then ordinary heads.
Absorbed: W_UK is applied to the query and W_UV to the weighted sum, so that all heads read the row
itself: MQA with key [c ; r] and value c. Expanding costs A H (J + U) per key once; the absorbed
form costs H (2A - J - U) more per query and key, so it is cheaper for few queries.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.core.kv_spec import KVRows, KVSpec
from weft.core.shapes import check_shapes
from weft.nn.attention.base import AttentionContext, AttentionSlot
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.layer import Attention
from weft.nn.config import NormConfig
from weft.nn.linear import Linear
from weft.nn.norm import RMSNorm


class UpProjection(Linear):
    """W_UK and W_UV of all heads as one weight, [H * (J + U), A].

    Expanded, it projects latent rows to keys and values. Absorbed, its two parts are applied to the
    other side, one product per head:

        latent_h = q_h W_UK_h^T      J elements of a query become A, the size of the rows
        value_h  = sum_h W_UV_h      A elements of a weighted sum of rows become U
    """

    def __init__(self, rank: int, outputs: int, num_heads: int, nope_size: int) -> None:
        super().__init__(rank, outputs, bias=False)
        self.num_heads, self.nope_size = num_heads, nope_size

    def absorb_queries(self, nope_BTHJ: Tensor) -> Tensor:
        """nope_BTHJ -> latent_BTHA."""
        return self.absorb_queries_by(self.weight, nope_BTHJ)

    def project_values(self, out_BTHA: Tensor) -> Tensor:
        """out_BTHA -> out_BTHU."""
        return self.project_values_by(self.weight, out_BTHA)

    def absorb_queries_by(self, weight: Tensor, nope_BTHJ: Tensor) -> Tensor:
        return torch.einsum("bthj,hja->btha", nope_BTHJ, self.key_and_value(weight)[0])

    def project_values_by(self, weight: Tensor, out_BTHA: Tensor) -> Tensor:
        return torch.einsum("btha,hua->bthu", out_BTHA, self.key_and_value(weight)[1])

    def key_and_value(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """up_HJA for keys and up_HUA for values."""
        up_HCA = weight.unflatten(0, (self.num_heads, -1))
        return up_HCA[:, : self.nope_size], up_HCA[:, self.nope_size :]


class LatentAttention(Attention):
    """MLA with a decoupled rotary key and optional query compression."""

    def __init__(
        self, config: AttentionConfig, width: int, norm: NormConfig, slot: AttentionSlot
    ) -> None:
        self.width, self.num_heads = width, config.num_heads
        H = config.num_heads
        A, J, O, U = config.latent_sizes(width)  # noqa: E741  the letter key's own name
        self.kv_rank, self.nope_size, self.rope_size, self.value_size = A, J, O, U
        super().__init__(config, slot, scale=(J + O) ** -0.5)
        inner_norm = norm.for_heads(config.latent.norm_eps)
        self.query = self.build_query(width, config, inner_norm)
        self.kv_down = Linear(width, A + O, bias=config.bias)
        self.kv_norm = RMSNorm(inner_norm, A)
        self.kv_up = UpProjection(A, H * (J + U), H, J)
        self.out = Linear(H * U, width, bias=config.has_out_bias)
        window = None if slot.is_cross else config.pattern.kv_window(slot.layer)
        self.spec = KVSpec(config.kv_rows(width), is_cross=slot.is_cross, window=window)

    def build_query(self, width: int, config: AttentionConfig, norm: NormConfig) -> nn.Module:
        """One projection, or down-projection, norm and up-projection if queries are compressed."""
        size, rank = self.num_heads * (self.nope_size + self.rope_size), config.latent.query_rank
        if rank is None:
            return Linear(width, size, bias=False)
        down = Linear(width, rank, bias=config.bias)
        return nn.Sequential(down, RMSNorm(norm, rank), Linear(rank, size, bias=False))

    def forward(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Project, update the KV cache, attend in the cheaper form, and merge the heads."""
        check_shapes(x_BTD=x_BTD, D=self.width)
        if self.slot.is_cross:
            kv = self.cached_source_kv(ctx)
        else:
            kv = self.update_cache(self.project_kv(x_BTD, ctx), ctx)
        q_BTHC = self.query(x_BTD).unflatten(-1, (self.num_heads, -1))
        nope_BTHJ, rope_BTHO = q_BTHC.split((self.nope_size, self.rope_size), dim=-1)
        rope_BTHO = self.rotate_queries(rope_BTHO, ctx)
        form = self.absorbed if self.is_absorbed(x_BTD.shape[1], ctx) else self.expanded
        return self.out(form(nope_BTHJ, rope_BTHO, kv["latent"], ctx).flatten(2))

    def project_kv(self, x_BSD: Tensor, ctx: AttentionContext) -> KVRows:
        c_BSA, r_BSO = self.kv_down(x_BSD).split((self.kv_rank, self.rope_size), dim=-1)
        r_BSO = self.rotate_keys(r_BSO[:, :, None], ctx)[:, :, 0]
        return {"latent": torch.cat((self.kv_norm(c_BSA), r_BSO), dim=-1)}

    def is_absorbed(self, num_queries: int, ctx: AttentionContext) -> bool:
        """Over pages always, so that the result of a query does not depend on how many queries
        share its pass (batch invariance); else where it is cheaper."""
        return self.page_layout(ctx) is not None or self.absorbing_is_cheaper(num_queries)

    def absorbing_is_cheaper(self, num_queries: int) -> bool:
        """A H (J + U) per key for the expanded form against H (2A - J - U) per query and key."""
        form = self.config.latent.form
        if form != "auto":
            return form == "absorbed"
        more_per_pair = 2 * self.kv_rank - self.nope_size - self.value_size
        expand_per_key = self.kv_rank * (self.nope_size + self.value_size)
        return num_queries * more_per_pair < expand_per_key

    def expanded(
        self, nope_BTHJ: Tensor, rope_BTHO: Tensor, row_BSC: Tensor, ctx: AttentionContext
    ) -> Tensor:
        """Keys and values of every head, projected from the rows: out_BTHU."""
        q_BTHC = torch.cat((nope_BTHJ, rope_BTHO), dim=-1)
        c_BSA, r_BSO = row_BSC.split((self.kv_rank, self.rope_size), dim=-1)
        kv_BSHC = self.kv_up(c_BSA).unflatten(-1, (self.num_heads, -1))
        k_BSHJ, v_BSHU = kv_BSHC.split((self.nope_size, self.value_size), dim=-1)
        r_BSHO = r_BSO[:, :, None].expand(-1, -1, self.num_heads, -1)
        k_BSHC = torch.cat((k_BSHJ, r_BSHO), dim=-1)
        return self.scaled_dot_product(q_BTHC, k_BSHC, v_BSHU, ctx, self.bias(q_BTHC, ctx))

    def absorbed(
        self, nope_BTHJ: Tensor, rope_BTHO: Tensor, row_BSC: Tensor, ctx: AttentionContext
    ) -> Tensor:
        """All heads read the rows; W_UK is applied to the query and W_UV to the sum: out_BTHU."""
        bias = self.bias(torch.cat((nope_BTHJ, rope_BTHO), dim=-1), ctx)
        q_BTHC = torch.cat((self.kv_up.absorb_queries(nope_BTHJ), rope_BTHO), dim=-1)
        k_BSKC = row_BSC[:, :, None]
        v_BSKU = k_BSKC[..., : self.kv_rank]
        out_BTHA = self.scaled_dot_product(q_BTHC, k_BSKC, v_BSKU, ctx, bias)
        return self.kv_up.project_values(out_BTHA)
