"""The pages of docs/how-to as changes of files: new files, diffs, and programs.

    ```python
    # src/weft/nn/new.py        a new file
    ```
    ```diff
    src/weft/nn/table.py        changes: lines with -, + or a space; @@ between places
    ```
    ```python
    import weft                 a program that uses the component
    ```

Run as a module, it executes the programs of a folder of pages and checks the contracts of models
with the new kinds; prints {page: error or null} as JSON. tests/test_how_to.py runs it on a copy.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACE = re.compile(r"(?:src|tests)/\S+\.py")


@dataclass(frozen=True)
class Page:
    """What a page changes, and how it uses the result."""

    new_files: dict[str, str]
    changes: list[tuple[str, str, str]]
    """Path, old text, new text."""
    programs: list[str]


def read_page(text: str) -> Page:
    page = Page({}, [], [])
    for language, block in re.findall(r"```(python|diff)\n(.*?)```", text, flags=re.DOTALL):
        first, rest = block.split("\n", 1)
        if language == "diff":
            assert PLACE.fullmatch(first), f"a diff begins with a path, not with {first!r}"
            page.changes.extend((first, *old_and_new(part)) for part in rest.split("@@\n"))
        elif PLACE.fullmatch(first.removeprefix("# ")):
            page.new_files[first.removeprefix("# ")] = rest
        else:
            page.programs.append(block)
    return page


def old_and_new(part: str) -> tuple[str, str]:
    lines = part.splitlines(keepends=True)
    # an editor may strip the space of an empty line
    lines = [line if line != "\n" else " \n" for line in lines]
    assert all(line[0] in " +-" for line in lines), part
    old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
    return old, new


def apply(page: Page, root: Path, folder: str = "") -> None:
    """Change the files below `root` whose path begins with `folder`."""
    for name, text in page.new_files.items():
        if name.startswith(folder):
            assert not (root / name).exists(), f"{name} exists already"
            (root / name).write_text(text, encoding="utf-8")
    for name, old, new in page.changes:
        if name.startswith(folder):
            source = (root / name).read_text(encoding="utf-8")
            assert source.count(old) == 1, f"{name} has {source.count(old)} times:\n{old}"
            (root / name).write_text(source.replace(old, new), encoding="utf-8")


NEW_KINDS: dict[str, dict[str, Any]] = {
    "position": {"position": {"kind": "kerple"}},
    "norm": {"norm": {"kind": "scalenorm"}},
    "feed-forward": {"feedforward": {"kind": "squared_relu", "width": 40}},
    "attention-heads": {"attention": {"kind": "gated", "num_heads": 4, "bias": True}},
    "kernel": {"attention": {"kind": "gqa", "num_heads": 4, "kernel": "chunked"}},
}
"""Settings of a model with the component of a page."""


class Draws:
    """In place of Hypothesis's data: the prompt lengths of the caching test."""

    def draw(self, strategy: object) -> tuple[int, int]:
        return 4, 2


def check_contracts(name: str) -> None:
    """The properties of tests/contracts, with the component of a page and otherwise defaults."""
    from tests.contracts import test_models as contracts
    from tests.contracts.settings import SIZES
    from weft.models.build import build_model
    from weft.models.config import ModelConfig
    from weft.models.weight_shapes import weight_shapes

    def config(kind: str) -> ModelConfig:
        return ModelConfig.from_dict({"kind": kind, **DEFAULTS, **SIZES, **NEW_KINDS[name]})

    for kind in ("decoder", "encoder", "encoder-decoder"):
        shapes = {n: tuple(w.shape) for n, w in build_model(config(kind)).named_parameters()}
        assert weight_shapes(config(kind)) == shapes
    decoder, pairs = config("decoder"), config("encoder-decoder")
    inner(contracts.test_a_later_token_changes_no_earlier_output)(decoder, 5)
    inner(contracts.test_padding_does_not_change_a_decoder)(decoder)
    inner(contracts.test_padding_does_not_change_an_encoder)(config("encoder"))
    inner(contracts.test_padding_of_source_and_target_changes_nothing)(pairs)
    inner(contracts.test_cached_equals_uncached_step_by_step)(decoder, Draws())
    inner(contracts.test_cached_equals_uncached_with_a_source)(pairs)
    check_engine(build_model(decoder, seed=1).eval())


DEFAULTS = {"attention": {"kind": "mha", "num_heads": 4}, "position": {"kind": "rotary"}}


def inner(test: Callable[..., None]) -> Callable[..., None]:
    """A property without Hypothesis's choice of arguments."""
    return test.hypothesis.inner_test  # type: ignore[attr-defined, no-any-return]


def check_engine(model: Any) -> None:
    """The engine's greedy tokens, with packed weights and pages, are those of forward passes."""
    import torch

    from tests.engine.asking import generate
    from weft.core.forward_batch import ForwardBatch

    prompts, expected = [[3, 7, 11, 2, 5], [4, 4, 9]], []
    with torch.no_grad():
        for prompt in prompts:
            ids = list(prompt)
            for _ in range(6):
                ids.append(int(model(ForwardBatch(torch.tensor([ids])))[0, -1].argmax()))
            expected.append(ids[len(prompt) :])
    assert generate(model, prompts, 6, end_id=None) == expected


def steps(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is run for each page, by a name."""
    for path in sorted(folder.glob("*.md")):
        for program in read_page(path.read_text(encoding="utf-8")).programs:
            yield (
                path.stem,
                lambda code=program, name=path.name: exec(compile(code, name, "exec"), {}),
            )
        if path.stem in NEW_KINDS:
            yield f"{path.stem}, contracts", lambda name=path.stem: check_contracts(name)


def main(folder: str) -> None:
    import torch

    errors: dict[str, str | None] = {}
    for name, run in steps(Path(folder)):
        torch.manual_seed(0)
        try:
            run()
            errors[name] = None
        except Exception:
            errors[name] = traceback.format_exc()
    sys.stderr.flush()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1])
