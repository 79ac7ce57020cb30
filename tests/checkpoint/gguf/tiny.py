"""Tiny random models of `transformers` and a small tokenizer, for files to be made of."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer

VOCAB = 290
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
GEMMA = {**SIZES, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
DEEPSEEK = {
    **SIZES,
    "num_key_value_heads": 6,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "routed_scaling_factor": 1.5,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

MODELS: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "llama tied": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama 3": (
        LlamaForCausalLM,
        LlamaConfig(**{**SIZES, "hidden_size": 96}, rope_parameters=LLAMA3),
    ),
    "llama biases": (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama heads": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=12)),
    "llama yarn": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=YARN)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    "qwen2 yarn": (Qwen2ForCausalLM, Qwen2Config(**SIZES, rope_parameters=YARN)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{**GEMMA, "num_hidden_layers": 7})),
    "gemma3 every second": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        ),
    ),
    "deepseek 2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(
            **{**DEEPSEEK, "q_lora_rank": None},
            topk_method="greedy",
            n_group=1,
            topk_group=1,
            norm_topk_prob=False,
        ),
    ),
    "deepseek 3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(**DEEPSEEK, n_group=2, topk_group=1, norm_topk_prob=True),
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=48,
            n_layer=2,
            n_head=6,
            n_positions=64,
            bos_token_id=None,
            eos_token_id=0,
            attn_implementation="eager",
        ),
    ),
    "bert": (
        BertModel,
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=80,
            max_position_embeddings=40,
            type_vocab_size=2,
            attn_implementation="eager",
        ),
    ),
    "t5": (T5ForConditionalGeneration, T5Config(**T5)),
    "t5 gated": (
        T5ForConditionalGeneration,
        T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
}


@cache
def original(name: str) -> PreTrainedModel:
    """The model, with random values everywhere, so that no zero or one hides a mistake."""
    kind, config = MODELS[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    if name == "t5 gated":
        # a new model of transformers 5 has one table whatever its settings; files have two
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCAB, config.d_model))
        model.config.tie_word_embeddings = False
    with torch.no_grad():
        # kept buffers too: DeepSeek's router has one
        for tensor in {id(t): t for t in model.state_dict().values()}.values():
            tensor.add_(torch.randn(tensor.shape) * 0.1)
    return model


def saved(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of its files."""
    original(name).save_pretrained(folder / "saved")
    return load_file(folder / "saved" / "model.safetensors")


@cache
def tokenizer() -> Tokenizer:
    """A byte-level BPE whose <end> has the id 0."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the words of a text", "other words in the text"], trainer)
    return Tokenizer(backend, SpecialTokens(end="<end>"))
