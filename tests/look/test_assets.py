"""The ASGI application of the web page: status, headers, compression."""

from __future__ import annotations

import asyncio
import gzip
import zipfile

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.look.page_files import FILES, SENT
from tests.tree import ROOT
from weft.look.assets import PageApp, accepts_gzip


def request(path, method="GET", **headers):
    async def ask():
        transport = httpx.ASGITransport(PageApp())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers={"accept-encoding": "", **names})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/assets/app.js", "app.js", "text/javascript; charset=utf-8"),
        ("/assets/tokens.css", "tokens.css", "text/css; charset=utf-8"),
        ("/assets/strings/shell.json", "strings/shell.json", "application/json; charset=utf-8"),
    ],
)
def test_a_file_has_its_type_and_a_policy_without_other_hosts(path, name, kind):
    response = request(path)
    assert response.status_code == 200 and response.content == SENT[name]
    assert response.headers["content-type"] == kind
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_client_that_has_this_version_gets_304():
    tag = request("/assets/app.js").headers["etag"]
    response = request("/assets/app.js", if_none_match=f'"other", W/{tag}')
    assert response.status_code == 304 and response.content == b""
    assert request("/assets/app.js", if_none_match='"other"').status_code == 200


def test_gzip_is_sent_to_those_who_accept_it():
    response = request("/assets/page.css", accept_encoding="br, gzip;q=0.5")
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == SENT["page.css"]  # httpx has decoded it
    assert int(response.headers["content-length"]) == len(gzip.compress(SENT["page.css"], 9))
    assert not accepts_gzip("br, gzip;q=0") and not accepts_gzip("")


def test_head_has_no_body_and_other_files_and_methods_are_refused():
    response = request("/assets/app.js", "HEAD")
    assert response.status_code == 200 and response.content == b""
    assert int(response.headers["content-length"]) == len(SENT["app.js"])
    assert request("/assets/../assets.py").status_code == 404
    assert request("/assets/nothing.js").status_code == 404
    assert request("/assets/app.js", "POST").status_code == 405


@pytest.mark.slow
def test_the_wheel_contains_the_page(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")  # no compiler: a wheel without native libraries
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(path).namelist())
    assert {f"weft/look/page/{name}" for name in FILES} <= names
