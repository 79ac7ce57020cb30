"""Cross-attention from outside: the weights are the layer's own, and nothing stays behind."""

import numpy as np
import pytest
import torch

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.look.attention_weights import cross_attention
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

LAYERS, HEADS = 2, 4
SOURCE, TARGET = "\u6211\u5403\u4e86\u82f9\u679c", "I ate"


@pytest.fixture(scope="module")
def tokenizer():
    lines = ["\u6211\u5403\u4e86\u68a8", "I ate a pear"]
    return Tokenizer.train(lines, TokenizerConfig(kind="character", min_frequency=1))


def model_of(tokenizer, **changes):
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "width": 32,
        "num_layers": LAYERS,
        "max_len": 40,
        "attention": {"num_heads": HEADS},
    }
    return build_model(ModelConfig(**settings | changes))


def test_rows_are_written_tokens_and_columns_source_tokens(tokenizer):
    seen = cross_attention(model_of(tokenizer), tokenizer, SOURCE, TARGET)
    assert seen.target_tokens == [*"I ate", "<end>"]
    assert seen.weights_LHTS.shape == (
        LAYERS,
        HEADS,
        len(seen.target_tokens),
        len(seen.source_tokens),
    )
    np.testing.assert_allclose(seen.weights_LHTS.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(seen.mean(), seen.weights_LHTS.mean((0, 1)))


def test_a_character_outside_the_vocabulary_is_shown_whole(tokenizer):
    seen = cross_attention(model_of(tokenizer), tokenizer, SOURCE, TARGET)
    known, unknown = ["\u6211", "\u5403", "\u4e86"], ["\u82f9", "\u679c"]
    spelled = [f"{char}/{number}" for char in unknown for number in (1, 2, 3)]
    assert seen.source_tokens == ["<begin>", *known, *spelled, "<end>"]
    assert "\ufffd" not in "".join(seen.source_tokens + seen.target_tokens)


def test_the_weights_make_the_output_of_the_layer(tokenizer):
    """Weights times values, joined, are what cross-attention gives out without being looked at."""
    model = model_of(tokenizer, num_layers=1).eval()
    seen = cross_attention(model, tokenizer, SOURCE, TARGET)
    cross, outputs = model.decoder.layers[0].cross, []
    cross.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
    ids_1S, ids_1T = (torch.tensor([tokenizer.encode(text)]) for text in (SOURCE, TARGET))
    with torch.inference_mode():
        memory_BSD = model.encode(ForwardBatch(ids_1S))
        model(ForwardBatch(ids_1T[:, :-1], memory_BSD=memory_BSD))
        kv_rows = slice(cross.num_heads * cross.head_size, None)
        v_BSD = cross.project(memory_BSD, kv_rows).chunk(2, dim=2)[1]
        v_SHU = v_BSD[0].unflatten(-1, (HEADS, -1))
        weights_HTS = torch.from_numpy(seen.weights_LHTS[0])
        joined_TD = torch.einsum("hts,shu->thu", weights_HTS, v_SHU).flatten(1)
        torch.testing.assert_close(cross.out(joined_TD), outputs[0], rtol=1e-4, atol=1e-5)


def test_what_is_written_is_cut_as_the_target_side_cuts_it(tokenizer):
    """A tokenizer with two sides, as fairseq's and Marian's have, whose target begins with
    nothing."""
    words = Tokenizer.train(
        ["I ate a pear"], TokenizerConfig(kind="word", min_frequency=1, add_begin=False)
    )
    both = Tokenizer(tokenizer.backend, tokenizer.special_tokens, target=words)
    sizes = {"vocab_size": words.vocab_size, "source_vocab_size": both.vocab_size}
    sizes["embedding"] = {"tied": "output"}
    model = model_of(tokenizer, **sizes)
    end, inputs = words.id_of("end"), []
    model.decoder.register_forward_pre_hook(lambda _, args: inputs.append(args[0].ids_BT.tolist()))
    seen = cross_attention(model, both, SOURCE, "I ate", start=end)
    assert seen.target_tokens == words.tokens("I ate").pieces
    assert (
        seen.source_tokens
        == cross_attention(model_of(tokenizer), tokenizer, SOURCE, TARGET).source_tokens
    )
    assert inputs == [[[end, *words.tokens("I ate").ids[:-1]]]]
    assert seen.weights_LHTS.shape[2:] == (len(seen.target_tokens), len(seen.source_tokens))


def test_nothing_stays_behind(tokenizer):
    model = model_of(tokenizer).train()
    cross_attention(model, tokenizer, SOURCE, TARGET)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_the_sharpest_head_is_found(tokenizer):
    seen = cross_attention(model_of(tokenizer), tokenizer, SOURCE, TARGET)
    seen.weights_LHTS[:] = 1 / len(seen.source_tokens)
    seen.weights_LHTS[1, 2] = np.eye(len(seen.target_tokens), len(seen.source_tokens))
    assert seen.sharpest() == (1, 2)


def test_a_model_without_a_source_is_refused(tokenizer):
    with pytest.raises(UsageError, match="kind decoder"):
        cross_attention(model_of(tokenizer, kind="decoder"), tokenizer, SOURCE, TARGET)
