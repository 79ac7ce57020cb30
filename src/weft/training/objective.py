"""The training objective: model and `Batch` -> summed loss over the target tokens.

Translation, lm and mlm alike: they differ in the batches that training/data/ makes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel
from weft.models.transformer import Encoder, EncoderDecoder
from weft.nn.lm_head import LMHead
from weft.text.packing import IGNORE
from weft.training.loss import LossConfig, token_loss


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together. `targets_BT` is IGNORE where nothing is predicted."""

    ids_BT: Tensor
    lengths_B: Tensor
    targets_BT: Tensor
    source_BS: Tensor | None = None
    source_lengths_B: Tensor | None = None
    documents_BT: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


def empty_batch(has_source: bool) -> Batch:
    """One token without a target: a process without rows still takes part in every collective."""
    one_BT = torch.zeros(1, 1, dtype=torch.long)
    length_B = torch.ones(1, dtype=torch.long)
    targets_BT = torch.full_like(one_BT, IGNORE)
    if not has_source:
        return Batch(one_BT, length_B, targets_BT)
    return Batch(one_BT, length_B, targets_BT, one_BT, length_B)


def batch_loss(model: AnyModel, batch: Batch, config: LossConfig) -> Tensor:
    """Sum over the target tokens; the caller divides by their number over all processes."""
    if config.rdrop:
        batch = duplicate_for_rdrop(batch)
    hidden_BTD = hidden_states(model, batch)
    is_target_BT = batch.targets_BT != IGNORE
    hidden_ND, targets_N = hidden_BTD[is_target_BT], batch.targets_BT[is_target_BT]
    return head_loss(model.head, hidden_ND, targets_N, config)


def hidden_states(model: AnyModel, batch: Batch) -> Tensor:
    """The last hidden states of the stack below the LM head: hidden_BTD."""
    if isinstance(model, EncoderDecoder):
        assert batch.source_BS is not None, "an encoder-decoder is trained on pairs"
        memory_BSD = model.encode(ForwardBatch(batch.source_BS, lengths_B=batch.source_lengths_B))
        target = ForwardBatch(
            batch.ids_BT,
            lengths_B=batch.lengths_B,
            memory_BSD=memory_BSD,
            memory_lengths_B=batch.source_lengths_B,
        )
        return model.decoder(target)
    stack = model.encoder if isinstance(model, Encoder) else model.decoder
    return stack(ForwardBatch(batch.ids_BT, batch.lengths_B, documents_BT=batch.documents_BT))


def head_loss(head: LMHead, hidden_ND: Tensor, targets_N: Tensor, config: LossConfig) -> Tensor:
    """The loss after the transform and scale of the LM head."""
    x_ND = head.transform(hidden_ND)
    if head.scale != 1.0:
        x_ND = x_ND * head.scale
    assert head.softcap is None, "training with a logits softcap is not implemented"
    return token_loss(x_ND, head.weight, head.bias, targets_N, config)


def duplicate_for_rdrop(batch: Batch) -> Batch:
    """Every row twice, all of pass 1 before pass 2; dropout draws a new mask for each."""

    def twice(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.cat((tensor, tensor))

    return Batch(
        ids_BT=torch.cat((batch.ids_BT, batch.ids_BT)),
        lengths_B=torch.cat((batch.lengths_B, batch.lengths_B)),
        targets_BT=torch.cat((batch.targets_BT, batch.targets_BT)),
        source_BS=twice(batch.source_BS),
        source_lengths_B=twice(batch.source_lengths_B),
        documents_BT=twice(batch.documents_BT),
    )
