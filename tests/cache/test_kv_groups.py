from __future__ import annotations

from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.core.kv_spec import KVSpec

ROWS = {"k": (2, 8), "v": (2, 8)}


def layers(*windows: int | None) -> list[KVSpec]:
    return [KVSpec(ROWS, window=window) for window in windows]


def test_a_usual_decoder_is_one_group():
    layout = KVCacheLayout.of(layers(None, None, None))
    assert layout.groups == (KVCacheGroup((0, 1, 2)),)
    assert layout.windows == (None,) and layout.cross_groups == ()
    assert layout.layer_locations == [(0, 0), (0, 1), (0, 2)]


def test_windows_and_full_layers_become_groups_of_equal_size():
    layout = KVCacheLayout.of(layers(*([512] * 5 + [None]) * 4, 512, 512))
    assert layout.num_layers_per_group == 2
    assert [group.window for group in layout.groups] == [None] * 2 + [512] * 11
    assert layout.groups[0].layers == (5, 11) and layout.groups[2].layers == (0, 1)
    assert layout.layer_locations[11] == (0, 1) and layout.layer_locations[4] == (4, 0)
    assert sorted(layout.layer_locations) == [
        (group, place) for group in range(13) for place in range(2)
    ]


def test_an_encoder_decoder_has_its_cross_attention_group_last():
    both = [KVSpec(ROWS), KVSpec(ROWS, is_cross=True)]
    layout = KVCacheLayout.of(both * 3)
    assert layout.self_groups == (KVCacheGroup((0, 2, 4)),)
    assert layout.cross_groups == (KVCacheGroup((1, 3, 5), is_cross=True),)
    assert layout.layer_locations[3] == (1, 1)


def test_different_windows_are_kept_apart():
    layout = KVCacheLayout.of(layers(4, 8, 8, None))
    assert layout.windows == (None, 4, 8, 8)
    assert layout.num_layers_per_group == 1


def test_an_encoder_keeps_nothing():
    assert KVCacheLayout.of([]) == KVCacheLayout(())
    assert KVCacheLayout(()).windows == () and KVCacheLayout(()).num_layers_per_group == 0
