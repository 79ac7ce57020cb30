"""transformers as a measured system: float32, `generate`, all prompts in one batch."""

from __future__ import annotations

from typing import Any

import torch
import transformers

BATCH = 64
"""Batch size of translation; sources in a batch have similar lengths."""


class System:
    """One model, a decoder or an encoder-decoder."""

    version = transformers.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        torch.set_num_threads(threads)
        config = transformers.AutoConfig.from_pretrained(model)
        is_pair = config.is_encoder_decoder
        kind: Any = transformers.AutoModelForSeq2SeqLM if is_pair else None
        kind = kind or transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy, all prompts at once and of one length, no token ends a text."""
        ids_BT = torch.tensor(prompts)
        output_BT = self.model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            eos_token_id=None,
        )
        return output_BT[:, ids_BT.shape[1] :].tolist()

    @torch.inference_mode()
    def translate(self, sources: list[list[int]], beam: int, max_tokens: int) -> list[list[int]]:
        """The best translation of each source, batch by batch, longest first."""
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        outputs: list[list[int]] = [[] for _ in sources]
        for begin in range(0, len(order), BATCH):
            indices = order[begin : begin + BATCH]
            batch = self.translate_batch([sources[i] for i in indices], beam, max_tokens)
            for index, ids in zip(indices, batch, strict=True):
                outputs[index] = ids
        return outputs

    def translate_batch(
        self, sources: list[list[int]], beam: int, max_tokens: int
    ) -> list[list[int]]:
        config = self.model.config
        lengths_B = torch.tensor([len(source) for source in sources])
        is_real_BS = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
        ids_BS = torch.full(is_real_BS.shape, config.pad_token_id)
        ids_BS[is_real_BS] = torch.tensor([token for source in sources for token in source])
        output_BT = self.model.generate(
            ids_BS,
            attention_mask=is_real_BS.long(),
            do_sample=False,
            num_beams=beam,
            length_penalty=1.0,
            early_stopping=beam > 1,
            max_new_tokens=max_tokens + 1,
            # as in Weft: at the limit only the end token is allowed
            forced_eos_token_id=config.eos_token_id,
        )
        return [up_to(ids[1:], config.eos_token_id) for ids in output_BT.tolist()]


def up_to(ids: list[int], end: int) -> list[int]:
    """The ids before the first end."""
    return ids[: ids.index(end)] if end in ids else ids
