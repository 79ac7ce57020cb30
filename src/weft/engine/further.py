"""The passes of a plan that has several, by the compiled library: lanes -> what comes next in each.

One call a pass, or one for all of them where nobody has to choose in between. Where modules have to
do some of it there is no `Further`, and the runner goes through them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.cache.kv_store import KVStore, PagedKVCache
from weft.core.forward_batch import ForwardBatch
from weft.engine.chances import Found
from weft.engine.lanes import Lanes
from weft.models.decoder import Decoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.next_ids import NextIds
from weft.native.structs import GreedyStruct

CPU = torch.device("cpu")


class Further:
    """For the lanes of one plan, as far as its last pass."""

    def __init__(self, next_ids: NextIds, store: KVStore) -> None:
        self.next_ids, self.store = next_ids, store

    @classmethod
    def of(
        cls, model: Decoder | EncoderDecoder, lanes: Lanes, store: KVStore, num_passes: int
    ) -> Further | None:
        """`lanes`: all of them."""
        if store.device != CPU:
            return None
        ids_1N = lanes.packed.ids_1N
        last_1N = torch.full_like(ids_1N, int(lanes.packed.ends.max()) + num_passes - 2)
        batch = ForwardBatch(ids_1N, position_ids_BT=last_1N, cache=lanes.paged(store, CPU))
        next_ids = NextIds.of(model.decoder, model.head, batch)
        return None if next_ids is None else cls(next_ids, store)

    @property
    def is_light(self) -> bool:
        """Whether all passes in one call are better than one call for each."""
        return self.next_ids.is_light

    def best(self, lanes: Lanes, count: int, banned: Sequence[int]) -> Found:
        """Of each of these lanes, behind one pass."""
        return self.next_ids.best(lanes.packed.ids_1N[0], self.cache(lanes), count, banned)

    def write(self, lanes: Lanes, struct: GreedyStruct, banned: Sequence[int]) -> None:
        """These lanes go on until each has ended or come to its limit."""
        self.next_ids.write(struct, self.cache(lanes), banned)

    def cache(self, lanes: Lanes) -> PagedKVCache:
        """Where they have their keys; the library finds the slots of new ones by itself."""
        return PagedKVCache(self.store, lanes.layouts(CPU), {})
