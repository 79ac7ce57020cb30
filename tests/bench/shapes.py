"""Settings of tiny models that `weft convert --to hf` can write."""

GPT2 = {"attention": {"num_heads": 4, "bias": True}, "position": {"kind": "learned"}}
MARIAN = {
    "attention": {"num_heads": 4, "bias": True},
    "position": {"kind": "sinusoidal", "layout": "halves"},
    "feedforward": {"kind": "relu", "width": 64, "bias": True},
    "norm": {"kind": "layernorm", "placement": "after"},
    "embedding": {"tied": "all", "scale": True},
    "head": {"bias": True},
}
