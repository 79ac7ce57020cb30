"""Checks against requests of foreign web pages: headers of a request -> ApiError or CORS headers.

Without them, any page in a browser could use a server on the same machine. The Host header must be
a known name (against DNS rebinding); a request with a foreign Origin is rejected unless `--cors`
allows it; and the routes of OpenAI and Anthropic require the content type application/json, which a
page cannot send to another origin without a CORS preflight request. Responses to allowed origins
have CORS headers, also on errors and preflight requests.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from weft.serve.api_errors import ApiError, protocol_of
from weft.serve.context import HttpCall

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
OPEN_PATHS = ("/", "/docs", "/health", "/ready", "/version", "/openapi.json", "/favicon.ico")


def is_open(call: HttpCall) -> bool:
    """Whether a route needs no API key."""
    path = call.request.url.path
    if path in OPEN_PATHS or path.startswith("/assets/") or call.request.method == "OPTIONS":
        return True
    if protocol_of(path) == "libretranslate":  # its key may be in the body: the routes check it
        return True
    return path == "/metrics" and call.config.is_loopback


def check_access(call: HttpCall) -> None:
    """Raise an ApiError for a request that a foreign web page may have caused."""
    config, headers = call.config, call.request.headers
    host, is_foreign = host_of(headers.get("host", "")), is_other_origin(headers)
    # web pages cannot reach a Unix socket, and its clients send any name
    is_checked = config.is_loopback and config.uds is None
    if is_checked and host and not is_known(host, config.allowed_host):
        raise ApiError(
            403, f"the Host header is '{host[:100]}'. Use --allowed-host to allow this name."
        )
    origin = headers.get("origin", "")
    if is_foreign and not is_allowed(origin, config.cors):
        raise ApiError(
            403, f"requests from {origin[:100]} are not allowed. Use --cors to allow this origin."
        )
    if is_foreign:
        call.response_headers.update(cors_headers(origin))
    if call.request.method == "POST" and protocol_of(call.request.url.path) in (
        "openai",
        "anthropic",
    ):
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and headers.get("content-length", "1") != "0":
            raise ApiError(415, f"the content type is '{kind[:60]}'. Send application/json.")


def cors_headers(origin: str) -> dict[str, str]:
    """Let a page of this origin read the response, and send what the protocols need."""
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": "*, authorization",
        "access-control-expose-headers": "*",
        "access-control-max-age": "600",
        "vary": "origin",
    }


def is_preflight(call: HttpCall) -> bool:
    """Whether a browser asks if a page may send a request."""
    headers = call.request.headers
    return call.request.method == "OPTIONS" and "access-control-request-method" in headers


def host_of(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_known(host: str, allowed: tuple[str, ...]) -> bool:
    if host in LOCAL_NAMES or host in map(str.lower, allowed):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.endswith(".localhost")


def is_other_origin(headers: Headers) -> bool:
    """Whether the request is from a page of another server; another port is another server."""
    origin = headers.get("origin")
    if not origin:
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:  # brackets that are not those of an IPv6 address
        return True


def is_allowed(origin: str, cors: tuple[str, ...]) -> bool:
    return "*" in cors or origin in cors
