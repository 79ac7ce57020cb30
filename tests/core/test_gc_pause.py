"""The collector is off inside, and as it was before afterwards."""

import gc

import pytest

from weft.core.gc_pause import gc_pause


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_inside_and_as_before_afterwards(was_enabled):
    if not was_enabled:
        gc.disable()
    try:
        with pytest.raises(KeyError), gc_pause():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
