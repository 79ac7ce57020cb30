"""Options of `weft serve`: each has the effect that docs/serve.md names.

Options of the process (TLS, files of keys and settings, variables, threads, a Unix socket) are
tested with a real `weft serve`, those of requests with a server in this process.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess
from tests.serve.server import RunningServer, make_service, running
from weft.core.errors import DataError
from weft.serve.config import ServeConfig
from weft.serve.startup_checks import check_template, check_tls

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
BODY: dict[str, Any] = {"model": "decoder", "prompt": "the cat", "max_tokens": 2}
KEYS = {"alice": "key-a", "bob": "key-b"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("options") / "long", "decoder", max_len=400)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    place = tmp_path_factory.mktemp("tls")
    cert, key = place / "cert.pem", place / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([program, "req", *kind, *subject, *files], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def local() -> Iterator[RunningServer]:
    """A server on loopback without keys, for its own pages and those of one origin."""
    service = make_service(
        cors=("https://good.example",),
        allowed_host=("Weft.example",),
        max_body=2000,
        max_prompt=4,
    )
    with running(service) as one:
        yield one


@pytest.fixture(scope="module")
def outside() -> Iterator[RunningServer]:
    """A server with the settings of one that other machines can reach."""
    with running(make_service(keys=KEYS, host="0.0.0.0", lenient=True)) as one:
        yield one


def test_files_variables_and_options_of_a_process(folder, certificate, tmp_path):
    cert, key = certificate
    (tmp_path / "keys").write_text("alice = key-a\nbob = key-b\n")
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    settings = tmp_path / "serve.toml"
    settings.write_text(
        f'api_keys = "{tmp_path / "keys"}"\nmetrics_prefix = "weft"\nmax_model_len = 300\n'
        'max_queued = 7\n[alias]\ngpt-4o = "long"\n'
    )
    environ = {
        "WEFT_API_KEY": "key-c",
        "WEFT_SERVE_MAX_MODEL_LEN": "200",
        "WEFT_SERVE_ACTIVATIONS": "int8",
        "WEFT_SERVE_CACHE": "0.05",
        "WEFT_SERVE_THREADS": "1",
        "WEFT_SERVE_CONFIG": str(settings),
        "WEFT_SERVE_MAX_QUEUD": "3",
    }
    options = ["--tls-cert", cert, "--tls-key", key, "--threads", "2"]
    options += ["--chat-template", tmp_path / "template.jinja"]
    with ServeProcess(folder, *options, environ=environ) as server:
        assert server.url.startswith("https://127.0.0.1:")
        server.client.close()
        server.client = httpx.Client(
            base_url=server.url, timeout=60, verify=ssl.create_default_context(cafile=str(cert))
        )
        server.wait_ready()
        check_process(server.client)
        server.stop()
        assert server.exit_code() == 0
    assert any("2 threads" in line for line in server.lines)
    assert any("variable=WEFT_SERVE_MAX_QUEUD state=ignored" in line for line in server.lines)


def check_process(client: httpx.Client) -> None:
    """The settings of all sources are in effect."""
    for key, status in (("key-a", 200), ("key-b", 200), ("key-c", 200), ("key-d", 401)):
        answer = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status
    client.headers["x-api-key"] = "key-a"
    models = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert models["long"]["max_model_len"] == 200 and "gpt-4o" in models
    chat = {"model": "gpt-4o", "messages": [{"role": "user", "content": "the cat"}]}
    answer = client.post("/v1/chat/completions", json={**chat, "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    info = client.get("/server_info").json()
    engine = info["models"]["long"]["engine"]
    assert engine["activations"] == "int8" and engine["cache_gib"] == 0.05
    assert info["settings"]["max_queued"] == 7
    metrics = client.get("/metrics").text
    assert "\nweft:num_requests_running" in metrics and "vllm:" not in metrics


def test_a_unix_socket_is_served_with_any_host_but_not_any_origin(folder, tmp_path):
    path = tmp_path / "socket"
    with ServeProcess(folder, "--cache", "0.05", "--uds", path) as server:
        assert server.url == f"unix:{path}"
        server.client.close()
        transport = httpx.HTTPTransport(uds=str(path))
        server.client = httpx.Client(transport=transport, base_url="http://weft", timeout=60)
        server.wait_ready()
        assert server.client.post("/v1/completions", json={**BODY, "model": "long"}).is_success
        foreign = server.client.get("/v1/models", headers={"origin": "https://other.example"})
        assert foreign.status_code == 403
        server.stop()
        assert server.exit_code() == 0
        assert not path.exists()


def test_files_for_tls_are_checked_before_listening(certificate, tmp_path):
    cert, key = map(str, certificate)
    check_tls(ServeConfig())
    check_tls(ServeConfig(tls_cert=cert, tls_key=key))
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not PEM")
    for files in ((cert, str(wrong)), (str(wrong), key), (key, cert)):
        with pytest.raises(DataError, match=r"cannot be used for TLS .* Both must be PEM files"):
            check_tls(ServeConfig(tls_cert=files[0], tls_key=files[1]))
    with pytest.raises(DataError, match=r"missing\.pem: there is no such file"):
        check_tls(ServeConfig(tls_cert=cert, tls_key=str(tmp_path / "missing.pem")))


def test_a_chat_template_is_compiled_at_startup(tmp_path):
    path = tmp_path / "x.jinja"
    path.write_text(TEMPLATE)
    check_template(str(path))
    path.write_text("{% if %}")
    with pytest.raises(DataError, match=r"x\.jinja: the chat template cannot be used"):
        check_template(str(path))
    with pytest.raises(DataError, match=r"y\.jinja: there is no such file"):
        check_template(str(tmp_path / "y.jinja"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("[::1]:8000", 200),
        ("127.0.0.2", 200),
        ("app.localhost", 200),
        ("weft.EXAMPLE", 200),
        ("rebound.example", 403),
        ("10.0.0.1", 403),
        ("localhost.example", 403),
    ],
)
def test_the_host_header_on_loopback_is_a_known_name(local, host, status):
    answer = local.get("/v1/models", headers={"host": host})
    assert answer.status_code == status
    if status == 403:
        assert "--allowed-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused(local, origin):
    for path in ("/v1/completions", "/api/generate", "/v1/messages"):
        answer = local.post(path, BODY, headers={"origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    assert local.client.options("/v1/completions", headers=preflight).status_code == 403


def test_the_own_page_and_an_allowed_origin_may_call(local):
    own = local.post("/v1/completions", BODY, headers={"origin": local.url})
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    origin = {"origin": "https://good.example"}
    for body, status in ((BODY, 200), ({}, 400)):
        answer = local.post("/v1/completions", body, headers=origin)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == origin["origin"]
    preflight = {**origin, "access-control-request-method": "POST"}
    answer = local.client.options("/v1/completions", headers=preflight)
    assert answer.status_code == 204
    assert "authorization" in answer.headers["access-control-allow-headers"]


def test_the_content_type_is_checked_on_two_protocols(local):
    plain = {"content-type": "text/plain"}
    for path, status in (("/v1/completions", 415), ("/v1/messages", 415), ("/api/show", 200)):
        answer = local.client.post(path, content=b'{"model": "decoder"}', headers=plain)
        assert answer.status_code == status, answer.text


def test_the_body_is_bounded_with_and_without_a_length(local):
    large = b'{"prompt": "' + b"a" * 3000 + b'"}'
    headers = {"content-type": "application/json"}
    for content in (large, iter([large[:1500], large[1500:]])):
        answer = local.client.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert "larger than 2000 bytes" in answer.json()["error"]["message"]
    assert local.post("/v1/completions", BODY).status_code == 200


def test_the_prompt_is_bounded(local):
    assert local.post("/v1/completions", {**BODY, "prompt": [5, 6, 7, 8]}).status_code == 200
    answer = local.post("/v1/completions", {**BODY, "prompt": [[5], [5, 6, 7, 8, 5]]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "the prompt has 5 tokens, and this server accepts at most 4" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_keys_are_needed_except_on_open_routes(outside):
    for path in ("/v1/models", "/metrics", "/server_info", "/api/tags"):
        assert outside.get(path).status_code == 401
        assert outside.get(path, headers={"x-api-key": "key-x"}).status_code == 401
        assert outside.get(path, headers={"x-api-key": "key-b"}).status_code == 200
    for path in ("/", "/docs", "/health", "/ready", "/version"):
        assert outside.get(path).status_code == 200
    wrong = outside.post("/v1/messages", {}, headers={"authorization": "Bearer key-"})
    assert wrong.status_code == 401 and wrong.json()["error"]["type"] == "authentication_error"


def test_other_machines_use_any_host_name(outside):
    headers = {"host": "weft.example", "x-api-key": "key-a"}
    assert outside.get("/v1/models", headers=headers).status_code == 200


def test_unknown_fields_are_refused_or_with_lenient_reported(local, outside):
    body = {**BODY, "temprature": 1}
    answer = local.post("/v1/completions", body)
    assert answer.status_code == 400 and "temperature" in answer.json()["error"]["message"]
    answer = outside.post("/v1/completions", body, headers={"x-api-key": "key-a"})
    assert answer.status_code == 200 and "temprature" in answer.headers["x-weft-warning"]


@pytest.mark.slow
def test_reserve_assigns_the_memory_of_the_cache_after_the_start(folder: Path) -> None:
    def resident(*options: str) -> int:
        with ServeProcess(folder, "--cache", "0.2", *options) as server:
            server.wait_ready()
            while server.client.get("/server_info").json()["models"][folder.name]["is_reserving"]:
                time.sleep(0.02)
            status = Path(f"/proc/{server.process.pid}/status").read_text()
        (line,) = (one for one in status.splitlines() if one.startswith("VmRSS:"))
        return 1024 * int(line.split()[1])

    assert resident("--reserve") - resident() > 0.15 * 2**30


def test_memory_is_assigned_while_the_model_is_served() -> None:
    service, may_go_on = make_service(), threading.Event()
    served = service.models.get("decoder")
    assert not served.is_reserving
    served.engine.call(lambda engine: may_go_on.wait(20))
    served.reserve()
    assert served.is_reserving and served.reserving is not None
    may_go_on.set()
    served.reserving.result(20)
    assert not served.is_reserving
    service.models.close()
