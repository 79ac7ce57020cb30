"""The page's reducer of cache events: after every event it has the state of the Python one, and
after every step that of the engine; going back and forth gives the same states."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.look.test_scratch_engine import scripted
from weft.cache.replay import ReplayedState

REPLAY = """
async ({snapshot, steps, moments}) => {
  const { cacheStateJson } = await import("/assets/cache_state.js");
  const { createCacheHistory } = await import("/assets/cache_history.js");
  const history = createCacheHistory(snapshot);
  steps.forEach((step) => history.add(step));
  return moments.map((moment) => cacheStateJson(history.stateAt(moment)));
}
"""


class Recording:
    """The scripted scenario, replayed in Python event by event."""

    def __init__(self, model: str) -> None:
        scratch = scripted(model)
        self.snapshot = scratch.snapshot()
        state = ReplayedState()
        self.states: list[dict[str, Any]] = [state.to_json()]
        self.steps: list[dict[str, Any]] = []
        self.num_evicted = self.num_preempted = 0
        while not scratch.is_idle:
            step = scratch.step()
            for event in step.events:
                state.apply(event)
                self.states.append(state.to_json())
            assert state.to_json() == scratch.state.to_json()  # the engine's own structures
            self.steps.append({"step": step.number, "ops": [e.to_json() for e in step.events]})
            self.num_evicted += step.num_evicted
            self.num_preempted += len(step.preempted)


@pytest.mark.parametrize(
    "model",
    [
        "gqa",
        pytest.param("some windows", marks=pytest.mark.slow),
        pytest.param("t5", marks=pytest.mark.slow),
    ],
)
def test_the_state_after_every_event_is_that_of_python(served, tab, model):
    recording = Recording(model)
    assert recording.num_evicted >= 5
    assert recording.num_preempted >= 1 or model == "some windows"
    moments = list(range(len(recording.states)))
    back_and_forth = [*moments, *reversed(moments)]
    shuffled = random.Random(0).sample(moments, len(moments))
    one = tab(served.url).open("#/cache")
    for order in (back_and_forth, shuffled):
        argument = {"snapshot": recording.snapshot, "steps": recording.steps, "moments": order}
        states = one.page.evaluate(REPLAY, argument)
        assert states == [recording.states[moment] for moment in order]


def test_an_operation_that_contradicts_the_state_is_an_error(served, tab):
    one = tab(served.url).open("#/cache")
    script = """
    async (op) => {
      const { applyCacheOp, createCacheState } = await import("/assets/cache_state.js");
      try { applyCacheOp(createCacheState(), op); } catch (error) { return error.message; }
      return "";
    }
    """
    for op, message in (
        ({"op": "free", "page": 3, "owner": "a/0"}, "free of page 3, which is free"),
        ({"op": "locked", "node": 2, "locks": 1}, "locked of node 2, which does not exist"),
        ({"op": "melt"}, "unknown operation melt"),
    ):
        assert one.page.evaluate(script, op) == message
