"""The log of the server: one line for each request, as key=value or JSON.

    2026-11-18 07:30:01 INFO id=req_1f key=alice model=demo route=/v1/completions status=200 ...
    {"time": "2026-11-18T07:30:01.123Z", "level": "info", "id": "req_1f", "key": "alice", ...}

Contains no text of prompts or answers; of errors that a client has caused it has type, code and
field, but not the message, which may quote the request. Requests for /health, /ready, /metrics and
pages, which monitors send all the time, are logged at level debug.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.serve.api_errors import ApiError, openai_type
from weft.serve.bodies import known_fields
from weft.serve.config import ServeConfig
from weft.serve.page_requests import ASSETS

if TYPE_CHECKING:
    from weft.serve.context import RequestRecord

log = logging.getLogger("weft.serve.request")

QUIET_ROUTES = ("/", "/health", "/ready", "/metrics", "/version", "/docs", "/favicon.ico")
LOGGERS = ("weft", "uvicorn")
FIELD = re.compile(r"(\w+)(?:\[\d+\])*")
"""A field of a request, such as messages[3]."""
DIGITS = 4
"""Seconds are logged to a tenth of a millisecond."""


def log_request(record: RequestRecord) -> None:
    """A sink of the service: log a request that has ended."""
    is_quiet = record.route in QUIET_ROUTES or record.route.startswith(ASSETS)
    level = logging.DEBUG if is_quiet else logging.INFO
    if log.isEnabledFor(level):
        fields = record_fields(record)
        log.log(level, "%s", pairs(fields), extra={"fields": fields})


def record_fields(record: RequestRecord) -> dict[str, Any]:
    """What is known about a request; values that are not known are left out."""
    fields: dict[str, Any] = {
        "id": record.id,
        "key": record.key or None,
        "model": record.model or None,
        "route": record.route,
        "status": record.status or None,
        "prompt_tokens": record.prompt_tokens or None,
        "cached_tokens": record.cached_tokens if record.prompt_tokens else None,
        "new_tokens": record.completion_tokens or None,
        "queue": seconds(record.queue_seconds),
        "ttft": seconds(record.first_token_seconds),
        "total": seconds(record.total_seconds),
        "finish": record.finish_reason or None,
        "seed": record.seed,
        **({} if record.error is None else error_fields(record.error)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def error_fields(error: ApiError) -> dict[str, Any]:
    """What the log says about an error. The message of a client's error may quote what was sent,
    which may be text of a prompt: then only type, code and field are logged."""
    if not 400 <= error.status < 500:
        return {"error": error.message}
    field = FIELD.match(error.param or "")
    is_known = field is not None and field[1] in known_fields()
    param = field[0] if field is not None and is_known else None
    return {"error": openai_type(error.status), "code": error.code, "param": param}


def seconds(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def pairs(fields: Mapping[str, Any]) -> str:
    """key=value, with quotes around texts that need them."""
    return " ".join(f"{name}={quoted(value)}" for name, value in fields.items())


def quoted(value: Any) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(char in text for char in " '\"=")
    return text if is_plain and text else json.dumps(text)


class TextFormatter(logging.Formatter):
    """Time, level and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One JSON object for each event; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, Any] = {
            "time": f"{begin}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        event |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)


def configure_logging(config: ServeConfig) -> None:
    """Log to standard error as the settings say. uvicorn's own lines count as warnings at least."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    level = getattr(logging, config.log_level.upper())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "weft" else max(level, logging.WARNING))
