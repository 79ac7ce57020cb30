"""Install the client programs of the tests, each set in an environment of its own: `make clients`.

    tests/clients/a.txt -> .clients/a -> ~/.cache/weft/clients/<hash>

The hash is that of the pinned versions and of the Python interpreter, so that all clones share an
environment and a change of either makes a new one. Uses the standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LINKS = HERE.parents[1] / ".clients"
COMMAND = "make clients"


def environments() -> list[str]:
    """Names of the environments: one for each list of versions."""
    return sorted(path.stem for path in HERE.glob("*.txt"))


def python_of(name: str) -> Path:
    """The interpreter of an environment, which may be missing."""
    return LINKS / name / "bin" / "python"


def is_installed(name: str) -> bool:
    """Whether an environment has the versions that its list pins now."""
    return is_complete(LINKS / name, name)


def folder_of(name: str) -> Path:
    """The place of an environment outside the clone."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    identity = f"{sys.version} {sys.base_prefix}\n".encode() + requirements(name).read_bytes()
    return cache / "weft" / "clients" / hashlib.sha256(identity).hexdigest()[:32]


def requirements(name: str) -> Path:
    return HERE / f"{name}.txt"


def is_complete(folder: Path, name: str) -> bool:
    """Whether all of a list was installed: then its last file is a copy of the list."""
    copy = folder / "installed.txt"
    return copy.exists() and copy.read_bytes() == requirements(name).read_bytes()


def install(name: str) -> None:
    """Make an environment unless it is complete, and link it. Processes wait for each other."""
    folder = folder_of(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(folder, name):
            print(f"installing tests/clients/{name}.txt in {folder}", file=sys.stderr)
            run(sys.executable, "-m", "venv", "--clear", str(folder))
            run(str(folder / "bin" / "pip"), "install", "--quiet", "-r", str(requirements(name)))
            (folder / "installed.txt").write_bytes(requirements(name).read_bytes())
        link(LINKS / name, folder)


def run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def link(place: Path, folder: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.symlink_to(folder)
    new.replace(place)


def main() -> int:
    try:
        for name in environments():
            install(name)
    except subprocess.CalledProcessError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
