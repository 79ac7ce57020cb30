"""Errors of the HTTP server: one `ApiError`, and its body in the shape of each protocol.

    /api/...                   {"error": message}                               Ollama
    /v1/messages...            {"type": "error", "error": {"type", "message"}}   Anthropic
    /translate, /languages     {"error": message}                               LibreTranslate
    all others                 {"error": {message, type, param, code}}          OpenAI

OpenAI's `code` is a string or null, never a number. Unknown routes answer in the shape of their
prefix. A UsageError or ConfigError of the engine is a 400 with the same sentence.
"""

from __future__ import annotations

from typing import Any

from weft.core.errors import ConfigError, UsageError

OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


LIBRETRANSLATE = ("/translate", "/languages", "/detect", "/suggest", "/translate_file")
"""Its paths, also those that are not served: its clients read errors of this shape."""


MAX_START, MAX_END = 700, 300
"""Characters that are left of a long message: its end says what to do."""
MAX_PARAM = 200


class ApiError(Exception):
    """A request that is answered with an error status. A value that the message quotes may be as
    large as the request, so long messages are cut."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, shortened(message), code
        self.param = None if param is None else param[:MAX_PARAM]
        self.headers = headers or {}


def shortened(message: str) -> str:
    """A message without the middle of a long one."""
    if len(message) <= MAX_START + MAX_END:
        return message
    return f"{message[:MAX_START]}...{message[-MAX_END:]}"


def api_error(error: Exception) -> ApiError | None:
    """The answer to an exception that the caller has caused; None for a fault of the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (UsageError, ConfigError)):
        return ApiError(400, str(error))
    return None


def server_fault(problem: str, request_id: str) -> ApiError:
    """The answer to a fault of the server, which the log has under the id of the request."""
    return ApiError(500, f"{problem} The request id is {request_id}.")


def protocol_of(path: str) -> str:
    """The protocol whose error shape a path has."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    if path == "/api" or path.startswith("/api/"):
        return "ollama"
    if path in LIBRETRANSLATE:
        return "libretranslate"
    return "openai"


def error_status(protocol: str, status: int) -> int:
    """The status in a protocol: Anthropic's overload is 529."""
    return 529 if protocol == "anthropic" and status == 503 else status


def error_body(path: str, error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The body of an error response on this path."""
    protocol = protocol_of(path)
    if protocol in ("ollama", "libretranslate"):
        return {"error": error.message}
    if protocol == "anthropic":
        kind = ANTHROPIC_TYPES.get(error.status, "api_error")
        content: dict[str, Any] = {"type": kind, "message": error.message}
        if error.code is not None:
            content["details"] = {"error_code": error.code}
        body = {"type": "error", "error": content}
        return body if request_id is None else {**body, "request_id": request_id}
    fields = {"type": openai_type(error.status), "param": error.param, "code": error.code}
    return {"error": {"message": error.message, **fields}}


def openai_type(status: int) -> str:
    """OpenAI's type of the errors with a status."""
    default = "server_error" if status >= 500 else "invalid_request_error"
    return OPENAI_TYPES.get(status, default)
