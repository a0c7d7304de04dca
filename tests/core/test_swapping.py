"""KV of those who wait: it stays, goes to the host and comes back as FastServe has it (FS-05, FS-06)."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.request.lifecycle import State
from scheduler_core.testing.builders import ListSink, Stepper, grants_of, play, policy_spec, profile, request
from scheduler_core.types.records import Deferred, Finished, Paused, Preempted, Resumed, Swapped
from scheduler_core.types.time import NS_PER_MS
from tests.core.test_fastforward import REQUESTS, build
from tests.core.test_host_tier import Contents

QUANTUM_AND_MORE = 11 * NS_PER_MS


def fastserve(**settings: Any) -> Any:
    return policy_spec("fastserve", cache__block_size=4, order__prefill_us_per_token=1, **settings)


def moved(drive: Stepper) -> list[tuple[int, str, int, int]]:
    return [(r.request, r.to, r.blocks, r.tokens) for r in drive.records if isinstance(r, Swapped)]


def test_kv_goes_to_keep_room_and_comes_back_when_there_is_more() -> None:
    """Two slots, 12 blocks of 4, of which 2 are kept free. 0 and 1 (16 tokens) compute 17 each, in 5 blocks, and sink.

    2 comes in on level 0 and takes the slot of 1, the last of the lowest level. That leaves 12 - 5 - 5 - 1 = 1 block
    free, so the 5 of 1 go. When 0 has ended, 3 comes in before 1, and 12 - 2 - 1 = 9 are free: the 5 come back, though
    no slot is free. When both have ended 1 goes on behind its 17 tokens without a copy.
    """
    drive = Stepper(fastserve(batch__size=2), Capacity(12, 100))
    drive.submit(0, 16, limit=12)
    drive.submit(1, 16, limit=12)
    assert drive.step() == {0: 16, 1: 16}
    assert drive.step() == {0: 1, 1: 1}
    drive.now += QUANTUM_AND_MORE
    drive.submit(2, 4, limit=12)
    planned = drive.plan()
    assert grants_of(planned) == {0: 1, 2: 4}
    assert len(planned.plan.copies_out) == planned.occupancy.host_used == 5
    assert [(r.request, r.how, r.blocks, r.tokens) for r in drive.records if isinstance(r, Paused)] == [
        (1, "keep", 5, 17)
    ]
    drive.complete(planned, last=[0])
    drive.submit(3, 4, limit=12)
    planned = drive.plan()
    assert grants_of(planned) == {2: 1, 3: 4}
    assert (len(planned.plan.copies_in), planned.occupancy.paused, planned.occupancy.waiting) == (5, 1, 0)
    assert moved(drive) == [(1, "host", 5, 17), (1, "device", 5, 17)]
    drive.complete(planned, last=[2, 3])
    planned = drive.plan()
    (grant,) = planned.plan.grants
    assert (grant.request, grant.start, grant.length, grant.hit_tokens, len(grant.new_blocks)) == (1, 17, 1, 17, 5)
    assert not planned.plan.copies_in
    assert [(r.request, r.how, r.tokens) for r in drive.records if isinstance(r, Resumed)] == [(1, "keep", 17)]


def sunken(**settings: Any) -> Stepper:
    """One slot, 9 blocks of 4, one kept free; four requests come 11 ms apart, each takes the slot of the one before.

    0, 1 and 2 (8 tokens, 2 blocks each) are set aside, the last to come back first in the queue: 2, 1, 0. The third
    block that each had just got for its ninth token is free again. 3 (12 tokens) takes the other 3 blocks, so that the
    last in the queue has to go: 0, to 2 host blocks.
    """
    drive = Stepper(fastserve(batch__size=1, **settings), Capacity(9, 100))
    for number, prompt in enumerate((8, 8, 8, 12)):
        drive.submit(number, prompt, limit=12)
        assert drive.step() == {number: prompt}
        drive.now += QUANTUM_AND_MORE
    assert moved(drive) == [(0, "host", 2, 8)]
    return drive


def test_who_needs_blocks_takes_them_from_the_end_of_the_queue() -> None:
    """3 gets its fourth block. 4 needs 4 and takes the slot of 3; 9 - 2 - 2 - 4 = 1 is free, so 1 and then 2 go."""
    drive = sunken()
    assert drive.step() == {3: 1}
    drive.now += QUANTUM_AND_MORE
    drive.submit(4, 16, limit=12)
    assert drive.step() == {4: 16}
    assert moved(drive)[1:] == [(1, "host", 2, 8), (2, "host", 2, 8)]
    assert drive.instance.state_of(3) is State.PAUSED
    assert not [r for r in drive.records if isinstance(r, Preempted)]


def test_nobody_new_comes_in_while_the_host_is_nearly_full() -> None:
    """Of 4 host blocks 3 are to be free and 2 are: 4 waits, on level 0, while 3 goes on, and then 2, which has KV.

    That leaves 9 - 2 - 3 = 4 blocks free, so the 2 of 0 come back, the host is empty, and 4 comes in.
    """
    drive = sunken(cache__host_blocks=4, cache__host_watermark=0.75)
    drive.submit(4, 16, limit=12)
    assert drive.step(last=[3]) == {3: 1}
    (deferred,) = (r for r in drive.records if isinstance(r, Deferred) and r.request == 4)
    assert (deferred.reason, deferred.need, deferred.have) == ("host_full", 3, 2)
    assert drive.step() == {2: 1}
    assert moved(drive)[1:] == [(0, "device", 2, 8)]
    assert drive.step() == {4: 16}


def test_without_room_in_the_host_tokens_are_computed_again() -> None:
    """One host block: the 2 of 0 cannot go to keep room, and are given up when 3 needs its fourth block."""
    drive = Stepper(fastserve(batch__size=1, cache__host_blocks=1), Capacity(9, 100))
    for number, prompt in enumerate((8, 8, 8, 12)):
        drive.submit(number, prompt, limit=12)
        drive.step()
        drive.now += QUANTUM_AND_MORE
    assert not [r for r in drive.records if isinstance(r, Preempted)]
    assert drive.step() == {3: 1}
    (lost,) = (r for r in drive.records if isinstance(r, Preempted))
    assert (lost.request, lost.tokens_lost, lost.need, lost.have) == (0, 8, 2, 1)


def test_a_cancelled_request_leaves_host_and_queue() -> None:
    """0 lies in the host and 1 is set aside; cancelled, both are nowhere, and their blocks are free."""
    drive = sunken()
    for number in (0, 1):
        assert drive.instance.abort(number) is not None
        drive.instance.check()
    assert drive.instance.occupancy().host_used == 0
    assert drive.instance.open_requests() == [2, 3]


def test_swapping_costs_less_than_computing_again() -> None:
    """Long answers fill the pool, short ones keep coming: nothing is computed twice, the last one ends sooner."""
    requests = [request(n, 60, 80, at_ms=n) for n in range(6)]
    requests += [request(6 + n, 60, 4, at_ms=40 + 12 * n) for n in range(20)]
    ends, lost = {}, {}
    for way in ("swap", "recompute"):
        spec = fastserve(batch__size=3, cache__preemption=way)
        played = play(spec, requests, capacity=Capacity(80, 200), target=profile(base_ms=1, prefill_token_ms=0.1))
        assert played.report.outcomes == {"finished": 26}
        lost[way] = sum(r.tokens_lost for r in played.sink.of(Preempted))
        ends[way] = max(r.at_ns for r in played.sink.of(Finished))
    assert lost["swap"] == 0 < lost["recompute"]
    assert ends["swap"] < ends["recompute"]


@settings(max_examples=60)
@given(
    rows=REQUESTS,
    blocks=st.integers(9, 24),
    host=st.sampled_from([1, 6, 40]),
    size=st.integers(1, 4),
    ahead=st.booleans(),
)
def test_everybody_finds_the_kv_that_it_left(rows: Any, blocks: Any, host: Any, size: Any, ahead: Any) -> None:
    """Contents are followed through every copy and step, with the laws checked after each, also planned ahead."""
    requests = [replace(item, prefix_blocks=()) for item in build(rows, 0.1)]
    executor, sink = Contents(requests), ListSink()
    overlap = {"execution__overlap": "schedule_ahead"} if ahead else {}
    spec = fastserve(
        order__quantum_ms=1.5, order__levels=3, batch__size=size, batch__token_budget=12, cache__host_blocks=host,
        **overlap,
    )  # fmt: skip
    driver = Driver(
        instance=build_instance(spec, Capacity(blocks, 60, profile())),
        requests=requests,
        executor=executor,
        sink=sink,
        stop=lambda: False,
        law_interval=1,
    )
    assert sum(driver.run().outcomes.values()) == len(requests)
    assert {r.outcome for r in sink.of(Finished)} <= {"finished", "rejected"}
