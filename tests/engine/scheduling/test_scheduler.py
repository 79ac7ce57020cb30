"""Plans for requests that are followed by hand. Pages have 4 rows, a step 16 tokens."""

from __future__ import annotations

import logging

import pytest

from tests.engine.scheduling.world import CROSS, END, FULL, WINDOWS, World, samples_alone
from weft.cache.snapshot import restore, take_snapshot
from weft.engine.scheduling.plan import Appended, Child, Forked, Plan, SequenceId
from weft.engine.scheduling.sequence import Request

TWELVE = tuple(range(10, 22))


def starts(plan: Plan) -> dict[SequenceId, tuple[int, int]]:
    """Where each chunk begins and ends."""
    return {chunk.sequence_id: (chunk.start, chunk.end) for chunk in plan.chunks}


def children(*pairs: tuple[int, int]) -> list[Child]:
    return [Child(parent, [token]) for parent, token in pairs]


def finish_alone(world: World, request: Request) -> None:
    world.add(request)
    world.run_all()


@pytest.mark.parametrize("prefix", ["hash", "radix"])
@pytest.mark.parametrize(("length", "start"), [(12, 8), (13, 12), (11, 8), (4, 0), (1, 0)])
def test_a_prompt_that_is_cached_as_a_whole_computes_at_least_its_last_token(prefix, length, start):
    world = World(prefix)
    finish_alone(world, Request("first", (*TWELVE, 30), 1))
    world.add(Request("second", (*TWELVE, 30)[:length], 3))
    plan = world.step()
    assert starts(plan) == {("second", 0): (start, length)}
    world.run_all()
    world.check_results(set())


def test_decodes_go_first_and_long_prompts_come_in_chunks():
    world = World()
    world.add(Request("short", (1, 2, 3), 9))
    world.step()
    world.add(Request("long", tuple(range(100, 140)), 2))
    plans = [world.step() for _ in range(3)]
    assert [starts(plan)[SequenceId("short", 0)] for plan in plans] == [(3, 4), (4, 5), (5, 6)]
    assert [starts(plan)[SequenceId("long", 0)] for plan in plans] == [(0, 15), (15, 30), (30, 40)]
    assert [chunk.num_samples for plan in plans for chunk in plan.chunks] == [1, 0, 1, 0, 1, 1]
    assert all(plan.num_tokens <= 16 for plan in plans)


def test_the_latest_is_preempted_and_goes_on_first_with_what_is_still_cached():
    world = World(num_pages=10, watermark=0)
    world.add(Request("old", TWELVE, 18))
    world.step()
    world.add(Request("young", tuple(range(50, 62)), 18))
    world.step()
    world.add(Request("waits", tuple(range(70, 78)), 2))
    plans = []
    while not plans or not plans[-1].num_preempted:
        plans.append(world.step())
        world.check()
    assert list(world.state.running) == ["old"] and plans[-1].num_admitted == 0
    assert [group.request.id for group in world.state.waiting] == ["young", "waits"]
    while "young" not in world.state.running:
        plan = world.step()
        world.check()
    assert starts(plan)[SequenceId("young", 0)][0] > 0, "a prefix hit after preemption"
    world.run_all()
    world.check_results(set())
    world.check_empty()


def test_forced_preemption_and_forced_misses_change_no_token():
    for settings in ({}, {"preempt_every": 3}, {"miss_every": 2}):
        world = World(num_pages=60, **settings)
        for number in range(6):
            world.add(Request(f"r{number}", (*TWELVE[: 2 * number], 3), 8, n=1 + number % 2))
        world.run_all()
        world.check_results(set())
        assert (world.scheduler.statistics.preempted > 0) == ("preempt_every" in settings)


def test_samples_compute_the_prompt_once_and_copy_only_its_last_page():
    world = World()
    world.add(Request("r", TWELVE[:10], 6, n=3))
    plan = world.step()
    assert starts(plan) == {("r", 0): (0, 10)} and plan.chunks[0].num_samples == 3
    sequences = world.state.groups["r"].sequences
    assert len({s.tables.by_group[0].tobytes() for s in sequences}) == 1, "all pages are shared"
    plan = world.step()
    assert len(plan.copies) == 2, "the third writes into the page that the others left"
    assert len({copy.source for copy in plan.copies}) == 1
    assert world.pool.num_usable - world.pool.num_free == 2 + 3
    world.run_all()
    world.check_results(set())


def test_one_sample_can_be_finished_while_the_others_go_on():
    world = World()
    world.add(Request("r", TWELVE[:5], 10, n=3))
    world.step()
    assert world.scheduler.finish("r", 1)
    plan = world.step()
    assert set(starts(plan)) == {("r", 0), ("r", 2)}
    world.check()
    assert world.scheduler.finish("r") and not world.scheduler.finish("r")
    assert world.scheduler.is_idle
    world.check_empty()


def test_beams_run_together_and_a_dead_beam_gives_its_pages_back():
    world = World("none")
    world.add(Request("r", TWELVE[:6], 8, beam=3))
    plan = world.scheduler.schedule()
    world.run(plan)
    world.scheduler.commit(plan, forked={"r": Forked(children((0, 1), (0, 2), (0, 3)))})
    plan = world.scheduler.schedule()
    assert len(plan.chunks) == 3 and len(plan.copies) == 2
    world.run(plan)
    world.scheduler.commit(plan, forked={"r": Forked(children((2, 4), (2, 5), (0, 4)))})
    assert [s.tokens[6:] for s in world.state.groups["r"].sequences] == [[3, 4], [3, 5], [1, 4]]
    assert world.pool.num_usable - world.pool.num_free == 1 + 2, "beam 1 is gone, 2 is shared"
    world.check()
    plan = world.scheduler.schedule()
    world.run(plan)
    world.scheduler.commit(plan, forked={"r": Forked([])})
    assert world.scheduler.is_idle
    world.check_empty()


@pytest.mark.parametrize("prefix", ["none", "radix"])
def test_preempted_beams_compute_what_they_share_once(prefix):
    world = World(prefix, token_budget=8, preempt_every=6)
    world.add(Request("r", TWELVE[:7], 14, beam=4))
    world.run_all()
    world.check_results(set())
    assert world.scheduler.statistics.preempted >= 2
    world.check_empty()


def test_a_source_is_encoded_once_for_all_who_read_it():
    world = World(layout=CROSS)
    for number in range(3):
        world.add(Request(f"r{number}", (1, number), 4, source=(5, 6, 7, 8, 9)))
    world.add(Request("other", (1, 2), 4, source=(5, 6, 7)))
    plan = world.step()
    assert [encoding.ids for encoding in plan.sources] == [(5, 6, 7, 8, 9), (5, 6, 7)]
    assert len({id(chunk.source) for chunk in plan.chunks}) == 2
    world.run_all()
    assert world.scheduler.statistics.encoded_tokens == 8
    assert world.scheduler.statistics.cached_source_tokens == 10
    world.add(Request("again", (1, 2), 4, source=(5, 6, 7)))
    assert world.step().sources == []
    world.run_all()
    world.check_results(set())
    world.check_empty()


def test_sources_are_packed_up_to_the_budget_and_a_longer_one_runs_alone():
    world = World(layout=CROSS, encoder_budget=10)
    for number, length in enumerate([4, 5, 3, 12]):
        world.add(Request(f"r{number}", (1,), 2, source=tuple(range(number, number + length))))
    plans = [world.step() for _ in range(3)]
    lengths = [[len(encoding.ids) for encoding in plan.sources] for plan in plans]
    assert lengths == [[4, 5], [3], [12]]
    world.run_all()
    world.check_results(set())


def test_preemption_keeps_the_source_cached():
    world = World(layout=CROSS, preempt_every=4)
    world.add(Request("r", (1, 2), 9, source=(5, 6, 7)))
    world.run_all()
    assert world.scheduler.statistics.preempted >= 2
    assert world.scheduler.statistics.encoded_tokens == 3
    world.check_results(set())


def test_the_same_target_prefix_of_two_sources_is_not_shared():
    world = World(layout=CROSS)
    finish_alone(world, Request("one", TWELVE, 2, source=(5, 6)))
    finish_alone(world, Request("two", TWELVE, 2, source=(5, 7)))
    assert world.scheduler.statistics.cached_tokens == 0
    finish_alone(world, Request("three", TWELVE, 2, source=(5, 7)))
    assert world.scheduler.statistics.cached_tokens == 8
    world.check_results(set())


def test_embeddings_run_once_without_pages():
    world = World(encoder_budget=10)
    for number, length in enumerate([4, 5, 3]):
        world.add(Request(f"e{number}", TWELVE[:length], is_pooling=True))
    plan = world.step()
    assert [embedding.ids for embedding in plan.poolings] == [TWELVE[:4], TWELVE[:5]]
    assert plan.num_encoder_tokens == 9 and not plan.chunks
    world.step()
    assert world.embedded == ["e0", "e1", "e2"] and world.scheduler.is_idle
    assert world.pool.num_free == world.pool.num_usable


def test_windows_give_pages_back_while_a_sequence_runs():
    world = World("none", WINDOWS, num_pages=100)
    world.add(Request("r", TWELVE, 30))
    most = 0
    while not world.scheduler.is_idle:
        world.step()
        world.check()
        most = max(most, world.pool.num_usable - world.pool.num_free)
    assert most <= 11 + 3 + 4, "full pages, a window of 5 and one of 9"
    world.check_results(set())


def test_accepted_drafts_save_steps_and_rejected_ones_are_never_cached():
    many = (Request("r", (*TWELVE[:11], last), 12) for last in range(50))
    request, (alone,) = next((r, s) for r in many if END not in (s := samples_alone(r))[0])
    world = World()
    world.add(request)
    world.step()
    plan = world.step(lambda request, sequence: [*alone[1:4], 77, 77])
    (chunk,) = plan.chunks
    assert chunk.num_drafts == 5 and chunk.tokens == [alone[0], *alone[1:4], 77, 77]
    (sequence,) = world.state.groups["r"].sequences
    assert sequence.tokens[12:] == alone[:5] and sequence.num_computed == 16
    assert sequence.tables.num_blocks == 5, "pages beyond are kept for the next tokens"
    assert sequence.match.length == 16
    world.check()
    world.run_all()
    world.check_results(set())
    assert world.scheduler.statistics.accepted_tokens == 3
    assert not any(77 in run.tokens for run in world.kv_cache.prefix_cache.export())


def test_drafts_stop_before_max_tokens_and_leave_budget_for_prompts():
    world = World()
    world.add(Request("r", (1, 2), 5))
    world.step()
    plan = world.scheduler.schedule(lambda request, sequence: [0] * 50)
    assert plan.chunks[0].num_drafts == 3, "with the sampled token that makes five"
    world.run_and_commit(plan)
    world = World()
    world.add(Request("r", (1, 2), 50))
    world.step()
    world.add(Request("long", tuple(range(30)), 5))
    plan = world.scheduler.schedule(lambda request, sequence: [0] * 50)
    assert [len(chunk.tokens) for chunk in plan.chunks] == [8, 8]


def test_a_request_that_is_cancelled_in_flight_gives_its_pages_back_with_the_commit():
    world = World("none")
    world.add(Request("r", TWELVE, 5, n=2))
    world.add(Request("waits", TWELVE, 5))
    plan = world.scheduler.schedule()
    assert world.scheduler.cancel("r") and world.scheduler.cancel("waits")
    assert not world.scheduler.is_idle
    world.scheduler.commit(plan)
    assert world.scheduler.is_idle and world.pool.num_free == world.pool.num_usable
    assert not world.scheduler.cancel("r"), "it is gone"


def test_an_abandoned_plan_is_run_again():
    world = World(layout=CROSS)
    world.add(Request("r", TWELVE, 5, source=(1, 2, 3)))
    world.add(Request("e", TWELVE, is_pooling=True))
    plan = world.scheduler.schedule()
    assert plan.sources and plan.poolings
    world.scheduler.rollback(plan)
    assert world.pool.num_free == world.pool.num_usable
    plan = world.step()
    assert plan.sources and plan.poolings
    world.run_all()
    world.check_results(set())


def test_results_that_contradict_the_plan_fail():
    world = World()
    world.add(Request("r", TWELVE[:3], 5))
    plan = world.scheduler.schedule()
    with pytest.raises(AssertionError, match="neither committed nor rolled back"):
        world.scheduler.schedule()
    with pytest.raises(AssertionError, match=r"reports \[4\] as accepted drafts of \[\]"):
        world.scheduler.commit(plan, {SequenceId("r", 0): Appended([4, 4])})
    world = World()
    world.add(Request("r", TWELVE[:3], 5))
    plan = world.scheduler.schedule()
    with pytest.raises(AssertionError, match="without a result"):
        world.scheduler.commit(plan)
    with pytest.raises(AssertionError, match="not the one in flight"):
        world.scheduler.commit(Plan(99))


def test_a_cache_can_be_saved_and_found_again_after_a_restart():
    world, after = World(), World()
    finish_alone(world, Request("r", TWELVE, 6))
    moved = restore(after.kv_cache, take_snapshot(world.kv_cache))
    after.check()
    for old, new in moved.items():
        after.rows[new] = world.rows[old]
    finish_alone(after, Request("r", TWELVE, 6))
    assert after.scheduler.statistics.cached_tokens == 8
    after.check_results(set())


def test_rows_of_real_tokens_are_counted():
    world = World("none", FULL)
    assert world.state.row_share() == 1.0
    world.add(Request("r", TWELVE[:5], 5))
    world.step()
    assert world.state.row_share() == 5 / 8


def test_copies_and_writes_are_reported():
    world = World("none")
    world.add(Request("r", TWELVE[:5], 4, n=2))
    world.step()
    written = [(event.page, event.detail) for event in world.log.events if event.kind == "write"]
    assert [rows for _, rows in written] == [4, 1]
    world.log.events.clear()
    plan = world.step()
    (copied,) = [event for event in world.log.events if event.kind == "copy"]
    assert [(copied.detail, copied.page, 1)] == plan.copies and copied.step == 2


def test_each_step_is_logged_in_one_line_of_key_value_pairs(caplog):
    world = World()
    finish_alone(world, Request("first", (*TWELVE, 30), 1))
    with caplog.at_level(logging.DEBUG, "weft.engine.scheduling.scheduler"):
        world.add(Request("second", (*TWELVE, 31), 3))
        world.add(Request("third", (1, 2, 3), 3))
        world.step()
        world.step()
    first, second = (dict(pair.split("=") for pair in line.split()) for line in caplog.messages)
    assert first["step"] == "2" and second["step"] == "3"
    assert (first["prefill_tokens"], first["decode_sequences"]) == ("3", "1"), "12 are cached"
    assert first["cached_tokens"] == "12" and second["cached_tokens"] == "0"
    assert (second["prefill_tokens"], second["decode_sequences"]) == ("0", "2")
    assert (second["running"], second["waiting"], second["preempted"]) == ("2", "0", "0")
    pool = world.pool
    assert int(second["free_pages"]) + int(second["evictable_pages"]) < pool.num_usable


def test_a_preemption_storm_is_reported_with_the_remedy(caplog):
    world = World("none", num_pages=16, watermark=0.0)
    for number in range(60):
        world.add(Request(f"r{number}", (1, 2, number), 40))
    with caplog.at_level(logging.WARNING, "weft.engine.scheduling.scheduler"):
        world.run_all()
    assert world.scheduler.statistics.preempted > 32
    message = caplog.messages[0]
    assert message.startswith("preemption storm: preemptions=32") and "pages=15" in message
    assert "Raise the KV cache size (cache_gib, --cache)" in message
    assert len(caplog.messages) <= 1 + world.scheduler.statistics.steps // 128


def test_preemptions_that_a_test_forces_are_no_storm(caplog):
    world = World(preempt_every=1)
    for number in range(12):
        world.add(Request(f"r{number}", (1, 2, number), 40))
    world.run_all()
    assert world.scheduler.statistics.preempted > 32 and not caplog.messages
