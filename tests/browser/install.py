"""Install Debian's Chromium and fonts for Chinese text, for tests/browser: `make browser`.

Does nothing where a browser is installed. Uses the standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-noto-cjk")
COMMANDS = (
    ("apt-get", "update"),
    ("apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES),
)


def find_browser() -> str | None:
    """The path of an installed browser."""
    return next((path for path in map(shutil.which, BROWSERS) if path is not None), None)


def main() -> int:
    if find_browser() is not None:
        return 0
    if shutil.which("apt-get") is None:
        print(
            f"make browser: there is no apt-get. Install one of {', '.join(BROWSERS)} with the "
            "package manager of this system.",
            file=sys.stderr,
        )
        return 1
    try:
        for command in COMMANDS:
            subprocess.run(command, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"make browser: {error}. Run it as root.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
