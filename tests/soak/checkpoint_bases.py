"""The checkpoints that are mutated: tiny models of every family in every format, and tokenizers.

A base is a folder below the temporary folder of the system, written when it is needed first and
kept for later processes. `model_path` is what a user would name: the folder, or the .gguf file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from tests.checkpoint import fairseq_oracle
from tests.text.chat_templates import CHATML
from tests.text.hf import families as tokenizer_folders
from weft.checkpoint.families import family_of
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.gguf.writer import write_gguf
from weft.checkpoint.pickle_header import BIN_FILE, BIN_INDEX
from weft.checkpoint.safetensors_files import save_shards
from weft.checkpoint.tensor_source import split_state
from weft.checkpoint.weft_folder import Checkpoint, save_folder
from weft.models.build import build_model
from weft.text.hf import load_tokenizer
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

DATA = Path(__file__).parents[1] / "data"
VOCAB_SIZE = 1024
LINES = ["the cat sat on the mat", "a dog ate two apples"] * 3
DECODER: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
DEEPSEEK = {
    **DECODER,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
}
PAIR = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "is_encoder_decoder": True,
}
T5 = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "is_encoder_decoder": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **DECODER, "rope_parameters": LLAMA3},
    "mistral": {"model_type": "mistral", **DECODER, "sliding_window": 8},
    "qwen2": {"model_type": "qwen2", **DECODER, "rope_theta": 1e6, "rope_scaling": YARN},
    "qwen3": {"model_type": "qwen3", **DECODER, "head_dim": 8, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text",
        **DECODER,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "deepseek_v2": {"model_type": "deepseek_v2", **DEEPSEEK, "topk_method": "greedy"},
    "deepseek_v3": {"model_type": "deepseek_v3", **DEEPSEEK, "q_lora_rank": 32},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCAB_SIZE,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "eos_token_id": 0,
    },
    "bert": {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
    },
    "t5": {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu", "n_positions": 64},
    "bart": {"model_type": "bart", **PAIR},
    "marian": {"model_type": "marian", **PAIR},
}
TOKENIZERS: dict[str, Callable[[Path], Path]] = {
    "llama": tokenizer_folders.llama,
    "mistral": tokenizer_folders.llama3_json,
    "qwen2": tokenizer_folders.qwen2,
    "qwen3": tokenizer_folders.qwen2_json,
    "gemma3": tokenizer_folders.gemma,
    "deepseek_v2": tokenizer_folders.smollm_json,
    "deepseek_v3": tokenizer_folders.llama3_json,
    "gpt2": tokenizer_folders.gpt2,
    "bert": tokenizer_folders.bert_uncased,
    "t5": tokenizer_folders.t5,
    "bart": tokenizer_folders.bart,
    "marian": tokenizer_folders.marian,
}


def weights_of(values: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights under Hugging Face names."""
    family = family_of(values["model_type"], Path("base"))
    config = family.read_hf(HFConfig(values, Path("base")))
    return split_state(build_model(config, seed=0), family.rules(config))


def write_hf_folder(name: str, folder: Path, weights: str = "safetensors") -> None:
    TOKENIZERS[name](folder)
    values, state = CONFIGS[name], weights_of(CONFIGS[name])
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    if name == "bert":
        write_sentence_transformers(folder)
    if name == "qwen2":
        (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    if weights == "safetensors":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    elif weights == "shards":
        save_shards(state, folder, max_bytes=60_000)
    elif weights == "bin shards":
        write_bin_shards(state, folder)
    else:
        torch.save(state, folder / BIN_FILE, _use_new_zipfile_serialization=weights == "bin")


def write_bin_shards(state: dict[str, Tensor], folder: Path) -> None:
    names = list(state)
    files = {f"pytorch_model-0000{n + 1}-of-00002.bin": names[n::2] for n in range(2)}
    for file, part in files.items():
        torch.save({name: state[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / BIN_INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def write_sentence_transformers(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    modules = [{"idx": i, "type": f"sentence_transformers.models.{kind}"}
               for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))]  # fmt: skip
    files = {"1_Pooling/config.json": pooling, "sentence_bert_config.json": {"max_seq_length": 32}}
    for file, values in {**files, "modules.json": modules}.items():
        (folder / file).write_text(json.dumps(values), encoding="utf-8")


def write_gguf_file(name: str, folder: Path, tokenizer: str, file_type: str) -> None:
    values = CONFIGS[name]
    if tokenizer == "unigram":
        loaded = unigram_tokenizer()
    else:
        source = folder / "tokenizer"
        loaded = load_tokenizer(TOKENIZERS[tokenizer](source), CONFIGS[tokenizer]["model_type"])
        shutil.rmtree(source)
    template = CHATML if name == "qwen2" else None
    write_gguf(folder / "m.gguf", values, weights_of(values), loaded, template, file_type)


def unigram_tokenizer() -> Tokenizer:
    """A unigram model whose only step is for spaces, as GGUF needs it."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    backend.decoder = decoders.Metaspace(split=False)
    names = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return Tokenizer(backend, SpecialTokens("<pad>", None, "</s>", "<unk>"))


def write_fairseq(folder: Path) -> None:
    from tests.checkpoint.test_fairseq_files import write_folder

    write_folder(folder, fairseq_oracle.arguments())


def write_weft_folder(folder: Path) -> None:
    """A folder as the current version writes it."""
    tokenizer = Tokenizer.train(LINES, TokenizerConfig(vocab_size=320))
    settings = {**CONFIGS["llama"], "vocab_size": tokenizer.vocab_size}
    config = family_of("llama", folder).read_hf(HFConfig(settings, folder))
    save_folder(folder, Checkpoint(build_model(config, seed=0), tokenizer, "lm"))


def copy_stored(name: str, folder: Path) -> None:
    shutil.copytree(DATA / "before_redesign" / name, folder, dirs_exist_ok=True)


BASES: dict[str, Callable[[Path], None]] = {
    **{name: partial(write_hf_folder, name) for name in CONFIGS},
    "llama shards": partial(write_hf_folder, "llama", weights="shards"),
    "gpt2 bin": partial(write_hf_folder, "gpt2", weights="bin"),
    "t5 bin": partial(write_hf_folder, "t5", weights="bin"),
    "bart bin legacy": partial(write_hf_folder, "bart", weights="bin legacy"),
    "bert bin shards": partial(write_hf_folder, "bert", weights="bin shards"),
    "llama gguf": partial(write_gguf_file, "llama", tokenizer="llama", file_type="f32"),
    "qwen2 gguf": partial(write_gguf_file, "qwen2", tokenizer="qwen2", file_type="q8_0"),
    "qwen3 gguf": partial(write_gguf_file, "qwen3", tokenizer="qwen3", file_type="f16"),
    "gemma3 gguf": partial(write_gguf_file, "gemma3", tokenizer="gpt2", file_type="q8_0"),
    "deepseek gguf": partial(write_gguf_file, "deepseek_v2", tokenizer="gpt2", file_type="f16"),
    "gpt2 gguf": partial(write_gguf_file, "gpt2", tokenizer="gpt2", file_type="f32"),
    "bert gguf": partial(write_gguf_file, "bert", tokenizer="bert", file_type="q8_0"),
    "t5 gguf": partial(write_gguf_file, "t5", tokenizer="unigram", file_type="f16"),
    "fairseq": write_fairseq,
    "weft": write_weft_folder,
    "weft translator": partial(copy_stored, "translator"),
}
"""By name: functions that write a base into an empty folder."""


@cache
def root_folder() -> Path:
    """The folder of all bases; another one for another version of the files that write them."""
    sources = [Path(__file__), Path(tokenizer_folders.__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"weft-soak-{os.getuid()}-{digest}"


@cache
def base_folder(name: str) -> Path:
    """The folder of a base, written now if it is not there. Never change what is in it."""
    folder = root_folder() / name.replace(" ", "-")
    if not folder.is_dir():
        root_folder().mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=root_folder()))
        BASES[name](temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(temporary)
    return folder


def model_path(folder: Path) -> Path:
    file = folder / "m.gguf"
    return file if file.is_file() else folder
