"""What the extras of pyproject.toml add to an installation: python -m tests.extra_sizes

Sizes on disk of the installed packages that an extra needs and Weft without extras does not. An
extra with a package that is not installed here is not measured.
"""

from __future__ import annotations

import importlib.metadata as metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "weft"


def extras() -> list[str]:
    return metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []


def packages(name: str, extra: str = "") -> set[str]:
    """Names of all packages that a package with an extra needs, itself included."""
    needed: set[str] = set()
    waiting = [(name, extra)]
    while waiting:
        name, extra = waiting.pop()
        needed.add(canonicalize_name(name))
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            inner = requirement.extras or {""}
            if canonicalize_name(requirement.name) not in needed or inner != {""}:
                waiting += [(requirement.name, one) for one in inner]
    return needed


def megabytes(name: str) -> float:
    """Size of the files of an installed package."""
    files = metadata.files(name) or []
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def main() -> None:
    base = packages(DISTRIBUTION)
    torch = megabytes("torch")
    total = sum(megabytes(name) for name in base - {DISTRIBUTION})
    print(
        f"without extras: {total:,.0f} MB in {len(base) - 1} packages, of which torch {torch:,.0f}"
    )
    for extra in extras():
        try:
            added = packages(DISTRIBUTION, extra) - base
        except metadata.PackageNotFoundError as error:
            print(f"{extra}: not measured, {error.name} is not installed")
            continue
        size = sum(megabytes(name) for name in added)
        print(f"{extra}: {size:,.0f} MB in {len(added)} packages")


if __name__ == "__main__":
    main()
