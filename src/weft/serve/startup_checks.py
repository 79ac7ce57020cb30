"""Checks before a server starts, beyond the validation of its settings.

check_exposure(config, keys)      addresses that other machines can reach need a key
check_tls(config)                 certificate and private key can be read and belong together
check_template(path)              a chat template compiles

Each raises a UsageError or DataError with one sentence. None of them imports torch.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from weft.core.config import read_text
from weft.core.errors import DataError, UsageError
from weft.serve.api_keys import ApiKeys
from weft.serve.config import ServeConfig


def check_exposure(config: ServeConfig, keys: ApiKeys) -> None:
    """Raise a UsageError for an address that others can reach without a key."""
    if not (config.is_loopback or keys or config.no_auth):
        raise UsageError(
            f"host is {config.host}, which other machines can reach, and there is no API key. Use "
            "--api-keys FILE, set WEFT_API_KEY, or allow everyone with --no-auth."
        )


def check_tls(config: ServeConfig) -> None:
    """Raise a DataError for a certificate or private key that cannot be used."""
    if config.tls_cert is None or config.tls_key is None:
        return
    for name in (config.tls_cert, config.tls_key):
        read_text(Path(name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:  # an empty password: OpenSSL would otherwise ask for one on the terminal
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"it and tls_key {config.tls_key} cannot be used for TLS ({reason}). Both must be PEM "
            "files, the key without a password and that of the certificate.",
            config.tls_cert,
        ) from None


def check_template(path: str) -> None:
    """Raise a DataError for a file that is not a chat template. Compiles it in the helper process
    that renders templates."""
    from weft.text.chat_template import ChatTemplate

    try:
        ChatTemplate(read_text(Path(path)))
    except DataError as error:
        if error.path is not None:
            raise
        raise DataError(str(error), path) from None
