"""What `weft.load` returns, and what is reached from it, says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.engine.tiny import tiny_folder

MAX_CHARACTERS = 400


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "encoder"])
def test_everything_that_load_returns_says_what_it_is(tmp_path: Path, kind: str) -> None:
    folder = tiny_folder(tmp_path / "tiny", kind)
    thread = weft.EngineThread()
    with weft.load(folder, thread=thread) as model:
        size = f"{sum(w.numel() for w in model.model.parameters()):,} parameters"
        text = repr(model)
        assert text.startswith(f"Model('tiny', {kind}, {size}, 2 layers, width 32, vocabulary ")
        assert text.endswith(", max_len 40, float32 on cpu)")
        client = model.client
        values = {name: getattr(model, name) for name in vars(model) | {"client": client}}
        values |= {"engine": client.engine, "async engine": client.async_engine}
        values |= {"trace": model.look("the cat"), "thread": thread}
        if kind == "decoder":
            values["stream"] = model.generate("the cat", max_tokens=2, stream=True)
        for name, value in values.items():
            if type(value).__module__.startswith("weft.") and name != "model":
                shown = repr(value)
                assert " object at 0x" not in shown, name
                assert len(shown) < MAX_CHARACTERS and "\n" not in shown, name
    thread.close()


def test_the_state_of_an_engine_is_shown(tmp_path: Path) -> None:
    with weft.load(tiny_folder(tmp_path / "tiny", "decoder")) as model:
        assert "Engine(decoder, 0 running, 0 waiting, 0 pages in use, 0 cached, " in repr(
            model.client
        )
        model.generate("the cat sat on the mat and the dog ate an apple", max_tokens=4)
        assert "0 running, 0 waiting, 0 pages in use, 0 cached" not in repr(model.client)
    assert repr(model.client).endswith(", closed))")
    assert repr(model.tokenizer).startswith("Tokenizer(BPE, ")
    assert repr(weft.LoadedModel(model.checkpoint)).startswith("LoadedModel(decoder, ")
