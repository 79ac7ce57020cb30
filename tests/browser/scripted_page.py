"""A server with the web page whose models say what a test tells them to, and ways to use Play."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page

from tests.serve.scripted import PLAIN_TEMPLATE, Script, scripted_service
from tests.serve.server import RunningServer, running
from weft.look.assets import PageApp


@contextmanager
def scripted_page(
    script: Script, template: str | None = PLAIN_TEMPLATE, **options: Any
) -> Iterator[RunningServer]:
    """`script`: what every request is answered with; without a `template` it is a base model."""
    with running(scripted_service(script, template, **options), index=PageApp()) as server:
        yield server


def run_text(page: Page, text: str | None = None) -> None:
    """Write a text into the input and run it by keyboard."""
    if text is not None:
        field(page).fill(text)
    field(page).focus()
    page.keyboard.press("Control+Enter")


def field(page: Page) -> Any:
    """The input of Play."""
    return page.locator(".composer > textarea")


def wait_done(page: Page, number: int = 1) -> None:
    """Until so many answers are complete and nothing runs."""
    page.locator(".run[data-state=done]").nth(number - 1).wait_for()
    page.locator(".run[data-state=streaming]").wait_for(state="detached")


def written(page: Page) -> str:
    """The text of the last answer."""
    return str(page.locator(".written").last.inner_text())
