"""`weft look` on a tiny encoder-decoder, decoder and encoder: every flag, with the numbers of the
trace, aligned in terminal columns."""

import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.engine.tiny import tiny_folder
from weft.checkpoint.hub import pull
from weft.cli.app import Command, main
from weft.look.recorder import record
from weft.look.terminal import display_width
from weft.look.trace import Trace

COMMANDS = {"look": Command("weft.cli.look", "Show what a model does with a text.")}
TEXT = "\u6211\u5403\u4e86\u82f9\u679c\uff0c\u5b83\u5f88\u751c"
TARGET = "the cat sat on two apples"
WORD, APPLE = "\u5b83", "\u82f9\u679c"
ATTENTION = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2}
VALUE = r"(-?\d+\.\d\d)"


class Model:
    """A folder, the model in it, and calls of `weft look` on it."""

    def __init__(self, path: Path, kind: str) -> None:
        self.folder = str(tiny_folder(path / kind, kind, attention=ATTENTION))
        self.loaded = weft.load(self.folder)
        self.kind = kind

    @property
    def part(self) -> str:
        return "encoder" if self.kind == "encoder" else "decoder"

    @property
    def to(self) -> list[str]:
        return ["--to", TARGET] if self.kind == "encoder-decoder" else []

    @property
    def text(self) -> str:
        """What the stack with the last word reads."""
        return TARGET if self.kind == "encoder-decoder" else TEXT

    def trace(self, text: str = TEXT, **options) -> Trace:
        target = TARGET if self.kind == "encoder-decoder" else None
        start = self.loaded.generation_config.start
        return record(
            self.loaded.model, self.loaded.tokenizer, text, target, start=start, **options
        )


@pytest.fixture(scope="module", params=["encoder-decoder", "decoder", "encoder"])
def model(request, tmp_path_factory) -> Model:
    return Model(tmp_path_factory.mktemp("look"), request.param)


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Model:
    return Model(tmp_path_factory.mktemp("look"), "encoder-decoder")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Model:
    return Model(tmp_path_factory.mktemp("look"), "decoder")


@pytest.fixture
def look(capsys):
    """Run the command; its lines, all of which fit."""

    def call(model: Model, *words, text: str = TEXT, status: str = "") -> list[str]:
        arguments = ["look", model.folder, text, *map(str, words)]
        assert main(arguments, COMMANDS) == 0, capsys.readouterr().err
        shown = capsys.readouterr()
        assert re.search(status, shown.err) if status else shown.err == ""
        lines = shown.out.splitlines()
        if "--json" not in words:
            assert max(map(display_width, lines)) <= 80
        return lines

    return call


def section(lines: list[str], title: str) -> list[str]:
    """The lines after the one with the title, up to an empty one."""
    start = next(i for i, line in enumerate(lines) if title in line) + 1
    end = next((i for i, line in enumerate(lines[start:], start) if not line), len(lines))
    return lines[start:end]


def values_of(lines: list[str]) -> dict[str, float]:
    """Label and value of lines of bars."""
    pattern = r"  (.+?)  +[#\u2588-\u258f]*\s+" + VALUE
    return {m[1].strip(): float(m[2]) for line in lines if (m := re.match(pattern, line))}


def tokens_with(trace: Trace, side: str, text: str, phrase: str) -> list[int]:
    """Brute force: the tokens that share a character with a phrase."""
    start = text.index(phrase)
    chars = set(range(start, start + len(phrase)))
    return [token.i for token in trace.tokens[side] if chars & set(range(*token.span))]


def row_by_word(trace: Trace, name: str, head: int, rows: list[int], side: str) -> dict[str, float]:
    """Brute force: the mean weight of rows on each word, and on tokens without a word."""
    weights_S = trace.array(name)[head, rows].mean(0)
    sums: dict[str, float] = {}
    for token in trace.tokens[side]:
        word = None if token.word is None else trace.words[side][token.word].text
        label = word or token.text
        sums[label] = sums.get(label, 0.0) + float(weights_S[token.i])
    return sums


def check_row(lines: list[str], expected: dict[str, float]) -> None:
    """The bars are the largest words with their weights, the others are summed."""
    shown = values_of(lines)
    others = [shown.pop(name) for name in list(shown) if name.startswith("others (")]
    assert len(shown) >= 1 and sum(others) + sum(shown.values()) == pytest.approx(1, abs=0.06)
    for label, value in shown.items():
        assert value == pytest.approx(expected[label], abs=0.0051), label
    assert min(shown.values()) >= sorted(expected.values())[-len(shown)] - 0.0051
    columns = {display_width(re.sub(VALUE + ".*", "", line)) for line in lines}
    assert len(columns) == 1, "the values are in one column"


def test_without_flags_tokens_the_sharpest_head_and_the_next_tokens_are_shown(model, look):
    lines, trace = look(model, *model.to), model.trace()
    assert lines[0].startswith(f"model {model.folder}"[:60])
    tokens = trace.tokens["src"]
    assert f"text -> {len(tokens)} tokens, {len(trace.words['src'])} words" in lines[1]
    assert "--find WORD:WORD" in lines[-2]
    side = trace.side_of(model.part)
    last = trace.tokens[side][-1].i
    title = next(line for line in lines if line.startswith(f"{model.part} layer"))
    layer, head = map(int, re.search(r"layer (\d+) head (\d+)", title).groups())
    name = f"{model.part}.{layer}.attention.weights"
    check_row(section(lines, title), row_by_word(trace, name, head, [last], side))
    is_key = np.array([0 < t.i < last and not t.is_special for t in trace.tokens[side]])
    peaks = [
        trace.array(f"{model.part}.{i}.attention.weights")[:, last][:, is_key].max() for i in (0, 1)
    ]
    assert trace.array(name)[head, last][is_key].max() == max(peaks)
    if model.kind == "encoder":
        assert not any("next token" in line for line in lines)
        return
    best = trace.candidates["decoder"][-1][:5]
    shown = section(lines, "next token after")
    assert [float(line.split()[-1]) for line in shown] == [round(one.logit, 2) for one in best]
    assert [float(line.split()[-3]) for line in shown] == pytest.approx(
        [one.p for one in best], abs=0.0051
    )


def test_a_token_is_shown_in_its_head(model, look):
    word = "cat" if model.kind == "encoder-decoder" else WORD
    trace = model.trace()
    lines = look(model, *model.to, "--token", word, "--map", "1.2")
    side = trace.side_of(model.part)
    rows = tokens_with(trace, side, model.text, word)
    name = f"{model.part}.1.attention.weights"
    title = f"{model.part} layer 1 head 2: {word} ({', '.join(map(str, rows))}) looks at"
    check_row(section(lines, title), row_by_word(trace, name, 2, rows, side))


def test_the_second_occurrence_of_a_word_is_another_row(decoder, look, capsys):
    text = "the cat sat on the mat"
    first = section(look(decoder, "--token", "the#1", "--map", "0.1", text=text), "the#1 (")
    second = section(look(decoder, "--token", "the#2", "--map", "0.1", text=text), "the#2 (")
    assert first != second and "the#2" in "".join(second)
    assert main(["look", decoder.folder, text, "--token", "the"], COMMANDS) == 2
    assert "'the' occurs 2 times in the text. Use the#1 to the#2." in capsys.readouterr().err


def test_the_map_of_a_head_has_its_weights(model, look):
    trace = model.trace()
    heads = ["1.2", f"{model.part}.0.3"]
    heads += ["cross.1.0", "encoder.0.1"] if model.kind == "encoder-decoder" else []
    for head in heads:
        *part, layer, number = head.split(".")
        lines = section(
            look(model, *model.to, "--map", head, "--ascii"), "each row is what its token"
        )
        name = {"cross": f"decoder.{layer}.cross", "encoder": f"encoder.{layer}.attention"}.get(
            "".join(part), f"{model.part}.{layer}.attention"
        )
        weights_TS = trace.array(f"{name}.weights")[int(number)]
        assert len(lines) == len(weights_TS) + 1
        assert all(
            line.endswith(f"{row_S.max():.2f}")
            for line, row_S in zip(lines[1:], weights_TS, strict=True)
        )
        is_causal = model.kind == "decoder" or (
            head != "encoder.0.1" and "cross" not in head and model.kind != "encoder"
        )
        masked = sum(line.count("--") for line in lines[1:])
        T = len(weights_TS)
        assert masked == (T * (T - 1) // 2 if is_causal else 0)


def test_the_table_of_heads_has_entropy_largest_weight_and_distance(model, look):
    trace, lines = model.trace(), look(model, *model.to, "--heads")
    pattern = r"  (\w+)\.(\d)\.(\d) +" + " +".join([r"(-|-?\d+\.\d+)"] * 4)
    rows = [m.groups() for line in lines if (m := re.fullmatch(pattern, line))]
    assert len(rows) == sum(trace.model.parts.values()) * 4
    for part, layer, head, *shown in rows:
        name = f"decoder.{layer}.cross" if part == "cross" else f"{part}.{layer}.attention"
        weights_TS = trace.array(f"{name}.weights")[int(head)].astype(float)
        T, S = weights_TS.shape
        entropy = [-sum(w * math.log2(w) for w in row if w > 0) for row in weights_TS]
        distance = [sum(weights_TS[t, s] * abs(t - s) for s in range(S)) for t in range(T)]
        assert float(shown[0]) == pytest.approx(np.mean(entropy), abs=0.0051)
        assert float(shown[1]) == pytest.approx(weights_TS.max(1).mean(), abs=0.0051)
        assert (
            shown[2] == "-"
            if part == "cross"
            else float(shown[2]) == pytest.approx(np.mean(distance), abs=0.051)
        )
        assert float(shown[3]) == pytest.approx(weights_TS[:, 0].mean(), abs=0.0051)


def test_find_ranks_all_heads_like_brute_force(decoder, look):
    trace, lines = decoder.trace(), look(decoder, "--find", f"{WORD}:{APPLE}")
    rows = [
        t.i for t in trace.tokens["src"] if TEXT[slice(*t.span)] and WORD in TEXT[slice(*t.span)]
    ]
    words = {w.text: list(w.tokens) for w in trace.words["src"]}
    keys = tokens_with(trace, "src", TEXT, APPLE)
    expected, total = {}, 0.0
    for layer in range(2):
        for head in range(4):
            row_S = trace.array(f"decoder.{layer}.attention.weights")[head, rows].mean(0)
            others = [
                row_S[tokens].sum() for tokens in words.values() if not set(tokens) & set(keys)
            ]
            weight = row_S[keys].sum()
            expected[f"{layer}.{head}"] = weight, 1 + sum(value > weight for value in others)
            total += weight / 8
    pattern = r"  (\d\.\d)  .*" + VALUE + r"  rank (\d+) of \d+"
    shown = {m[1]: (float(m[2]), int(m[3])) for line in lines if (m := re.match(pattern, line))}
    assert list(shown) == sorted(expected, key=lambda name: (-expected[name][0], name))
    for name, (weight, rank) in expected.items():
        assert shown[name] == (pytest.approx(weight, abs=0.0051), rank)
    first = sum(rank == 1 for _, rank in expected.values())
    if first:
        assert f"{WORD} -> {APPLE} is first: {first} of 8" in lines[0]
    else:
        assert lines[0].startswith(f"no decoder head puts {APPLE} first for {WORD}")
    assert any(
        line.startswith(f"mean of all heads: {total:.2f}, rank ") and "rollout" in line
        for line in lines
    )


def test_where_no_head_links_two_words_it_is_said(decoder, look):
    found = [look(decoder, "--find", f"{word}:{APPLE}")[0] for word in (WORD, "\u751c", "\u5f88")]
    for line in found:
        assert re.match(r"no decoder head puts|decoder heads where", line)
    lines = look(decoder, "--find", f"{APPLE}:\u751c")  # it comes later: masked
    assert lines[0].startswith(
        f"no decoder head puts \u751c first for {APPLE}: the largest of 8 weights is 0.00"
    )


def test_cross_attention_is_an_alignment(translator, look):
    trace = translator.trace()
    lines = look(translator, *translator.to, "--cross")
    shown = [line for line in section(lines, "what the target looks at") if " ->  " in line]
    mean_TS = np.stack([trace.array(f"decoder.{i}.cross.weights") for i in (0, 1)]).mean((0, 1))
    words = [w.text for w in trace.words["tgt"]]
    assert len(shown) == len(words) + 1  # and the start token
    for word, line in zip(trace.words["tgt"], shown[1:], strict=True):
        label, best = re.match(r"  (\S+) +->  (\S+ \d\.\d\d)", line).groups()
        row_S = mean_TS[list(word.tokens)].mean(0)
        sums = {}
        for t in trace.tokens["src"]:
            key = t.text if t.word is None else trace.words["src"][t.word].text
            sums[key] = sums.get(key, 0) + row_S[t.i]
        top = max(sums, key=sums.get)
        assert (label, best) == (word.text, f"{top} {sums[top]:.2f}")
    one = look(translator, *translator.to, "--cross", "--map", "cross.1.2")
    assert any(line.startswith("cross layer 1 head 2: what the target looks at") for line in one)


def test_the_lens_is_the_head_on_each_layer(decoder, look):
    trace, model = decoder.trace(), decoder.loaded.model
    lines = look(decoder, "--lens", "--token", WORD)
    shown = section(lines, "logit lens of the decoder after")
    position = int(re.search(rf"after {WORD} \((\d+)\)", "\n".join(lines))[1])
    for layer, line in enumerate(shown):
        x_D = weft_tensor(trace.array(f"decoder.{layer}.output", row=position))
        p_V = model.head(model.decoder.norm(x_D))[0].float().softmax(-1)
        values = [float(value) for value in re.findall(r"(\d\.\d\d)(?=  |$)", line)]
        assert values == pytest.approx(p_V.topk(len(values)).values.tolist(), abs=0.0051)
    grid = [line for line in look(decoder, "--lens") if re.match(r" +[01]  ", line)]
    cells = "".join(grid)
    assert len(re.findall(r"(?:\.\d\d|1\.0)(?: |$| {5})", cells)) >= len(trace.tokens["src"])


def weft_tensor(values):
    import torch

    return torch.from_numpy(values.copy())[None]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_ablation_shows_the_change_of_the_logits(kind, decoder, translator, look):
    model = decoder if kind == "decoder" else translator
    before, after = model.trace(), model.trace(ablate=["1.2", "0.0"])
    lines = look(model, *model.to, "--ablate", "1.2", "--ablate", "0.0")
    assert lines[0].endswith("without decoder.0.0, decoder.1.2")
    shown = [re.findall(r"[-+]?\d+\.\d\d\d", line) for line in lines[2:12]]
    best = after.candidates["decoder"][-1][:10]
    for (old, new, delta), one in zip(shown, best, strict=True):
        old_logit = before.array("decoder.logits")[-1, one.id]
        assert float(new) == pytest.approx(one.logit, abs=0.00051)
        assert float(old) == pytest.approx(old_logit, abs=0.00061)
        assert float(delta) == pytest.approx(one.logit - old_logit, abs=0.00061)
    assert any(abs(float(delta)) > 0.01 for *_, delta in shown)


def test_steps_list_every_stage_with_its_values(model, look):
    trace, lines = model.trace(), look(model, *model.to, "--steps")
    assert len(lines) == 2 * len(trace.stages)
    for stage, head, line in zip(trace.stages, lines[::2], lines[1::2], strict=True):
        assert head.startswith(stage.name) and str(list(stage.shape)).replace(" ", "") in head
        values = trace.array(stage.name)
        first = re.search(r"first(.*)", line)[1].split()
        assert 1 <= len(first) <= 12
        assert [float(one) for one in first] == pytest.approx(
            values.reshape(-1)[: len(first)].tolist(), rel=0.06, abs=0.0051
        )
        mean = float(re.search(r"mean (\S+)", line)[1])
        assert mean == pytest.approx(values[np.isfinite(values)].mean(), rel=0.06, abs=0.0051)


def test_json_is_the_trace(model, look):
    (line,) = look(model, *model.to, "--json")
    shown, expected = json.loads(line), model.trace().to_json()
    assert shown["schema"] == "weft.trace/1" and shown["text"] == TEXT
    for key in ("tokens", "words", "stages", "arrays", "limits"):
        assert shown[key] == json.loads(json.dumps(expected[key])), key


def test_svg_has_the_weights_of_the_head(model, look, tmp_path):
    path = tmp_path / "head.svg"
    look(model, *model.to, "--map", "1.3", "--svg", path, status=f"wrote {path}")
    weights_TS = model.trace().array(f"{model.part}.1.attention.weights")[3]
    root = ET.parse(path).getroot()
    cells = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")][1:]
    assert len(cells) == weights_TS.size
    for text, weight in zip(cells, weights_TS.reshape(-1), strict=True):
        assert text.endswith(": masked") or float(text.rsplit(": ")[1]) == pytest.approx(
            weight, abs=6e-5
        )
    look(model, *model.to, "--svg", path, status="wrote")
    assert ET.parse(path).getroot() is not None


def test_html_is_the_page_with_the_trace(model, look, tmp_path):
    path = tmp_path / "trace.html"
    look(model, *model.to, "--html", path, status=f"Wrote {path}")
    text = path.read_text(encoding="utf-8")
    assert (
        text.startswith("<!")
        and "weft.trace/1" in text
        and f"{model.part}.0.attention.weights" in text
    )


@pytest.mark.slow
def test_the_first_example_of_the_help_works_as_pasted(capsys):
    pull("smollm2", print)
    assert main(["look", "--help"], COMMANDS) == 0
    example = re.search(r"^ +weft (look .*)$", capsys.readouterr().out, re.MULTILINE)[1]
    assert main(shlex.split(example), COMMANDS) == 0
    out = capsys.readouterr().out
    assert "text -> 7 tokens, 7 words" in out and "the sharpest head of this token" in out


def test_the_own_translation_is_the_target(translator, look):
    (answer,) = translator.loaded.translate([TEXT])
    lines = look(
        translator, status="The target is the model's own translation, .*Use --to for another"
    )
    expected = record(translator.loaded.model, translator.loaded.tokenizer, TEXT, answer,
                      start=translator.loaded.generation_config.start)  # fmt: skip
    assert any(f"target -> {len(expected.tokens['tgt'])} tokens" in line for line in lines)


def test_a_window_is_a_part_of_the_text(decoder, look):
    trace = decoder.trace(window=(1, 4))
    lines = look(decoder, "--window", "1:4", "--map", "0.0")
    assert lines[-1].startswith("note: tokens 1 to 3 of ")
    assert lines[1 + 3].endswith(f"{trace.array('decoder.0.attention.weights')[0, 2].max():.2f}")


def test_ascii_draws_with_ascii_only(decoder, look):
    """Tokens are what they are; the tiny model knows some Chinese ones."""
    text = "the cat sat on the mat"
    flags = [[], ["--map", "1.2"], ["--find", "cat:the#1"], ["--lens"], ["--heads"], ["--steps"]]
    for words in flags:
        drawn = re.sub(
            "[\u4e00-\u9fff\uff0c]", "", "".join(look(decoder, *words, "--ascii", text=text))
        )
        assert drawn.isascii(), words
    assert not "".join(look(decoder, "--map", "1.2", text=text)).isascii()


def test_the_text_may_come_from_standard_input(decoder, look, monkeypatch):
    import io
    import sys

    expected = look(decoder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\n".encode())))
    assert look(decoder, text="-") == expected


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("decoder", ["--map", "2.0"], "there is no head decoder.2.0: decoder has 2 layers of 4"),
        ("decoder", ["--map", "x"], "a head is 'x': it must be LAYER.HEAD, counted from 0"),
        ("decoder", ["--ablate", "cross.0.0"], "there is no head cross.0.0"),
        ("decoder", ["--find", WORD], "it must be two words with a colon between them"),
        ("decoder", ["--find", "x:y"], "'x' is not in the text"),
        ("decoder", ["--token", "x"], "'x' is not in the text"),
        ("decoder", ["--window", "3"], "it must be two token positions with a colon between them"),
        ("decoder", ["--window", "5:5"], "window is 5:5, but the text has"),
        ("decoder", ["--to", "x"], "--to needs a model of kind encoder-decoder"),
        ("decoder", ["--cross"], "--cross needs a model of kind encoder-decoder"),
        ("encoder", ["--lens"], "--lens is about the next token"),
        ("encoder", ["--ablate", "0.0"], "--ablate is about the next token"),
        ("encoder-decoder", ["--lens", "--token", WORD, "--to", "a"], "Use a word of the target."),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_sentence(tmp_path_factory, capsys, kind, words, message):
    folder = tiny_folder(tmp_path_factory.mktemp("wrong") / kind, kind, attention=ATTENTION)
    assert main(["look", str(folder), TEXT, *words], COMMANDS) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_an_empty_text_is_the_first_token_or_refused(decoder, look, capsys):
    assert "text -> 1 token, 0 words" in look(decoder, text="")
    assert main(["look", decoder.folder, "", "--find", "a:b"], COMMANDS) == 2
    assert "'a' is not in the text" in capsys.readouterr().err
