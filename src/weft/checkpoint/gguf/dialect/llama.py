"""Llama, SmolLM2, Mistral: architecture `llama`. Also what qwen2, qwen3 and gemma3 share with it.

GGUF keeps the rows of q and k in another order: Hugging Face turns the first half of a head against
the second, llama.cpp each number against its neighbour, so the halves of every head are interleaved
there. Only this architecture has it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.rope import DIVISORS, read_rope, write_divisors, write_rope
from weft.checkpoint.weight_rules import WeightRule, changed, layer, same
from weft.core.errors import UsageError

ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
FEEDFORWARD = {
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_no_window()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **read_common(gguf),
        "attention_bias": gguf.has("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has("blk.0.ffn_up.bias"),
    }


def read_common(gguf: GGUFMetadata) -> dict[str, Any]:
    """What all architectures of this layout say alike."""
    gguf.check_supported()
    width, heads = gguf.size("embedding_length"), gguf.size("attention.head_count")
    head_size = gguf.size("attention.key_length", max(1, width // heads))
    gguf.refuse("attention.value_length", head_size)
    return {
        "vocab_size": gguf.rows("token_embd.weight"),
        "hidden_size": width,
        "intermediate_size": gguf.size("feed_forward_length"),
        "num_hidden_layers": gguf.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.size("attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": gguf.size("context_length"),
        "rms_norm_eps": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        **read_rope(gguf, head_size),
    }


def write_config(hf: HFConfig) -> dict[str, Any]:
    refuse(hf, "hidden_act", "silu")
    refuse(hf, "sliding_window", None)
    size = head_size(hf.values)
    return {**write_common(hf, "llama", can_divide=True), "llama.rope.dimension_count": size}


def write_common(hf: HFConfig, prefix: str, can_divide: bool = False) -> dict[str, Any]:
    refuse(hf, "partial_rotary_factor", 1.0)
    heads, size = hf.size("num_attention_heads"), head_size(hf.values)
    return {
        f"{prefix}.vocab_size": hf.size("vocab_size"),
        f"{prefix}.context_length": hf.size("max_position_embeddings", 2048),
        f"{prefix}.embedding_length": hf.size("hidden_size"),
        f"{prefix}.block_count": hf.size("num_hidden_layers"),
        f"{prefix}.feed_forward_length": hf.size("intermediate_size"),
        f"{prefix}.attention.head_count": heads,
        f"{prefix}.attention.head_count_kv": hf.size("num_key_value_heads", heads),
        f"{prefix}.attention.key_length": size,
        f"{prefix}.attention.value_length": size,
        f"{prefix}.attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps", 1e-6),
        **write_rope(hf, prefix, can_divide),
    }


def refuse(hf: HFConfig, name: str, allowed: Any) -> None:
    """A UsageError unless the setting is absent or the one that GGUF can say."""
    value = hf.get(name, allowed)
    if value != allowed:
        raise UsageError(
            f"{name} is {value!r}, which a GGUF file cannot say: it means {allowed!r}. "
            "Convert to hf instead."
        )


def head_size(config: Config) -> int:
    size = config.get("head_dim")
    return int(size or config["hidden_size"] // config["num_attention_heads"])


def rules(config: Config) -> list[WeightRule]:
    found = ends(config)
    has_bias, mlp_bias = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    heads = int(config["num_attention_heads"])
    groups = {"attn_q": heads, "attn_k": int(config.get("num_key_value_heads") or heads)}
    for i in range(int(config["num_hidden_layers"])):
        theirs, file = f"model.layers.{i}", f"blk.{i}"
        found += renamed(theirs, file, NORMS)
        found += renamed(theirs, file, FEEDFORWARD, mlp_bias)
        for name, short in ATTENTION.items():
            pair = (f"{theirs}.{name}", f"{file}.{short}")
            count = groups.get(short)
            found += permuted_rows(*pair, count, has_bias) if count else layer(*pair, has_bias)
    return found


def ends(config: Config) -> list[WeightRule]:
    """Words, the last norm and, where it is another table, the output."""
    tied = bool(config.get("tie_word_embeddings"))
    names = {hf: short for hf, short in ENDS.items() if not (tied and hf == "lm_head")}
    return [same(f"{hf}.weight", f"{short}.weight") for hf, short in names.items()]


def renamed(theirs: str, file: str, names: dict[str, str], bias: bool = False) -> list[WeightRule]:
    """Layers of one block that are the same on both sides."""
    return [
        rule
        for name, short in names.items()
        for rule in layer(f"{theirs}.{name}", f"{file}.{short}", bias)
    ]


def permuted_rows(hf: str, file: str, heads: int, bias: bool) -> list[WeightRule]:
    """Queries or keys, whose rows GGUF has in another order."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [
        changed(
            f"{hf}.{part}",
            f"{file}.{part}",
            lambda rows: to_halves(rows, heads),
            lambda rows: to_interleaved(rows, heads),
            permutes_rows=True,
        )
        for part in parts
    ]


def to_interleaved(rows: Tensor, heads: int) -> Tensor:
    """Hugging Face's rows -> GGUF's: the halves of each head interleaved."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """GGUF's rows -> Hugging Face's."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


ARCHITECTURE = GGUFArchitecture(
    name="llama",
    model_types=("llama", "mistral"),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    extra=lambda hf: write_divisors(hf, head_size(hf.values)),
    unread=(DIVISORS,),
    ignored=(r".*rotary_emb\.inv_freq", r"lm_head\.weight"),
    prefixes=("model.",),
)
