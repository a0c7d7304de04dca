"""The host tier of the prefix cache: what is evicted goes there, what is found there comes back, and what it costs."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_core.drive.driver import Driver
from scheduler_core.kv.digest import ChainKeys
from scheduler_core.kv.host_tier import HostTier
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.testing.builders import ListSink, Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.plan import BlockCopy, Grant, StepPlan
from scheduler_core.types.records import Admitted, CacheReset, Step
from tests.core.test_fastforward import REQUESTS, build, fused, plain

INDEXES = ("hash", "radix")


def tiered(**settings: Any) -> Any:
    return policy_spec("vllm_v1", **{"cache__block_size": 4, "cache__host_prefix_blocks": 8, **settings})


def admitted(records: list[Any]) -> list[tuple[int, int, int]]:
    return [(r.request, r.hit_tokens, r.host_tokens) for r in records if isinstance(r, Admitted)]


@pytest.mark.parametrize("index", INDEXES)
def test_evicted_content_comes_back_from_the_host(index: str) -> None:
    """Pool of 4 blocks of 4, host tier of 8. A's prompt of 12 leaves blocks 0, 1, 2 cached. B's 16 tokens take all 4.

    Evicted are A's three, last block first (the radix tree gives up the whole leaf, its end first): copied to slots 0,
    1, 2. When B has ended, A's prompt comes again: nothing of it is on the device, so B's blocks are evicted to slots
    3, 4, ... to make room, and all three blocks are copied back. 12 of 12 tokens are delivered: the last is computed
    again, so the first grant begins at 11 (`min(delivered, known - 1)`).
    """
    drive = Stepper(tiered(cache__prefix=index), Capacity(4, 17))
    drive.submit(0, 12, limit=1, seed=7)
    drive.step()
    drive.submit(1, 16, limit=1, seed=8)
    planned = drive.plan()
    assert planned.plan.copies_out == (BlockCopy(2, 0), BlockCopy(1, 1), BlockCopy(0, 2))
    assert planned.occupancy.host_used == 3
    drive.complete(planned)
    drive.submit(2, 12, limit=1, seed=7)
    planned = drive.plan()
    (grant,) = planned.plan.grants
    assert (grant.start, grant.length, grant.hit_tokens, grant.samples) == (11, 1, 11, True)
    assert [copy.source for copy in planned.plan.copies_in] == [2, 1, 0]
    assert [copy.target for copy in planned.plan.copies_in] == list(grant.new_blocks)
    assert {copy.target for copy in planned.plan.copies_out} & {0, 1, 2} == set()
    assert admitted(drive.records)[-1] == (2, 11, 11)
    drive.complete(planned)


def test_the_beginning_on_the_device_goes_on_in_the_host() -> None:
    """Pool of 4. A's 12 tokens leave 3 blocks, B's 8 take the clean one and evict A's last, block 2, to slot 0.

    A's prompt with one more token finds 2 blocks here, 1 there: 12 tokens, the last 4 of them from the host.
    """
    drive = Stepper(tiered(), Capacity(4, 17))
    drive.submit(0, 12, limit=1, seed=7)
    drive.step()
    drive.submit(1, 8, limit=1, seed=8)
    drive.step()
    drive.submit(2, 13, limit=1, seed=7)
    assert drive.step() == {2: 1}
    assert admitted(drive.records)[-1] == (2, 12, 4)


def test_the_least_recently_used_slot_goes_first() -> None:
    """A tier of 2: what A leaves last (its second block, then its first) is what stays of its three blocks."""
    drive = Stepper(tiered(cache__host_prefix_blocks=2), Capacity(4, 17))
    drive.submit(0, 12, limit=1, seed=7)
    drive.step()
    drive.submit(1, 16, limit=1, seed=8)
    planned = drive.plan()
    # All three are evicted by one plan, which needs both slots for the first two: the third has no room.
    assert planned.plan.copies_out == (BlockCopy(2, 0), BlockCopy(1, 1))
    drive.complete(planned)
    drive.submit(2, 12, limit=1, seed=7)
    assert drive.step() == {2: 12}


def test_a_step_pays_for_its_copies() -> None:
    """Steps of 1 ms; 4,000 bytes a block at 1 MB per ms, 0.1 ms latency a direction, as the test profile has it.

    The step that evicts 3 blocks takes 1 + 0.1 + 0.012 ms; one that brings 3 back and evicts 3 twice that more.
    """
    requests = [request(n, prompt, 1, at_ms=5 * n, seed=s) for n, (prompt, s) in enumerate(((12, 7), (16, 8), (12, 7)))]
    played = play(tiered(), requests, capacity=Capacity(4, 17))
    took = [(s.available_ns - s.planned_ns, s.copied_out, s.copied_in) for s in played.sink.of(Step)]
    assert took == [(1_000_000, 0, 0), (1_112_000, 3, 0), (1_224_000, 3, 3)]


def test_a_reset_forgets_the_host_as_well() -> None:
    """A's 12 tokens in the host, B's 16 on the device: 3 + 4 blocks are forgotten, and A's prompt finds nothing."""
    drive = Stepper(tiered(), Capacity(4, 17))
    for index, (prompt, seed) in enumerate(((12, 7), (16, 8))):
        drive.submit(index, prompt, limit=1, seed=seed)
        drive.step()
    drive.instance.reset_cache(drive.now)
    drive.submit(2, 12, limit=1, seed=7)
    assert drive.step() == {2: 12}
    assert [r.dropped for r in drive.records if isinstance(r, CacheReset)] == [7]


def test_without_a_prefix_cache_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"cache\.host_prefix_blocks"):
        resolve(tiered(cache__prefix="none"))


TIERED = st.builds(
    lambda name, prefix, size, budget, blocks, swap, order: policy_spec(
        name,
        order__by=order,
        batch__size=size,
        batch__token_budget=budget,
        cache__block_size=4,
        cache__prefix=prefix,
        cache__host_prefix_blocks=blocks,
        cache__preemption="swap" if swap else "recompute",
        cache__host_blocks=swap,
    ),
    st.sampled_from(["vllm_v1", "sglang"]),
    st.sampled_from(INDEXES),
    st.integers(1, 5),
    st.sampled_from([8, 24]),
    st.sampled_from([1, 3, 20]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from(["arrival", "longest_prefix"]),
)


@settings(max_examples=60)
@given(spec=TIERED, rows=REQUESTS, blocks=st.integers(6, 20), scale=st.sampled_from([0, 0.1, 1]))
def test_fast_forward_changes_nothing(spec: Any, rows: Any, blocks: Any, scale: Any) -> None:
    """Seeds repeat, so that whole prompts are found again; the pool is small, so that they were evicted."""
    requests = [item if n % 3 else replace(item, seed=1) for n, item in enumerate(build(rows, scale))]
    capacity = Capacity(blocks, 60)
    expected_steps, expected_rows = plain(spec, requests, capacity)
    steps, actual_rows, _ = fused(spec, requests, capacity)
    assert steps == expected_steps
    assert actual_rows == expected_rows


class Contents(SimulatedExecutor):
    """Knows what every block holds, and refuses a grant whose hits are not what its request begins with."""

    def __init__(self, requests: Any) -> None:
        super().__init__(profile=profile(), block_size=4)
        self.live = {
            item.index: LiveRequest(
                RequestSpec.from_planned(item, arrival_ns=0, prefix_block_size=16), seq=0, model_length=60
            )
            for item in requests
        }
        self.keys = ChainKeys(4)
        self.tables: dict[int, list[int]] = {index: [] for index in self.live}
        self.device: dict[int, Any] = {}
        self.host: dict[int, Any] = {}
        self.loaded = 0

    def launch(self, plan: StepPlan) -> None:
        for copies in (plan.copies_out, plan.copies_in):
            assert len({copy.target for copy in copies}) == len(copies)
        for number in plan.released:
            self.tables[number] = []
        for rebind in plan.rebinds:
            table = self.tables[rebind.request]
            table[rebind.first : rebind.first + len(rebind.blocks)] = rebind.blocks
        self.host |= {copy.target: self.device[copy.source] for copy in plan.copies_out}
        self.device |= {copy.target: self.host[copy.source] for copy in plan.copies_in}
        self.loaded += len(plan.copies_in)
        for grant in plan.grants:
            self.compute(grant)
        super().launch(plan)

    def compute(self, grant: Grant) -> None:
        table = self.tables[grant.request]
        table += grant.new_blocks
        keys = self.keys.extend(self.live[grant.request], 15)
        assert [self.device[block] for block in table[: grant.hit_tokens // 4]] == keys[: grant.hit_tokens // 4]
        for number in range(grant.start // 4, -(-(grant.start + grant.length) // 4)):
            self.device[table[number]] = keys[number] if (number + 1) * 4 <= grant.start + grant.length else None


@settings(max_examples=60)
@given(rows=REQUESTS, blocks=st.integers(6, 12), slots=st.sampled_from([1, 3, 20]), prefix=st.sampled_from(INDEXES))
def test_what_is_found_is_what_the_request_begins_with(rows: Any, blocks: Any, slots: Any, prefix: Any) -> None:
    """Contents are followed through every copy, exchange and step, with the laws checked after each."""
    requests = [item if n % 3 else replace(item, seed=1) for n, item in enumerate(build(rows, 0.1))]
    instance = build_instance(
        tiered(cache__prefix=prefix, cache__host_prefix_blocks=slots), Capacity(blocks, 60, profile())
    )
    driver = Driver(
        instance=instance, requests=requests, executor=Contents(requests), sink=ListSink(), stop=lambda: False,
        law_interval=1,
    )  # fmt: skip
    assert driver.run().complete


def test_contents_do_come_from_the_host() -> None:
    """The check above is no check of nothing: of ten equal prompts with others between, most are loaded."""
    requests = [request(n, 20, 2, at_ms=9 * n, seed=n % 3) for n in range(30)]
    contents = Contents(requests)
    instance = build_instance(tiered(cache__host_prefix_blocks=20), Capacity(8, 60, profile()))
    Driver(instance=instance, requests=requests, executor=contents, sink=ListSink(), stop=lambda: False).run()
    assert contents.loaded > 50


class TierMachine(RuleBasedStateMachine):
    """Stores, finds and reads by plans against a plain dictionary; a slot never changes under a plan that needs it."""

    @initialize(total=st.integers(1, 4), first=st.integers(0, 2))
    def make(self, total: int, first: int) -> None:
        self.tier = HostTier(total, first=first)
        self.holds: dict[int, int] = {}
        self.plan: set[int] = set()

    @rule(key=st.integers(0, 6))
    def store(self, key: int) -> None:
        known = key in self.holds.values()
        slot = self.tier.store(key)
        assert slot is None or (not known and slot not in self.plan)
        if slot is not None:
            self.holds[slot] = key
            self.plan.add(slot)

    @rule(keys=st.lists(st.integers(0, 6), unique=True, max_size=3))
    def read(self, keys: list[int]) -> None:
        found = self.tier.find(keys)
        assert [self.holds[slot] for slot in found] == keys[: len(found)]
        assert len(found) == len(keys) or keys[len(found)] not in self.holds.values()
        self.tier.use(keys[: len(found)])
        self.plan.update(found)

    @rule()
    def settle(self) -> None:
        self.tier.settle()
        self.plan.clear()

    @rule()
    def forget(self) -> None:
        assert self.tier.forget() == len(self.holds)
        self.holds.clear()
        self.plan.clear()

    @invariant()
    def lawful(self) -> None:
        if hasattr(self, "tier"):
            self.tier.check()
            assert len(self.tier) == len(self.holds)


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=60, stateful_step_count=25)
