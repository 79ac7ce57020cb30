"""Settings of the server (`ServeConfig`): options of `weft serve`, a TOML file, WEFT_SERVE_*."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem

MIB = 2**20


class ServeConfig(Config):
    """Defaults suit one machine and its own programs."""

    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback addresses need API keys or no_auth."""
    port: int = Field(8000, ge=0, le=65535)
    """TCP port; 0: any free one."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead."""
    lenient: bool = False
    """Accept unknown fields on OpenAI's and Anthropic's routes, with a warning header."""
    look: bool = False
    """Allow attention weights and traces on addresses other than loopback."""
    no_auth: bool = False
    """Serve addresses other than loopback without API keys."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names in the Host header, as of a proxy."""
    cors: tuple[str, ...] = ()
    """Origins of web pages that may call the server; *: all."""
    max_body: int = Field(16 * MIB, ge=1)
    """Bytes of a request body."""
    timeout: float = Field(600.0, gt=0)
    """Seconds until a request is cancelled; the header x-request-timeout lowers it."""
    max_queued: int = Field(1024, ge=1)
    """Requests that may wait; more are answered with 429."""
    max_queue_seconds: float = Field(30.0, gt=0)
    """Seconds of prompt computation that may wait, by the measured rate."""
    max_concurrent: int | None = Field(None, ge=1)
    """Requests of one API key at a time."""
    max_output: int | None = Field(None, ge=1)
    """Upper bound of max_tokens."""
    drain_timeout: float = Field(60.0, ge=0)
    """Seconds that running requests have to finish after SIGTERM."""
    ping_seconds: float = Field(15.0, gt=0)
    """Seconds between two pings of a stream without tokens."""
    keep_billing_header: bool = False
    """Keep lines `x-anthropic-...:` at the beginning of system prompts, which change with every
    request and so defeat the prefix cache."""
    metrics_prefix: str = "vllm"
    """Prefix of the names of the metrics."""
    defaults: dict[str, Any] = {}
    """Sampling parameters for requests that leave them out."""

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def cross_checks(self) -> Iterable[Problem]:
        if not self.metrics_prefix.isidentifier():
            yield Problem(
                f"metrics_prefix is '{self.metrics_prefix}': it must be a word of letters, digits "
                "and _. Use vllm or weft.",
                ("metrics_prefix",),
            )
