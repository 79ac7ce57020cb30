"""Details of panels 2 and 10 of Walk, and an address that names a panel."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_walk import OTHER, line_of, open_walk, select, share, signed
from tests.browser.test_walk_models import MODELS
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny


@pytest.fixture(scope="module")
def server():
    with TraceServer({"latent": tiny("decoder", max_len=200, **MODELS["latent"])}) as one:
        yield one


def test_a_panel_of_the_address_is_open_and_shows_similar_embeddings(server, tab):
    one = open_walk(tab(server.url), "latent", OTHER, panel="ids", token=2)
    rows = one.page.locator("#ids .neighbors li")
    expect(rows).to_have_count(5)
    near = server.last.neighbors("src", 2)
    expect(rows.first).to_contain_text(f"{signed(near[0].cosine)}")
    assert [float(text.split()[-1].replace("−", "-")) for text in rows.all_inner_texts()] == [
        round(token.cosine, 2) for token in near
    ]
    assert one.page.locator("#lens .figure-body").is_hidden()
    one.check_quiet()


def test_experts_have_the_sizes_of_their_outputs_and_their_weights(server, tab):
    one = open_walk(tab(server.url), "latent", OTHER, panel="units", token=2, layer=1, head=0)
    bars = one.page.locator("#units .bars").last  # after those of the shared experts
    expect(bars).to_contain_text("expert")
    trace, prefix = server.last, "decoder.1.feedforward"
    ids = trace.array(f"{prefix}.experts", row=2).astype(int)
    weights = trace.array(f"{prefix}.expert_weights", row=2)
    sizes = np.linalg.norm(trace.array(f"{prefix}.expert_out", row=2), axis=-1)
    shown = bars.text_content() or ""
    for index, weight, size in zip(ids, weights, sizes, strict=True):
        assert f"expert {index}" in shown
        assert f"{weight:.2f} × {size:.2f} = {weight * size:.2f}" in shown
    assert "experts" in line_of(one.page, "units")
    one.check_quiet()


def test_a_link_with_a_token_and_a_key_shows_that_pair(server, tab):
    one = open_walk(tab(server.url), "latent", OTHER, token=2)
    row = server.last.array("decoder.1.attention.weights", head=2, row=5)
    key = int(np.argsort(row)[-2])  # not the one that is shown by itself
    select(one.page, stack="decoder", layer=1, head=2, token=5, key=key)
    facts = one.page.locator(".inspector .facts")
    expect(facts).to_contain_text(f"with {share(float(row[key]), 4)}, layer 1 head 2")
    one.page.locator(".strip-token").nth(3).click()  # a token alone: the key that it reads most
    row = server.last.array("decoder.1.attention.weights", head=2, row=3)
    expect(facts).to_contain_text(f"with {share(float(row.max()), 4)}, layer 1 head 2")
