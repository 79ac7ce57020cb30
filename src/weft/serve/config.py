"""Settings of the server (`ServeConfig`): options of `weft serve`, WEFT_SERVE_*, a TOML file.

    serve_settings({"port": 8001}, os.environ, Path("serve.toml"))

Names are the same everywhere: option --max-queued, variable WEFT_SERVE_MAX_QUEUED, line
`max_queued = 64`. An option wins over the environment, the environment over the file. In the
environment, several values are separated by commas, and tables are NAME=VALUE. API keys are not
settings: see api_keys.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from weft.core.config import Config, read_settings
from weft.core.errors import Problem, UsageError
from weft.sampling.params import SamplingParams
from weft.text.languages import LanguagePair, parse_languages

MIB = 2**20
VARIABLE = "WEFT_SERVE_"
"""Prefix of the environment variables."""
CONFIG_VARIABLE = VARIABLE + "CONFIG"
"""Names the file, as --config does."""
EXAMPLES = {
    "alias": "gpt-4o=smollm2",
    "languages": "demo=en:de",
    "defaults": "temperature=0.7",
}
"""An entry of each table."""


class ServeConfig(Config):
    """Defaults suit one machine and its own programs."""

    models: tuple[str, ...] = ()
    """MODEL or NAME=MODEL; none: all pulled models, each loaded at its first request."""
    alias: dict[str, str] = {}
    """Another name of a model, as NAME=MODEL; gpt-4o=smollm2 for programs with a fixed name."""
    languages: dict[str, str] = {}
    """Languages of a translation model, as NAME=SOURCE:TARGET; default: those of its config.json.
    demo=en:de lets /translate use the model demo."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback addresses need API keys or --no-auth."""
    port: int = Field(8000, ge=0, le=65535)
    """TCP port; 0: any free one."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead."""
    tls_cert: str | None = None
    """File with the TLS certificate chain (PEM): serves https."""
    tls_key: str | None = None
    """File with the private key of the TLS certificate (PEM)."""
    api_keys: str | None = None
    """File with lines `name = key`. WEFT_API_KEY in the environment has more."""
    no_auth: bool = False
    """Serve addresses other than loopback without API keys."""
    cors: tuple[str, ...] = ()
    """Origin of web pages that may call the server, such as https://example.org; *: all."""
    allowed_host: tuple[str, ...] = ()
    """Further name in the Host header, as of a proxy."""
    look: bool = False
    """Allow attention weights and traces on addresses other than loopback."""
    lenient: bool = False
    """Accept unknown fields on OpenAI's and Anthropic's routes, with a warning header."""
    keep_billing_header: bool = False
    """Keep lines `x-anthropic-...:` at the beginning of system prompts, which change with every
    request and so defeat the prefix cache."""
    max_body: int = Field(16 * MIB, ge=1)
    """Largest request body, in bytes; larger ones are answered with 413."""
    timeout: float = Field(600.0, gt=0)
    """Seconds until a request is cancelled; the header x-request-timeout lowers it."""
    max_queued: int = Field(1024, ge=1)
    """Texts of one API key that may wait; more are answered with 429. n samples are n texts."""
    max_queue_seconds: float = Field(30.0, gt=0)
    """Seconds that a request may have to wait until its prompt is computed, by the measured
    rate."""
    max_queued_tokens: int | None = Field(None, ge=1)
    """Tokens of prompts that may wait, whatever the rate."""
    max_concurrent: int | None = Field(None, ge=1)
    """Texts of one API key in progress at a time; more are answered with 429. n samples are n
    texts."""
    max_prompt: int | None = Field(None, ge=1)
    """Tokens of one prompt; longer ones are answered with 400."""
    max_output: int | None = Field(None, ge=1)
    """Most tokens that a request may generate: an upper bound of its max_tokens."""
    drain_timeout: float = Field(60.0, ge=0)
    """Seconds that running requests have to finish after SIGTERM."""
    ping_seconds: float = Field(15.0, gt=0)
    """Seconds between two pings of a stream without tokens."""
    cache: Literal["auto"] | Annotated[float, Field(ge=0, le=65536)] = "auto"
    """KV cache of all models in GiB; auto: half of the available memory; 0: nothing is kept between
    requests."""
    reserve: bool = False
    """Assign the memory of the KV cache after the start, between requests: the first use of a page
    takes time."""
    keep: str | None = None
    """Folder in which prefix caches are kept, one file for each model: loaded at startup, saved
    when the server stops and after 10 minutes without a request."""
    activations: Literal["float32", "int8"] = "float32"
    """float32, or int8: faster with quantized weights, not exact."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads; default: one per available core."""
    max_model_len: int | None = Field(None, ge=2)
    """Prompt and new tokens together, if lower than the model's own limit."""
    tool_format: str | None = None
    """How models write tool calls: hermes, llama3 or mistral; default: found by the chat
    template."""
    chat_template: str | None = None
    """File with a Jinja chat template that replaces the model's own."""
    defaults: dict[str, Any] = {}
    """Sampling parameter for requests that leave it out, such as temperature=0.7."""
    metrics_prefix: str = "vllm"
    """First part of the names at /metrics: vllm, so that its dashboards work, or weft."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info (one line per request), warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text (key=value) or json."""

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def language_pairs(self) -> dict[str, LanguagePair]:
        """Source and target by name of the model; raises a UsageError for other texts."""
        return parse_languages([f"{name}={codes}" for name, codes in self.languages.items()])

    def cross_checks(self) -> Iterable[Problem]:
        if not self.metrics_prefix.isidentifier():
            yield Problem(
                f"metrics_prefix is '{self.metrics_prefix}': it must be a word of letters, digits "
                "and _. Use vllm or weft.",
                ("metrics_prefix",),
            )
        if self.keep is not None and self.cache == 0:
            yield Problem(
                f"keep is {self.keep}, but cache is 0: there is nothing to keep. Set one of them.",
                ("keep", "cache"),
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            yield Problem(
                f"tls_cert is {self.tls_cert} and tls_key is {self.tls_key}: both are needed for "
                "https. Set both or none.",
                ("tls_cert", "tls_key"),
            )
        SamplingParams.from_dict(self.defaults, "defaults")
        try:
            _ = self.language_pairs
        except UsageError as error:
            yield Problem(str(error), ("languages",))


def serve_settings(
    options: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> ServeConfig:
    """The settings from all sources; options that are None or empty were not set. Without `file`,
    WEFT_SERVE_CONFIG may name it."""
    path = file or environ.get(CONFIG_VARIABLE)
    values = read_settings(path) if path else {}
    for name in ServeConfig.model_fields:
        text = environ.get(VARIABLE + name.upper())
        if text:
            values[name] = read_value(name, text)
    for name, value in options.items():
        if value not in (None, [], ()):
            values[name] = read_value(name, value)
    return ServeConfig.from_dict(values, "settings of the server")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that begin like settings and are none, as one that is misspelled."""
    known = {CONFIG_VARIABLE, *(VARIABLE + name.upper() for name in ServeConfig.model_fields)}
    return sorted(name for name in environ if name.startswith(VARIABLE) and name not in known)


def read_value(name: str, value: Any) -> Any:
    """The value of a field from texts: 'a,b' or ['a', 'b'] for several, ['k=v'] for a table."""
    kind = container(ServeConfig.model_fields[name])
    if kind is None:
        return value
    texts = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    return tuple(texts) if kind is tuple else read_table(name, texts)


def container(info: FieldInfo) -> type | None:
    """tuple or dict for a field with several values; None for others."""
    origin = get_origin(info.annotation)
    return origin if origin in (tuple, dict) else None


def read_table(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """['temperature=0.7'] -> {'temperature': 0.7}; other values stay texts."""
    table: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise UsageError(
                f"{name} is '{text}': it must be NAME=VALUE, such as {EXAMPLES[name]}."
            )
        table[key] = json_or_text(value) if name == "defaults" else value
    return table


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
