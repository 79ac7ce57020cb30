"""`write_gguf`: kinds of file, whole or not at all, and what it refuses."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from weft.checkpoint.gguf import writer
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.reader import open_gguf
from weft.checkpoint.gguf.vocabularies import read_tokenizer
from weft.checkpoint.gguf.writer import write_gguf
from weft.core.errors import ConfigError, DiskError, UsageError

from .tiny import SIZES, VOCAB, original, saved, tokenizer

WIDTH = 64
CONFIG = {
    **{key: value for key, value in SIZES.items() if key != "attn_implementation"},
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def tensors() -> dict[str, torch.Tensor]:
    """A Llama of one layer; its down projection has rows of 80, which 32 does not divide."""
    shapes = {
        "embed_tokens": (VOCAB, WIDTH),
        "norm": (WIDTH,),
        "layers.0.input_layernorm": (WIDTH,),
        "layers.0.post_attention_layernorm": (WIDTH,),
        "layers.0.self_attn.q_proj": (WIDTH, WIDTH),
        "layers.0.self_attn.k_proj": (32, WIDTH),
        "layers.0.self_attn.v_proj": (32, WIDTH),
        "layers.0.self_attn.o_proj": (WIDTH, WIDTH),
        "layers.0.mlp.gate_proj": (80, WIDTH),
        "layers.0.mlp.up_proj": (80, WIDTH),
        "layers.0.mlp.down_proj": (WIDTH, 80),
    }
    generator = torch.Generator().manual_seed(2)
    return {
        f"model.{name}.weight": torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def write(path: Path, kind: Any = "f32", **changes: Any) -> Path:
    given = {name: tensor for name, tensor in tensors().items() if name not in changes}
    return write_gguf(path, {**CONFIG, **changes}, given, tokenizer(), "{{ messages }}", kind)


def as_kind(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """What a tensor is after the library has packed and unpacked it."""
    if tensor.ndim == 1:
        return tensor
    name = "F16" if kind == "q8_0" and tensor.shape[-1] % 32 else kind.upper()
    packed = gguf.quants.quantize(tensor.numpy(), GGMLQuantizationType[name])
    return torch.from_numpy(gguf.quants.dequantize(packed, GGMLQuantizationType[name]))


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_each_kind_comes_back_as_the_library_packs_it(kind: str, tmp_path: Path) -> None:
    config, source, result = open_gguf(write(tmp_path / "x.gguf", kind))
    assert source.shapes.keys() == tensors().keys()
    for name, tensor in tensors().items():
        # blocks lie along rows, so that the order of rows does not change them
        assert torch.equal(source.read(name), as_kind(tensor, kind)), name
    assert {**CONFIG, **config} == {**config, **CONFIG, "model_type": "llama"}
    assert result["tokenizer.chat_template"] == "{{ messages }}"
    text = "words of the text, 123"
    assert read_tokenizer(result, source.path).encode(text) == tokenizer().encode(text)


def test_types_and_general_metadata(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "small.q8.gguf", "q8_0"))
    types = {name: info.type.name for name, info in header.tensors.items()}
    assert types["output_norm.weight"] == types["blk.0.attn_norm.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "F16"
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == "Q8_0"
    result = header.metadata
    assert (result["general.file_type"], result["general.quantization_version"]) == (7, 2)
    assert result["general.name"] == "small.q8"
    assert result["tokenizer.ggml.eos_token_id"] == 0


def test_tables_that_are_added_stay_in_full(tmp_path: Path) -> None:
    path = tmp_path / "b.gguf"
    config = original("bert").config.to_dict()
    write_gguf(path, config, saved("bert", tmp_path), tokenizer(), file_type="f16")
    types = {name: info.type.name for name, info in read_header(path).tensors.items()}
    assert types["position_embd.weight"] == types["token_types.weight"] == "F32"
    assert types["token_embd.weight"] == "F16"


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write(tmp_path / "x.gguf", "f16"))
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("llama.attention.head_count_kv").contents() == 2
    actual = {tensor.name: tensor for tensor in reader.tensors}
    expected = tensors()["model.embed_tokens.weight"].numpy().astype(np.float16)
    assert np.array_equal(actual["token_embd.weight"].data, expected)


def test_a_second_end_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", eos_token_id=[0, 5])
    config, _, result = open_gguf(path)
    assert result["tokenizer.ggml.eot_token_id"] == 5
    assert config["eos_token_id"] == [0, 5]


def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.gguf")
    before = path.read_bytes()
    calls = iter(range(3))

    def fails(tensor: writer.TensorPlan) -> Any:
        next(calls)
        return writer.quantize_tensor(tensor.type, tensor.make())

    monkeypatch.setattr(writer, "quantize_plan", fails)
    with pytest.raises(StopIteration):
        write(path, "f16")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.gguf"]


@contextmanager
def limited_files(num_bytes: int) -> Iterator[None]:
    """Writes beyond this size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("missing", [1, 300, 3000, 20000])
def test_a_write_that_fails_is_an_error_wherever_it_happens(tmp_path: Path, missing: int) -> None:
    """numpy writes arrays through a buffer and ignores errors when it is flushed."""
    path = write(tmp_path / "x.gguf", "f16")
    before = path.read_bytes()
    with limited_files(len(before) - missing), pytest.raises(DiskError, match="File too large"):
        write(path, "f16")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_array_is_written_or_its_error_is_raised(tmp_path: Path) -> None:
    array = np.arange(100, dtype=np.float16).view(writer.CheckedArray)
    with limited_files(150), pytest.raises(OSError, match="File too large"):  # noqa: SIM117
        with (tmp_path / "a").open("wb") as file:
            array.tofile(file)
    with (tmp_path / "a").open("wb") as file:
        array[::2].tofile(file)
    assert (tmp_path / "a").read_bytes() == array[::2].tobytes()


class Streamed(Mapping[str, torch.Tensor]):
    """Tensors that are made when asked for and counted while they live."""

    def __init__(self) -> None:
        self.given = tensors()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.given[name] * 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


def test_tensors_are_packed_one_at_a_time(tmp_path: Path) -> None:
    write(tmp_path / "warm.gguf", "q8_0")
    tracemalloc.start()
    try:
        write_gguf(tmp_path / "x.gguf", CONFIG, Streamed(), tokenizer(), file_type="f16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    packed = sum(t.numel() * 2 for t in tensors().values())
    largest = VOCAB * WIDTH * 2
    # numpy's memory is traced: the packed tensors together would be far more than the largest
    assert largest * 2 < packed
    assert peak < packed + 200_000, (peak, packed)


REFUSED = {
    "activation": (
        {"hidden_act": "gelu"},
        "hidden_act is 'gelu', which a GGUF file cannot express",
    ),
    "window": ({"sliding_window": 16}, "sliding_window is 16, which a GGUF file cannot express"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "type": ({"model_type": "bart"}, "model_type is 'bart', which Weft cannot write"),
    "words": ({"vocab_size": 100}, "has an id 27[0-9] but the model has 100 tokens"),
    "rows": ({"vocab_size": 300}, "vocab_size would become 290 from 300"),
    "bias": ({"attention_bias": True}, "tensor model.layers.0.self_attn.q_proj.bias is missing"),
    "missing": ({"model.norm.weight": 0}, "tensor model.norm.weight is missing"),
    "layers": ({"num_hidden_layers": 2}, "tensor model.layers.1.* is missing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_gguf_cannot_say_is_refused_before_anything_is_written(
    what: str, tmp_path: Path
) -> None:
    changes, message = REFUSED[what]
    with pytest.raises(UsageError, match=message):
        write(tmp_path / "x.gguf", **changes)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'q4_k' is not a known type of GGUF file.*f32, f16, q8_0"
    ):
        write(tmp_path / "x.gguf", "q4_k")


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    given = {**tensors(), "model.extra.weight": torch.zeros(3)}
    with pytest.raises(UsageError, match="has no tensor for model.extra.weight .and 0 more"):
        write_gguf(tmp_path / "x.gguf", CONFIG, given, tokenizer())


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    given = {**tensors(), "model.layers.0.self_attn.q_proj.weight": torch.zeros(63, WIDTH)}
    with pytest.raises(
        UsageError, match=r"q_proj.weight has shape \(63, 64\), which does not match"
    ):
        write_gguf(tmp_path / "x.gguf", CONFIG, given, tokenizer())


def test_a_number_too_large_for_f16_is_named(tmp_path: Path) -> None:
    given = {**tensors(), "model.layers.0.mlp.up_proj.weight": torch.full((80, WIDTH), 1e6)}
    with pytest.raises(UsageError, match="ffn_up.weight has a number of size 1e[+]06, above"):
        write_gguf(tmp_path / "x.gguf", CONFIG, given, tokenizer(), file_type="f16")
    assert list(tmp_path.iterdir()) == []


def test_names_without_their_beginning_are_found(tmp_path: Path) -> None:
    given = {name.removeprefix("model."): tensor for name, tensor in tensors().items()}
    write_gguf(tmp_path / "x.gguf", CONFIG, given, tokenizer(), file_type="f32")
    assert open_gguf(tmp_path / "x.gguf").source.shapes.keys() == tensors().keys()


GEMMA = {
    "layers": ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "layer_types is"),
    "scores": ({"query_pre_attn_scalar": 99}, "query_pre_attn_scalar is 99"),
    "local": (
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
            }
        },
        "rope_type of sliding_attention is 'linear'",
    ),
    "softcap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
}


@pytest.mark.parametrize("what", GEMMA)
def test_what_gemmas_files_cannot_say_is_refused(what: str, tmp_path: Path) -> None:
    changes, message = GEMMA[what]
    config = original("gemma3 every second").config.to_dict() | changes
    given = saved("gemma3 every second", tmp_path)
    with pytest.raises(UsageError, match=message):
        write_gguf(tmp_path / "x.gguf", config, given, tokenizer())


def test_what_deepseeks_files_cannot_say_is_refused(tmp_path: Path) -> None:
    given = saved("deepseek 3", tmp_path)
    config = original("deepseek 3").config.to_dict()
    rule = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mscale": 1.0}
    for changes, message in (
        ({"rope_interleave": False}, "rope_interleave is False"),
        ({"rope_parameters": rule}, "rope_scaling is .*architecture deepseek2 cannot express"),
    ):
        with pytest.raises(UsageError, match=message):
            write_gguf(tmp_path / "x.gguf", config | changes, given, tokenizer())
    even = {**rule, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}
    result = {**config, "rope_parameters": even}
    actual = open_gguf(write_gguf(tmp_path / "x.gguf", result, given, tokenizer())).config
    assert actual["rope_scaling"]["mscale"] == actual["rope_scaling"]["mscale_all_dim"] == 1.0
