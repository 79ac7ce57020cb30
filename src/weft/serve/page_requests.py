"""Which requests the web page answers: `GET /` of browsers, and its files below /assets/.

Other programs that ask for / are clients of Ollama, which look for its greeting.
"""

from __future__ import annotations

ASSETS = "/assets/"


def is_for_page(method: str, path: str, accept: str) -> bool:
    """Whether a request is answered by the web page."""
    return path.startswith(ASSETS) or wants_page(method, path, accept)


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether a browser asks for the page itself."""
    return path == "/" and method == "GET" and "text/html" in accept
