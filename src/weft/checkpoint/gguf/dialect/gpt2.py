"""GPT-2: architecture `gpt2`. Matrices are [out, in] in GGUF and [in, out] in Hugging Face."""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.llama import refuse
from weft.checkpoint.weight_rules import WeightRule, layer, same, transposed

NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
PRODUCTS = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": gguf.rows("token_embd.weight"),
        "n_embd": gguf.size("embedding_length"),
        "n_inner": gguf.size("feed_forward_length"),
        "n_layer": gguf.size("block_count"),
        "n_head": gguf.size("attention.head_count"),
        "n_positions": gguf.size("context_length"),
        "layer_norm_epsilon": gguf.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


def write_config(hf: HFConfig) -> dict[str, Any]:
    # two other names of the same function
    if hf.get("activation_function") not in ("gelu_pytorch_tanh", "gelu_fast"):
        refuse(hf, "activation_function", "gelu_new")
    refuse(hf, "scale_attn_weights", True)
    refuse(hf, "scale_attn_by_inverse_layer_idx", False)
    width = hf.size("n_embd")
    return {
        "gpt2.vocab_size": hf.size("vocab_size"),
        "gpt2.context_length": hf.size("n_positions", 1024),
        "gpt2.embedding_length": width,
        "gpt2.block_count": hf.size("n_layer"),
        "gpt2.feed_forward_length": hf.size("n_inner", 4 * width),
        "gpt2.attention.head_count": hf.size("n_head"),
        "gpt2.attention.layer_norm_epsilon": hf.number("layer_norm_epsilon", 1e-5),
    }


def rules(config: Config) -> list[WeightRule]:
    found = layer("transformer.wte", "token_embd")
    found += layer("transformer.wpe", "position_embd")
    found += layer("transformer.ln_f", "output_norm", bias=True)
    found += [] if config.get("tie_word_embeddings", True) else layer("lm_head", "output")
    for i in range(int(config["n_layer"])):
        theirs, file = f"transformer.h.{i}", f"blk.{i}"
        for name, short in NORMS.items():
            found += layer(f"{theirs}.{name}", f"{file}.{short}", bias=True)
        for name, short in PRODUCTS.items():
            found.append(transposed(f"{theirs}.{name}.weight", f"{file}.{short}.weight"))
            found.append(same(f"{theirs}.{name}.bias", f"{file}.{short}.bias"))
    return found


ARCHITECTURE = GGUFArchitecture(
    name="gpt2",
    model_types=("gpt2",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    ignored=(r".*\.attn\.(masked_)?bias", r"lm_head\.weight"),
    prefixes=("transformer.",),
)
