"""A real `weft serve`: it listens before torch is imported, and SIGTERM loses no request."""

from __future__ import annotations

import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess
from weft.core.errors import UsageError
from weft.serve.api_keys import ApiKeys
from weft.serve.config import ServeConfig
from weft.serve.server import HttpServer, StartupApp
from weft.serve.sockets import SocketFile, notify, open_sockets, port_holder, url_of
from weft.serve.startup_checks import check_exposure

BODY = {"model": "long", "prompt": "the cat", "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("serve") / "long", "decoder", max_len=4000)


def test_it_listens_at_once_and_says_what_is_loading(folder, tmp_path):
    """And one that is stopped while it loads exits with 0."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(30)
    with ServeProcess(
        folder, "--cache", "0.05", environ={"NOTIFY_SOCKET": str(tmp_path / "notify")}
    ) as server:
        health = server.client.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "ok"
        answer = server.client.get("/ready")
        if answer.status_code != 200:
            assert "loading long" in answer.json()["error"]["message"]
            answer = server.client.post("/v1/messages", json={})
            assert answer.status_code in (529, 404, 400)
        server.wait_ready()
        assert server.listened_after < 20
        assert notices.recv(100) == b"READY=1"
        server.stop()
        assert notices.recv(100) == b"STOPPING=1"
        assert server.exit_code() == 0
        assert any("long: decoder, context length 4,000" in line for line in server.lines)
    notices.close()
    with ServeProcess(folder) as server:
        server.stop()
        assert server.exit_code() == 0


def test_sigterm_completes_the_accepted_requests(folder):
    with ServeProcess(folder, "--cache", "0.05") as server:
        server.wait_ready()
        one = {**BODY, "max_tokens": 800}
        expected = server.client.post("/v1/completions", json=one).json()["choices"]
        with ThreadPoolExecutor(6) as pool:
            futures = [
                pool.submit(server.client.post, "/v1/completions", json={**one, "stream": i > 2})
                for i in range(6)
            ]
            time.sleep(0.2)
            server.stop()
            statuses = wait_for_drain(server)
            answers = [future.result() for future in futures]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert all(answer.json()["choices"] == expected for answer in answers[:3])
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers[3:])
        assert statuses in ((503, 503), ())
        assert server.exit_code() == 0


def wait_for_drain(server: ServeProcess) -> tuple[int, ...]:
    """Status of /ready and of a new request during the drain; empty if it was over before."""
    try:
        ready = server.client.get("/ready").status_code
        while ready == 200:  # the signal is on its way
            ready = server.client.get("/ready").status_code
        return ready, server.client.post("/v1/completions", json=BODY).status_code
    except OSError:
        return ()
    except Exception as error:
        assert type(error).__module__.startswith("httpx"), error
        return ()


def test_the_drain_timeout_and_a_second_signal_end_the_rest(folder):
    for options, signals in ((("--drain-timeout", "0.3"), 1), ((), 2)):
        with ServeProcess(folder, "--cache", "0.05", *options) as server:
            server.wait_ready()
            body = {**BODY, "max_tokens": 3900, "n": 8, "stream": True}
            parts: list[str] = []
            reader = threading.Thread(target=read_stream, args=(server, body, parts))
            reader.start()
            while not parts:
                time.sleep(0.01)
            for _ in range(signals):
                server.stop()
                time.sleep(0.2)
            assert server.exit_code(20) == 0
            reader.join(20)
            assert "the server has stopped" in "".join(parts)
            assert any("1 requests were ended" in line for line in server.lines)


def read_stream(server: ServeProcess, body: dict[str, object], parts: list[str]) -> None:
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        for text in answer.iter_text():
            parts.append(text)


def test_a_taken_port_is_reported_with_its_process():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} is in use by .*process [0-9]+"):
            open_sockets(ServeConfig(port=port))
        assert "process" in port_holder(port)


def test_a_port_whose_holder_is_not_known(tmp_path):
    assert port_holder(1, tmp_path) == "another process"


def test_unix_sockets_replace_what_a_dead_server_left(tmp_path):
    path = tmp_path / "s"
    config = ServeConfig(uds=str(path))
    (one,) = open_sockets(config)
    assert url_of(config, [one]) == f"unix:{path}" and config.is_loopback
    with pytest.raises(UsageError, match="a running server is there"):
        open_sockets(config)
    one.close()
    (again,) = open_sockets(config)
    again.close()
    with pytest.raises(UsageError, match="Use a path of at most 100 characters"):
        open_sockets(ServeConfig(uds=str(tmp_path / "no" / "s")))


def test_the_file_of_a_socket_is_deleted_unless_it_belongs_to_another_server(tmp_path):
    path = tmp_path / "s"
    config = ServeConfig(uds=str(path))
    (one,) = open_sockets(config)
    file = SocketFile(config.uds)
    path.rename(tmp_path / "kept")  # so that its inode is not used again
    (other,) = open_sockets(config)
    file.remove()
    assert path.exists()
    SocketFile(config.uds).remove()
    assert not path.exists()
    SocketFile(None).remove()
    one.close()
    other.close()


def test_other_machines_need_a_key_or_no_auth():
    outside = ServeConfig(host="0.0.0.0")
    with pytest.raises(UsageError, match=r"host is 0.0.0.0.*--no-auth"):
        check_exposure(outside, ApiKeys({}))
    check_exposure(outside, ApiKeys({"a": "k"}))
    check_exposure(ServeConfig(host="0.0.0.0", no_auth=True), ApiKeys({}))
    check_exposure(ServeConfig(host="::1"), ApiKeys({}))
    with pytest.raises(UsageError, match="host is 'no.such.host.invalid'"):
        open_sockets(ServeConfig(host="no.such.host.invalid"))


def test_answers_before_the_application_is_there_have_the_protocols_shapes():
    app = StartupApp("a, b")
    assert app.answer("/health") == (200, {"status": "ok", "ready": False})
    assert app.answer("/v1/messages")[0] == 529
    assert app.answer("/api/chat") == (503, {"error": "loading a, b. Try again in some seconds."})


def test_threads_switch_sooner_while_it_serves():
    """The event loop would wait 5 ms for the engine thread."""

    class Probe(HttpServer):
        seconds = 0.0

        def run(self, sockets: list[socket.socket] | None = None) -> None:
            self.seconds = sys.getswitchinterval()

    before, server = sys.getswitchinterval(), Probe(ServeConfig(port=0), {}, ApiKeys({}), print)
    server.run_until_stopped()
    for one in server.sockets:
        one.close()
    assert server.seconds == pytest.approx(0.001) and sys.getswitchinterval() == before


def test_without_a_service_manager_nothing_is_sent():
    notify("READY=1", {})
    notify("READY=1", {"NOTIFY_SOCKET": "/no/such/socket"})
