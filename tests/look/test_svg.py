"""The picture of a head: valid XML, labels as text, every weight as a tooltip."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.look.svg import HeadPicture, color, head_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def picture(labels: list[str], **changes) -> HeadPicture:
    weights_TS = np.full((len(labels), len(labels)), 1 / len(labels))
    return HeadPicture(**{"title": "m", "weights_TS": weights_TS, "rows": labels,
                          "columns": labels, **changes})  # fmt: skip


def cells_of(root: ET.Element) -> list[ET.Element]:
    return [
        one for one in root.iter(f"{NAMESPACE}rect") if one.find(f"{NAMESPACE}title") is not None
    ]


def test_each_weight_is_a_cell_with_its_number():
    weights_TS = np.array([[1.0, 0.0], [0.375, 0.625]])
    mask_TS = np.array([[True, False], [True, True]])
    one = picture(["I", "\u82f9\u679c"], weights_TS=weights_TS, mask_TS=mask_TS, title="a < b & c")
    root = ET.fromstring(head_svg(one))
    texts = [text.text for text in root.iter(f"{NAMESPACE}text")]
    assert texts[0] == "a < b & c" and texts.count("\u82f9\u679c") == 2
    titles = [cell.find(f"{NAMESPACE}title").text for cell in cells_of(root)]
    assert titles == [
        "I \u2192 I: 1.0000",
        "I \u2192 \u82f9\u679c: masked",
        "\u82f9\u679c \u2192 I: 0.3750",
        "\u82f9\u679c \u2192 \u82f9\u679c: 0.6250",
    ]
    fills = [cell.get("fill") for cell in cells_of(root)]
    assert fills == ["#00224e", "url(#masked)", color(0.375), color(0.625)]
    chinese = [text for text in root.iter(f"{NAMESPACE}text") if text.text == "\u82f9\u679c"]
    assert {text.get("lang") for text in chinese} == {"zh"}


def test_wide_labels_have_room():
    lines = [float(ET.fromstring(head_svg(picture([label]))).get("width"))
             for label in ("abcd", "\u82f9\u679c", "\u82f9\u679c\u82f9\u679c")]  # fmt: skip
    assert lines[0] == lines[1] < lines[2]


@pytest.mark.parametrize(
    "label",
    [
        "<img onerror=alert(1)>",
        "&lt;",
        "\u202eabc\u202c",
        "\x00\x1b[31m",
        "\"'",
        "a" * 10_000,
        "\ud800",
    ],
)
def test_labels_remain_text(label):
    text = head_svg(picture([label, "b"], title=label))
    root = ET.fromstring(text.encode())
    assert {one.tag for one in root.iter()} <= {
        NAMESPACE + name
        for name in ("svg", "title", "style", "defs", "pattern", "path", "rect", "text")
    }
    assert not any(char in text for char in "\u202e\u202c\x00\x1b\ud800")


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4), st.text(max_size=20))
def test_any_text_is_valid_xml(labels, title):
    root = ET.fromstring(head_svg(picture(labels, title=title)).encode())
    assert len(cells_of(root)) == len(labels) ** 2


def test_colors_run_from_white_to_dark():
    assert [color(weight) for weight in (-1, 0, 0.5, 1, 2)] == [
        "#ffffff",
        "#ffffff",
        "#7c9bc9",
        "#00224e",
        "#00224e",
    ]


def test_a_long_text_is_refused():
    with pytest.raises(UsageError, match="300 x 300 weights: a picture has at most 256"):
        head_svg(picture(["a"] * 300))
