"""The comparison of two recordings sees every kind of difference and names the first one."""

import json

import pytest

from tests.baseline import differences, main, without_ignored


def test_equal_recordings_have_no_difference():
    value = {"a": [1, {"b": 0.1, "c": float("nan")}], "d": None}
    assert list(differences(value, json.loads(json.dumps(value)))) == []


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        ({"x": [1.0]}, {"x": [1.0000000000000002]}, "x[0]: 1.0 (0x1.0000000000000p+0) != "),
        ({"x": 1}, {"x": 1.0}, "x: 1 != 1.0 (0x1.0000000000000p+0)"),
        ({"x": 0.0}, {"x": -0.0}, "x: 0.0 (0x0.0p+0) != -0.0 (-0x0.0p+0)"),
        ({"x": {"y": "s"}}, {"x": {"y": "t"}}, "x: y: 's' != 't'"),
        ({"x": 1, "y": 2}, {"x": 1}, "y: only in the first recording"),
        ({"x": 1}, {"x": 1, "y": 2}, "y: only in the second recording"),
        ({"x": [1, 2]}, {"x": [1]}, "x: 2 entries, then 1"),
        ({"x": [1]}, {"x": {"0": 1}}, "x: [1] != {'0': 1}"),
    ],
)
def test_a_difference_is_one_line_with_its_place_and_all_bits(a, b, line):
    (result,) = differences(a, b)
    assert result.startswith(line)


def test_fields_of_the_clock_are_ignored_at_every_depth():
    value = {"loss": 1.5, "seconds": 3.0, "valid": [{"tokens_per_second": 7, "bleu": 2.0}]}
    assert without_ignored(value) == {"loss": 1.5, "valid": [{"bleu": 2.0}]}


@pytest.mark.parametrize(("second", "code"), [(0.5, 0), (0.25, 1)])
def test_the_command_exits_with_1_after_a_difference(tmp_path, capsys, second, code):
    for name, loss in (("a", 0.5), ("b", second)):
        values = {"environment": {}, "dates/losses": [{"step": 1, "loss": loss}]}
        (tmp_path / name).write_text(json.dumps(values))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == code
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("dates/losses[0]: loss: 0.5" if code else "identical: 1 entries")
