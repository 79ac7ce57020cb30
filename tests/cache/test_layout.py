from __future__ import annotations

from weft.cache.layout import Layout, Stripe
from weft.core.kv import KVSpec

ROWS = {"k": (2, 8), "v": (2, 8)}


def layers(*windows: int | None) -> list[KVSpec]:
    return [KVSpec(ROWS, window=window) for window in windows]


def test_a_usual_decoder_is_one_stripe():
    layout = Layout.of(layers(None, None, None))
    assert layout.stripes == (Stripe((0, 1, 2)),)
    assert layout.windows == (None,) and layout.cross == ()
    assert layout.places == [(0, 0), (0, 1), (0, 2)]


def test_windows_and_full_layers_become_stripes_of_equal_size():
    layout = Layout.of(layers(*([512] * 5 + [None]) * 4, 512, 512))
    assert layout.num_layers_per_stripe == 2
    assert [stripe.window for stripe in layout.stripes] == [None] * 2 + [512] * 11
    assert layout.stripes[0].layers == (5, 11) and layout.stripes[2].layers == (0, 1)
    assert layout.places[11] == (0, 1) and layout.places[4] == (4, 0)
    assert sorted(layout.places) == [(stripe, place) for stripe in range(13) for place in range(2)]


def test_an_encoder_decoder_has_its_cross_stripe_last():
    both = [KVSpec(ROWS), KVSpec(ROWS, is_cross=True)]
    layout = Layout.of(both * 3)
    assert layout.own == (Stripe((0, 2, 4)),)
    assert layout.cross == (Stripe((1, 3, 5), is_cross=True),)
    assert layout.places[3] == (1, 1)


def test_different_windows_are_kept_apart():
    layout = Layout.of(layers(4, 8, 8, None))
    assert layout.windows == (None, 4, 8, 8)
    assert layout.num_layers_per_stripe == 1


def test_an_encoder_keeps_nothing():
    assert Layout.of([]) == Layout(())
    assert Layout(()).windows == () and Layout(()).num_layers_per_stripe == 0
