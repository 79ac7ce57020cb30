"""The C++ sources: no constant stands for two things."""

from __future__ import annotations

import re
from collections import defaultdict

from weft.native.compiler import SOURCE_FOLDER

CONSTANT = re.compile(r"^constexpr [\w: ]+?\b([A-Z_]+) = ", re.MULTILINE)


def test_no_two_headers_define_a_constant_of_one_name() -> None:
    """A source that includes both would see either, depending on the namespace it is in."""
    headers = defaultdict(set)
    for path in SOURCE_FOLDER.glob("*.h"):
        for constant in CONSTANT.findall(path.read_text()):
            headers[constant].add(path.name)
    assert len(headers) > 5
    assert {name: files for name, files in headers.items() if len(files) > 1} == {}
