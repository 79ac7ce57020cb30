"""The examples that training stores in the model folder."""

from __future__ import annotations

import json

from tests.engine.tiny import tiny
from tests.training.material import files, recipe
from weft.checkpoint.weft_folder import load_folder
from weft.training.data.files import TrainingFiles
from weft.training.data.tokens import TokenFile
from weft.training.example_inputs import MAX_CHARACTERS, pair_examples, text_examples
from weft.training.run import run_training


def test_five_pairs_that_are_not_too_long_are_spread_over_the_validation_data():
    pairs = [(f"text {i}", f"Text {i}") for i in range(20)] + [("x" * 500, "y"), (" ", "z")]
    examples = pair_examples(pairs)
    assert [one.text for one in examples] == [f"text {i}" for i in (0, 4, 8, 12, 16)]
    assert examples[1].target == "Text 4"
    assert [one.text for one in pair_examples(pairs[-2:])] == ["x" * 500]
    assert pair_examples([]) == ()


def test_texts_are_whole_beginnings_of_lines(tmp_path):
    tokenizer = tiny("decoder").tokenizer
    lines = [f"the cat {i} sat on the mat " * 8 for i in range(30)]
    TokenFile.write(tmp_path / "valid", lines, tokenizer)
    TokenFile.write(tmp_path / "short", ["a dog"], tokenizer)
    examples = text_examples(TokenFile.open(tmp_path / "valid"), tokenizer)
    assert 1 < len(examples) <= 5
    assert all(0 < len(one.text) <= MAX_CHARACTERS and one.target is None for one in examples)
    assert [one.text for one in examples] == [
        lines[i][:MAX_CHARACTERS].rpartition(" ")[0] for i in (0, 6, 12, 18, 24)
    ]
    TokenFile.write(tmp_path / "whole", ["\n".join(lines)], tokenizer)
    examples = text_examples(TokenFile.open(tmp_path / "whole"), tokenizer)
    assert len(examples) > 1 and all(one.text.startswith("the cat") for one in examples)
    assert [one.text for one in text_examples(TokenFile.open(tmp_path / "short"), tokenizer)] == [
        "a dog"
    ]


def test_a_trained_model_has_examples_of_its_validation_data(tmp_path):
    pairs = files(tmp_path)
    run_training(recipe(), pairs, tmp_path / "words")
    stored = json.loads((tmp_path / "words" / "examples.json").read_text())["examples"]
    assert len(stored) == 5 and all(one["text"][::-1] == one["target"] for one in stored)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\n" * 50)
    trained = recipe(valid_share=0.2)
    run_training(trained, TrainingFiles("lm", (text,), ()), tmp_path / "lm")
    assert [one.text for one in load_folder(tmp_path / "lm").examples] == ["the cat sat"]
