"""SmolLM2-135M from its real file: tokenizer, weights, time and memory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from weft.checkpoint import tensor_source
from weft.checkpoint.families import llama
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.reader import open_gguf
from weft.checkpoint.gguf.tensors import GGUFSource
from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.checkpoint.gguf.writer import write_gguf
from weft.checkpoint.tensor_source import build_from_source
from weft.core.forward_batch import ForwardBatch
from weft.nn.packed_modules import pack_model, packed_modules
from weft.text.tokenizer import Tokenizer

from .hard_texts import hard_texts
from .material import as_list

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(1800)]

LLAMA_CPP_IDS = "64022616eec9d0443e55073a2b108cfa13d38b537a3f0e4a0b98f58b0a64ef7c"
"""SHA-256 of the ids that llama.cpp gives the 1,000 texts: xllamacpp 2026.10.11549, /tokenize with
add_special and parse_special false, as JSON without spaces."""
FLOAT32_BYTES = 538_060_032
"""The weights as float32."""


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return read_tokenizer(open_gguf(smollm2).tokenizer, smollm2)


def test_ids_are_those_of_the_models_own_tokenizer_json(
    smollm2: Path, tokenizer: Tokenizer
) -> None:
    """Its parts as HuggingFaceTB/SmolLM2-135M has them; transformers' reader of GGUF files does not
    cut digits apart and is no oracle here."""
    result = open_gguf(smollm2).tokenizer
    tokens = result["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in result["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for text in hard_texts(1000):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == backend.encode(text).ids, ascii(text)
        assert tokenizer.decode(ids) == text


def test_ids_are_those_of_llama_cpp(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(text, add_special=False) for text in hard_texts(1000)]
    result = json.dumps(ids, separators=(",", ":")).encode()
    assert hashlib.sha256(result).hexdigest() == LLAMA_CPP_IDS


def test_roles_and_special_tokens(tokenizer: Tokenizer, smollm2: Path) -> None:
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.frame == ([], [])
    assert tokenizer.encode("<|im_start|>user\n", parse_special=True) == [1, 4093, 198]
    assert open_gguf(smollm2).config["eos_token_id"] == [2, 0]


def test_the_tokenizer_is_written_as_it_was_read(tokenizer: Tokenizer, smollm2: Path) -> None:
    result = open_gguf(smollm2).tokenizer
    for key, value in write_tokenizer(tokenizer, 49152).items():
        assert as_list(result.get(key, False)) == value, key


def test_every_weight_is_the_librarys(smollm2: Path) -> None:
    source = GGUFSource(read_header(smollm2))
    for tensor in gguf.GGUFReader(smollm2).tensors:
        expected = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        actual = source.read(tensor.name)
        assert torch.equal(actual, expected.view(actual.shape)), tensor.name


def test_the_header_is_read_in_well_under_a_third_of_a_second(smollm2: Path) -> None:
    times = []
    for _ in range(3):
        start = time.process_time()
        read_header(smollm2)
        times.append(time.process_time() - start)
    assert min(times) < 0.2


def test_paris_is_the_capital_of_france_also_after_writing(
    smollm2: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """llama.cpp gives ' Paris' a log probability of -0.26 with these weights."""
    config, source, result = open_gguf(smollm2)
    weights = {name: source.read(name) for name in source.shapes}
    template = result["tokenizer.chat_template"]
    again = write_gguf(tmp_path / "x.gguf", config, weights, tokenizer, template, "f32")
    ids = torch.tensor([tokenizer.encode("The capital of France is", add_special=False)])
    for path in (smollm2, again):
        config, source, _ = open_gguf(path)
        settings = llama.read_hf(HFConfig(config, path))
        model = build_from_source(settings, llama.rules(settings), source, llama.FAMILY.ignored)
        with torch.no_grad():
            logits = model(ForwardBatch(ids))[0, -1].log_softmax(-1)
        best = int(logits.argmax())
        assert tokenizer.decode([best]) == " Paris"
        assert float(logits[best]) == pytest.approx(-0.2578, abs=0.002)


def test_few_bits_give_the_bits_of_the_same_weights_in_floats(
    smollm2: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = load_checkpoint(smollm2).model
    monkeypatch.setattr(tensor_source, "can_pack_quantized", lambda device, dtype: False)
    floats = load_checkpoint(smollm2).model
    actual = Counter(m.kind for layer in packed_modules(few) for m in layer.matrices.values())
    # four products a layer; the table of words, which is read by row and multiplied by
    assert actual == {"q4": 120, "q8": 2}
    state = floats.state_dict()
    for name, tensor in few.state_dict().items():
        assert tensor.view(torch.int32).equal(state[name].view(torch.int32)), name
    pack_model(floats)
    text = "The capital of France is Paris, and the capital of Germany is"
    ids_1T = torch.tensor([tokenizer.encode(text, add_special=False)])
    with torch.inference_mode():
        for some_1T in (ids_1T, ids_1T[:, :1]):
            expected = floats(ForwardBatch(some_1T))
            assert few(ForwardBatch(some_1T)).equal(expected) and expected.isfinite().all()


PROGRAM = """
import resource, sys, time
import torch
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.reader import open_gguf
from weft.checkpoint.gguf.tensors import GGUFSource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = open_gguf(sys.argv[1]).source
start = time.process_time()
kept = {name: source.read(name) for name in source.shapes}
took = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
heavy = [m for m in ("gguf", "transformers", "sentencepiece", "torch._dynamo") if m in sys.modules]
print(took, (peak - before) * 1024, heavy)
"""


def test_weights_are_read_fast_and_in_little_more_than_their_own_memory(smollm2: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(smollm2)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    took, peak, heavy = done.stdout.strip().split(" ", 2)
    assert heavy == "[]"
    assert float(took) < 2, f"{took} s of processor time"
    assert float(peak) < 1.3 * FLOAT32_BYTES, f"{peak} bytes"
