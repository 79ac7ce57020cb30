"""A loaded model: texts in, texts out, in order; and what each kind refuses."""

from math import exp

import pytest
import torch
from safetensors.torch import save

from tests.engine import plain
from tests.engine.asking import generate
from tests.engine.tiny import LINES, pieces, tiny, tiny_folder
from weft.checkpoint.folder_files import CONFIG_FILE
from weft.core.errors import ConfigError, DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.loaded_model import LoadedModel, load
from weft.engine.pooling import split_at_max_len
from weft.engine.request_builder import default_target_limit
from weft.sampling.params import SamplingParams


@pytest.fixture(scope="module")
def translator():
    return LoadedModel(tiny())


@pytest.fixture(scope="module")
def writer():
    return LoadedModel(tiny("decoder"))


TEXTS = ["the cat", "", "a dog ate the mat on two apples", "它", " \t ", "mat", "the cat"]


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_keep_the_order_and_empty_lines(translator, beam):
    result = translator.translate(TEXTS, beam=beam)
    assert [text == "" for text in result] == [not text.strip() for text in TEXTS]
    assert result == [translator.translate([text], beam=beam)[0] for text in TEXTS]
    assert result[0] == result[-1] and len(set(result)) > 3


def test_greedy_translation_is_what_uncached_passes_say(translator):
    tokenizer = translator.tokenizer
    source = tokenizer.encode("a dog ate the mat")
    begin, end = tokenizer.begin_id, tokenizer.end_id
    limit = default_target_limit(source, 40)
    ids = plain.greedy(translator.model, [begin], limit, end, source)
    assert translator.translate(["a dog ate the mat"]) == [tokenizer.decode(ids)]


def test_scores_belong_to_their_translations(translator):
    texts = ["the cat", "", "a dog"]
    result = translator.translate_scored(texts, beam=4)
    assert [one.text for one in result] == translator.translate(texts, beam=4)
    assert result[1].score is None and result[0].score < 0
    greedy = translator.translate_scored(texts, beam=1, length_penalty=0.0)
    wide = translator.translate_scored(texts, beam=40, length_penalty=0.0)
    assert wide[2].score >= greedy[2].score


def test_a_translation_is_as_long_as_asked_for(translator):
    assert default_target_limit([7] * 6, 40) == 22
    assert default_target_limit([7] * 30, 40) == 39
    short, long = (translator.translate(["a dog ate"], max_tokens=n)[0] for n in (1, 30))
    assert len(short) < len(long)
    with pytest.raises(
        UsageError, match="1 tokens and max_tokens is 40.*set max_tokens to at most 39"
    ):
        translator.translate(["a dog"], max_tokens=40)
    with pytest.raises(UsageError, match="max_tokens is 0"):
        translator.translate(["a dog"], max_tokens=0)


def test_progress_counts_every_text_that_is_not_empty(translator):
    counts = []
    translator.translate(TEXTS, progress=counts.append)
    assert sum(counts) == 5 and len(counts) > 1


def test_a_source_that_is_too_long_is_cut_and_counted(caplog):
    translator = LoadedModel(tiny(max_len=8))
    assert len(translator.translate(["the cat sat on the mat and then it sat on the dog"])) == 1
    assert translator.tokenizer.report.cut_lines == 1
    assert "cut_lines=1" in caplog.text


def test_nothing_gives_nothing_and_one_str_is_refused(translator, writer):
    assert translator.translate([]) == [] == translator.translate([])
    with pytest.raises(UsageError, match="texts is a str: pass a list"):
        translator.translate("the cat")
    with pytest.raises(UsageError, match="texts is a str: pass a list"):
        writer.perplexity("the cat")


def test_generated_text_is_its_pieces_and_those_are_the_tokens_texts(writer):
    settings = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "seed": 4}
    text = writer.generate("the cat", max_tokens=20, **settings)
    parts = list(writer.generate("the cat", max_tokens=20, stream=True, **settings))
    assert "".join(parts) == text and len(parts) > 1 and all(parts)
    tokenizer = writer.tokenizer
    prompt = tokenizer.encode("the cat")[:-1]
    sampling = SamplingParams(**settings)
    (ids,) = generate(writer.model, [prompt], 20, tokenizer.end_id, sampling)
    assert "".join(pieces(tokenizer, ids)) == text


def test_generation_repeats_with_its_seed_and_differs_without(writer):
    draws = [writer.generate("the", max_tokens=20, temperature=1.5, seed=s) for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_pieces_are_whole_characters_and_a_wrong_byte_spoils_only_itself(writer):
    tokenizer = writer.tokenizer
    ids = tokenizer.encode("a 龘é👍 cat")
    assert len(ids) > len("a 龘é👍 cat")
    parts = list(pieces(tokenizer, ids))
    assert "".join(parts) == "a 龘é👍 cat" and "\ufffd" not in parts
    (lone,) = tokenizer.backend.encode("é", add_special_tokens=False).ids[1:]
    assert "".join(pieces(tokenizer, [*ids[:-1], lone, *ids])) == "a 龘é👍 cat\ufffda 龘é👍 cat"
    assert list(pieces(tokenizer, tokenizer.encode("龘", add_special=False)[:2])) == ["\ufffd"]


def test_a_prompt_is_never_cut(writer):
    with pytest.raises(UsageError, match="max_len is 40"):
        writer.generate("the cat sat on the mat " * 20)
    with pytest.raises(UsageError, match="max_len is 40.*set max_tokens to at most"):
        writer.generate("the cat", max_tokens=60)
    with pytest.raises(UsageError, match="max_tokens is 0"):
        writer.generate("the cat", max_tokens=0)
    with pytest.raises(ConfigError, match="temperature"):
        writer.generate("the cat", temperature=-1)


def test_a_stream_refuses_at_the_call_and_leaves_gradients_on(writer):
    with pytest.raises(UsageError, match="max_len is 40"):
        writer.generate("the cat", max_tokens=60, stream=True)
    stream = writer.generate("the cat", stream=True)
    next(stream)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@torch.no_grad()
def test_perplexity_is_that_of_the_tokens_one_by_one(writer):
    nats, tokens = 0.0, 0
    for line in LINES:
        ids = writer.tokenizer.encode(line)
        logp_TV = writer.model(ForwardBatch(torch.tensor([ids])))[0].log_softmax(-1)
        nats -= float(logp_TV[range(len(ids) - 1), ids[1:]].sum())
        tokens += len(ids) - 1
    loss = writer.score([*LINES, "", "  "])
    assert (loss.nats, loss.tokens) == (pytest.approx(nats, rel=1e-5), tokens)
    assert writer.perplexity(LINES) == pytest.approx(exp(nats / tokens), rel=1e-4)
    with pytest.raises(UsageError, match="none of the 2 texts has at least two tokens"):
        writer.perplexity(["", " "])


def test_a_long_text_is_scored_in_parts_that_predict_each_token_once(writer):
    assert split_at_max_len([1, 2, 3, 4, 5, 6], 2) == [[1, 2, 3], [3, 4, 5], [5, 6]]
    assert split_at_max_len([1, 2, 3], 2) == [[1, 2, 3]] and split_at_max_len([1], 2) == []
    text = " ".join(LINES * 8)
    assert writer.score([text]).tokens == len(writer.tokenizer.encode(text)) - 1 > 80


@pytest.mark.parametrize(
    ("kind", "call", "message"),
    [
        ("decoder", "translate", "kind decoder: translate needs .* kind enc.*Use `generate`"),
        ("encoder", "translate", "kind encoder: translate needs .* kind enc.*Use `embed`"),
        ("encoder-decoder", "generate", "generate needs a model of kind decoder. Use `translate`"),
        (
            "encoder",
            "generate",
            "generate needs a model of kind decoder. Use `embed`",
        ),
        ("encoder", "chat", "kind encoder: chat needs a model of kind decoder. Use `embed`"),
        ("encoder-decoder", "chat", "chat needs a model of kind decoder. Use `translate`"),
        (
            "encoder-decoder",
            "perplexity",
            "perplexity needs a model of kind decoder. Use `eval --pairs`",
        ),
    ],
)
def test_what_a_kind_cannot_do_is_refused(kind, call, message):
    model = LoadedModel(tiny(kind))
    with pytest.raises(UsageError, match=message):
        getattr(model, call)("the cat" if call == "generate" else ["the cat"])


def test_a_loaded_folder_does_what_the_saved_model_did(tmp_path, translator):
    loaded = load(tiny_folder(tmp_path / "m"), device="cpu")
    assert loaded.translate(TEXTS, beam=2) == translator.translate(TEXTS, beam=2)
    assert (loaded.kind, loaded.task, loaded.scores) == (
        "encoder-decoder",
        "translate",
        {"bleu": 12.5},
    )
    assert not loaded.model.training and loaded.device.type == "cpu"


def test_what_cannot_be_loaded_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="nowhere: there is no such model. Name a Weft folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match="a.gguf: "):
        load(tmp_path / "a.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="is not a model file. Name a Weft folder"):
        load(tmp_path / "notes.txt")
    with pytest.raises(DataError, match=f"has no {CONFIG_FILE}, so it is not a model folder"):
        load(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{}")
    with pytest.raises(DataError, match="has a config.json without model_type"):
        load(tmp_path)
    (tmp_path / CONFIG_FILE).write_text('{"model_type": "clip"}')
    (tmp_path / "model.safetensors").write_bytes(save({"a": torch.zeros(1)}))
    with pytest.raises(DataError, match="model_type is 'clip': Weft reads bart, bert"):
        load(tmp_path)
    (tmp_path / CONFIG_FILE).write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match="has no num_attention_heads"):
        load(tmp_path)
    with pytest.raises(UsageError, match="device is 'gpu'"):
        load(tmp_path, device="gpu")
