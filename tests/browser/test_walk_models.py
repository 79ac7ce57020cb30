"""All panels of Walk with models of other designs: latent attention, experts, windows, ALiBi."""

from __future__ import annotations

import pytest

from tests.browser.test_walk import OTHER, TEXT, open_walk, share
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny

WINDOW = {"kind": "window", "window": 3}
LATENT = {"kv_rank": 8, "nope_size": 4, "rope_size": 4, "value_size": 4}
MODELS = {
    "latent": {
        "attention": {"kind": "mla", "num_heads": 4, "pattern": WINDOW, "latent": LATENT},
        "position": {"kind": "rotary"},
        "feedforward": {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "width": 16},
    },
    "grouped": {
        "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "pattern": WINDOW},
        "position": {"kind": "alibi"},
    },
}
LINES = (
    "[...document.querySelectorAll('.panel[id]')].map("
    "(panel) => panel.querySelector('.figure-line').textContent)"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_panel_has_the_numbers_of_this_model_and_text(tab, name):
    shown = []
    with TraceServer({name: tiny("decoder", max_len=200, **MODELS[name])}) as server:
        for text in (TEXT, OTHER):
            one = open_walk(tab(server.url), name, text)
            folded = "document.querySelectorAll('.figure-toggle[aria-expanded=false]')"
            one.page.evaluate(f"{folded}.forEach((panel) => panel.click())")
            one.page.locator("#kinds .bars").first.wait_for()
            lines = one.page.evaluate(LINES)
            assert all(lines) and one.page.locator("[data-state=error]").count() == 0
            fields = dict(part.split("=") for part in one.page.url.split("?")[1].split("&"))
            layer, head, token = (int(fields[key]) for key in ("layer", "head", "token"))
            row = server.last.array(f"decoder.{layer}.attention.weights", head=head)[token]
            facts = one.page.locator(".inspector .facts").inner_text()
            assert share(float(row.max()), 4) in facts
            one.check_quiet()
            shown.append(lines)
    assert shown[0] != shown[1]
