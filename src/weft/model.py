"""`Model`: the result of `weft.load(path)`: a LoadedModel with the method `look`.

    m = weft.load("smollm2")
    trace = m.look("...")            every stage of one forward pass (docs/look.md)

This module is outside of the packages, because engine/ may not import look/.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.engine.config import EngineConfig
from weft.engine.engine_thread import EngineThread
from weft.engine.loaded_model import LoadedModel, load_checkpoint_for
from weft.look.recorder import trace_units
from weft.look.trace import Trace
from weft.look.trace_data import Detail
from weft.look.trace_input import TextOrIds
from weft.sampling.params import SamplingParams

UNIT_MS, WHOLE_PASS_MS = 10.0, 1000.0
"""Size of a unit of work with an engine that may serve others, and without one."""


class Model(LoadedModel):
    """A loaded model, with `look`."""

    def look(
        self,
        text: TextOrIds,
        target: TextOrIds | None = None,
        task: str | None = None,
        ablate: Iterable[object] = (),
        detail: Detail = "auto",
        *,
        window: tuple[int, int] | None = None,
        sampling: SamplingParams | None = None,
    ) -> Trace:
        """Every stage of one forward pass over a text, or over ids. `target` None: an
        encoder-decoder translates the text first. `ablate`: heads whose output is set to zero, as
        "2.3" (layer and head, from 0) or "cross.2.3".

        With an engine, the pass runs on its thread between steps, in units of about 10 ms, and
        records nothing of the requests that it serves."""
        if target is None and self.kind == "encoder-decoder" and isinstance(text, str):
            target = self.translate([text])[0]
        start = self.request_builder.target_begin if self.kind == "encoder-decoder" else None

        def units(unit_ms: float) -> Generator[None, None, Trace]:
            return trace_units(
                *(self.model, self.tokenizer, text, target, task, ablate, detail),
                window=window,
                start=start,
                sampling=sampling,
                name=self.name,
                unit_ms=unit_ms,
            )

        # while the lock is held no engine is created, which would pack the weights
        with self.client_lock:
            if "locked_client" not in self.__dict__ or not self.is_threaded:
                return exhaust(units(WHOLE_PASS_MS))
        return self.client.async_engine.run_units(units(UNIT_MS)).result()


def exhaust(units: Generator[None, None, Trace]) -> Trace:
    """The trace of all units."""
    while True:
        try:
            next(units)
        except StopIteration as stop:
            trace: Trace = stop.value
            return trace


def load(
    model: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    engine: EngineConfig | Mapping[str, Any] | None = None,
    thread: EngineThread | None = None,
) -> Model:
    """Load the model at a path, or of a name installed by `weft pull`, on a device: auto, cpu,
    cuda, cuda:N or mps. `engine`: an EngineConfig or its fields, such as {"cache_gib": 4}.
    `thread`: runs this model in turns with others; None: a thread for this model alone."""
    checkpoint, settings = load_checkpoint_for(model, device, dtype, engine)
    loaded = Model(checkpoint, settings, thread=thread)
    loaded.name = Path(model).name
    return loaded
