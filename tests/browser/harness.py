"""A Chromium that talks to nobody but the server under test, and what a test asks a page.

    with open_browser() as browser:
        page = Tab(browser, server.url, width=360, theme="dark")
        page.open("#/play?text=hello")

Each tab records requests, console messages, violations of the content security policy and errors;
`check_quiet` fails if any of them is not as it should be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.browser.install import find_browser

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
LOCAL_HOSTS = ("127.0.0.1", "localhost")
LOCAL_SCHEMES = ("data", "blob", "about", "file")
TIMEOUT_MS = 20_000
"""Generous: the machine may be busy."""
VIOLATIONS = """
window.policyViolations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.policyViolations.push(`${event.violatedDirective}: ${event.blockedURI}`));
"""
SHIFTS = """
window.layoutShift = 0;
new PerformanceObserver((list) => {
  const shifts = list.getEntries().filter((entry) => !entry.hadRecentInput);
  for (const entry of shifts) window.layoutShift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def need_browser() -> str:
    """The browser's path. Without one the test is skipped, or fails under CI=true."""
    path = find_browser()
    if path is None:
        message = "there is no Chromium: `make browser` installs it"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return path


@contextmanager
def open_browser() -> Iterator[Browser]:
    """One browser process."""
    path = need_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the browser, with its own storage."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        width: int = 1280,
        height: int = 900,
        theme: str = "light",
        language: str = "en-US",
        **options: Any,
    ) -> None:
        """`url`: of the server; `options`: of a browser context, such as reduced_motion."""
        self.url = url
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            locale=language,
            accept_downloads=True,
            **options,
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.add_init_script(VIOLATIONS + SHIFTS)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.foreign: list[str] = []
        self.messages: list[str] = []
        self.context.route("**/*", self.pass_local)
        self.page.on("console", lambda one: self.messages.append(f"{one.type}: {one.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"exception: {error}"))

    def pass_local(self, route: Route) -> None:
        """Let requests to this machine through; record and stop all others."""
        parts = urlsplit(route.request.url)
        self.requests.append(route.request.url)
        if parts.hostname in LOCAL_HOSTS or parts.scheme in LOCAL_SCHEMES:
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def open(self, path: str = "") -> Tab:
        """Go to a path of the server, such as `#/walk`, and wait for the page's content."""
        self.page.goto(f"{self.url}/{path.removeprefix('/')}")
        self.page.wait_for_selector("main > *", state="attached")
        return self

    def themes(self) -> Iterator[str]:
        """Show what is shown now in one theme after the other."""
        for theme in ("light", "dark"):
            self.page.emulate_media(color_scheme=theme)
            yield theme

    def check_quiet(self, *expected: str) -> None:
        """No foreign request, no violation of the policy, no error; console messages that contain
        one of `expected` are part of the test."""
        assert self.foreign == []
        assert self.page.evaluate("window.policyViolations") == []
        errors = [one for one in self.messages if one.startswith(("error", "exception", "warning"))]
        assert [one for one in errors if not any(part in one for part in expected)] == []

    def scrolls_sideways(self) -> bool:
        script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.page.evaluate(script))

    def layout_shift(self) -> float:
        """The sum of all shifts that no input has caused."""
        return float(self.page.evaluate("window.layoutShift"))

    def violations(self) -> list[str]:
        """Rules of axe that the page violates, with the elements."""
        results = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {node['target']} {node['failureSummary']}"
            for one in results
            for node in one["nodes"]
        ]

    def screenshot(self, path: Path, is_full: bool = False) -> None:
        self.page.screenshot(path=path, full_page=is_full, animations="disabled")

    def close(self) -> None:
        self.context.close()

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
