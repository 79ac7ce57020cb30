"""A tiny `transformers` model through real files: saved by its library, read by our family, written
by it, and loaded by the library again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.engine.asking import beam_search
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import InMemorySource, build_from_source, split_state
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel

transformers.utils.logging.disable_progress_bar()


@dataclass(frozen=True)
class Imported:
    """Our model, and how its settings say it is used."""

    model: AnyModel
    generation_config: GenerationConfig


def save(original: PreTrainedModel, folder: Path) -> dict[str, Any]:
    """Write the files; the settings in config.json."""
    original.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def load(family: Family, folder: Path) -> Imported:
    """Our model of a folder that `transformers` wrote. Every tensor in it is used exactly once, or
    is a copy that the family may pass over."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    beside = folder / "generation_config.json"
    told = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    tensors = load_file(folder / "model.safetensors")
    config = family.read_hf(HFConfig(values, folder, tensors))
    rules = family.rules(config)
    names = [name for rule in rules for name in rule.file_names]
    assert len(names) == len(set(names))
    left = tensors.keys() - set(names)
    assert not [n for n in left if not any(re.fullmatch(p, n) for p in family.ignored)], left
    model = build_from_source(config, rules, InMemorySource(tensors, folder), family.ignored)
    return Imported(model, family.read_generation(HFConfig({**values, **told}, folder)))


def write(family: Family, model: AnyModel, folder: Path, like: PreTrainedModel) -> PreTrainedModel:
    """What our model is after export, as the library loads it: nothing missing, nothing over."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(export_config(family, model.config)))
    state = split_state(model, family.rules(model.config))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    fresh, report = type(like).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    wrong = {name: keys for name, keys in report.items() if keys}
    assert not wrong, wrong
    return fresh.eval()


def pairs(source_vocab: int, target_vocab: int) -> tuple[ForwardBatch, ForwardBatch]:
    """Padded sources and targets, ids from 3 on: the special ones stay away."""
    generator = torch.Generator().manual_seed(3)
    source_BS = torch.randint(3, source_vocab, (3, 17), generator=generator)
    target_BT = torch.randint(3, target_vocab, (3, 11), generator=generator)
    lengths_B = torch.tensor([17, 9, 1])
    return ForwardBatch(source_BS, lengths_B=lengths_B), ForwardBatch(target_BT)


def assert_same_logits(
    model: AnyModel, original: PreTrainedModel, source: ForwardBatch, target: ForwardBatch
) -> None:
    assert source.lengths_B is not None
    is_real_BS = torch.arange(source.ids_BT.shape[1]) < source.lengths_B[:, None]
    with torch.no_grad():
        expected = original(
            input_ids=source.ids_BT,
            attention_mask=is_real_BS.long(),
            decoder_input_ids=target.ids_BT,
        ).logits
        got = model(target, source)
    assert got.std() > 0.1
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def assert_round_trip(family: Family, original: PreTrainedModel, folder: Path) -> Imported:
    """Logits of an encoder-decoder after import, and after export."""
    save(original, folder / "theirs")
    found = load(family, folder / "theirs")
    config = found.model.config
    source, target = pairs(config.source_vocab_size or config.vocab_size, config.vocab_size)
    assert_same_logits(found.model, original, source, target)
    again = write(family, found.model, folder / "ours", original)
    assert_same_logits(found.model, again, source, target)
    return found


def assert_same_beams(found: Imported, original: PreTrainedModel, pad: int, **told: Any) -> None:
    """The best of 4 beams for sources of several lengths. Both divide by length ** 1 with the end
    counted, and stop a sentence once 4 are found (early_stopping=True). At the limit they differ:
    ours may only end, theirs breaks off. So each result must have ended before."""
    assert found.generation_config.start is not None
    limit, generator = 40, torch.Generator().manual_seed(5)
    vocab = found.model.config.source_vocab_size or found.model.config.vocab_size
    lengths_B = torch.tensor([12, 7, 3, 9, 1, 5])
    source_BS = torch.randint(3, vocab, (6, 12), generator=generator)
    is_real_BS = torch.arange(12) < lengths_B[:, None]
    with torch.no_grad():
        expected = original.generate(
            source_BS.masked_fill(~is_real_BS, pad),
            attention_mask=is_real_BS.long(),
            num_beams=4,
            do_sample=False,
            length_penalty=1.0,
            early_stopping=True,
            max_new_tokens=limit,
            **told,
        )
    sources = [row[:n].tolist() for row, n in zip(source_BS, lengths_B.tolist(), strict=True)]
    (end,), prompts = found.generation_config.ends, [[found.generation_config.start]] * len(sources)
    rule = {"first": found.generation_config.first, "banned": found.generation_config.banned}
    hypotheses = beam_search(found.model, prompts, limit, end, 4, 1.0, sources, **rule)
    lengths = set()
    for (best, *_), row in zip(hypotheses, expected.tolist(), strict=True):
        assert row[0] == found.generation_config.start
        assert end in row[1:], "theirs broke off: raise the limit"
        assert best.ids == row[1 : row.index(end, 1)]
        lengths.add(len(best.ids))
    assert len(lengths) > 1, "all results are equally long: the test shows little"
