"""Samples of one prompt share its blocks and copy on write: by hand, in drawn runs, and with bugs planted."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.finalise import summarise
from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.rules import CacheRules
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched import samples
from scheduler_core.sched.memory import BlockMemory
from scheduler_core.testing.builders import Stepper, play, policy_spec, request
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.types.plan import BlockCopy, StepPlan
from scheduler_core.types.records import Admitted, Deferred, Paused, Preempted, Record, RunStarted, Step
from scheduler_core.workload.samples import with_samples
from tests.core import test_fastforward, test_recorded
from tests.core.test_mutations import rewritten

ROOMY = Capacity(1000, 10_000)


def sharing(policy: str = "vllm_v1", **settings: Any) -> Any:
    values = {"cache__share_samples": True, "cache__block_size": 4, **settings}
    if policy != "sarathi" and policy != "fastserve":
        values.setdefault("cache__prefix", "none")
    return policy_spec(policy, **values)


def asked(stepper: Stepper, count: int, prompt: int, **changes: Any) -> None:
    """``count`` samples of one prompt come."""
    for index in range(count):
        stepper.submit(index, prompt, seed=7, group=0, **changes)


def test_three_samples_of_a_prompt_of_six() -> None:
    """Blocks of 4, a prompt of 6. Sample 0 computes 6 tokens into blocks 0 and 1, while 1 and 2 wait.

    Of position 5 they need the logits, so they share positions 0 to 4: block 0 as it is, block 1 as copies 2 and 3. All
    three then write to blocks of their own: 4 blocks in place of 6, 2 copies, 6 + 1 + 1 tokens computed in place of 18.
    When 0 is over, block 0 is held by the other two; when they are, all blocks are free.
    """
    stepper = Stepper(sharing(), Capacity(8, 1000))
    asked(stepper, 3, 6, limit=4)
    first = stepper.plan()
    assert [(g.request, g.start, g.length, g.new_blocks) for g in first.plan.grants] == [(0, 0, 6, (0, 1))]
    waits = [r for r in stepper.records if isinstance(r, Deferred)]
    assert [(r.request, r.reason, r.need, r.have) for r in waits] == [(1, "prompt_pending", 6, 0)]
    stepper.complete(first)
    second = stepper.plan()
    assert second.plan.copies_on_write == (BlockCopy(1, 2), BlockCopy(1, 3))
    assert [(g.request, g.start, g.length, g.new_blocks, g.hit_tokens, g.samples) for g in second.plan.grants] == [
        (0, 6, 1, (), 0, True),
        (1, 5, 1, (0, 2), 5, True),
        (2, 5, 1, (0, 3), 5, True),
    ]
    assert (second.occupancy.kv_used, second.occupancy.kv_free) == (4, 4)
    came = [r for r in stepper.records if isinstance(r, Admitted)]
    assert [(r.request, r.hit_tokens, r.shared_tokens) for r in came] == [(0, 0, 0), (1, 5, 5), (2, 5, 5)]
    stepper.complete(second)
    third = stepper.plan()
    assert third.plan.copies_on_write == ()
    stepper.complete(third, last=[0])
    assert stepper.instance.block_tables() == {1: (0, 2), 2: (0, 3)}
    assert stepper.instance.free_order()[0] == 1
    stepper.complete(stepper.plan(), last=[1, 2])
    assert stepper.instance.occupancy().kv_used == 0


@pytest.mark.parametrize(
    ("prompt", "shared", "copies", "used"),
    [
        (1, 0, 0, 3),  # nothing lies before the last token
        (4, 3, 2, 4),  # the only block is full: the last token of it is written again, so it is copied; 0 has a second
        (5, 4, 0, 4),  # what is shared ends with a block: the next one is each sample's own from its beginning
        (8, 7, 2, 5),
        (9, 8, 0, 5),
    ],
)
def test_where_blocks_end(prompt: int, shared: int, copies: int, used: int) -> None:
    """Blocks of 4, three samples: tokens shared by each, blocks copied, blocks in use in the second step."""
    stepper = Stepper(sharing(), ROOMY)
    asked(stepper, 3, prompt)
    stepper.complete(stepper.plan())
    second = stepper.plan()
    assert [grant.hit_tokens for grant in second.plan.grants] == [0, shared, shared]
    assert len(second.plan.copies_on_write) == copies
    assert second.occupancy.kv_used == used


def test_who_finds_nobody_computes_the_prompt_as_any_request() -> None:
    """The first sample is cancelled before it has computed anything or while it computes, is preempted, or is put aside
    with the block that it has.
    """
    for way in ("queued", "running", "preempted", "parked"):
        stepper = Stepper(sharing(batch__token_budget=4), ROOMY)
        asked(stepper, 2, 6)
        if way == "queued":
            stepper.instance.abort(0)
        else:
            assert stepper.step() == {0: 4}
        if way == "running":
            stepper.instance.abort(0)
        if way == "parked":
            stepper.instance.park(0)
        if way == "preempted":
            stepper.instance.preempt(0, now_ns=stepper.now)
            stepper.instance.abort(0)
        assert [stepper.step() for _ in range(2)] == [{1: 4}, {1: 2}]


def test_the_first_sample_leaves_and_what_it_shared_stays() -> None:
    """It is preempted in the middle of its answer: block 0 stays with the other, block 1 is free. It computes its
    prompt and its two tokens again, since nobody shares with it: a prompt is shared from the first sample on.
    """
    stepper = Stepper(sharing(), Capacity(5, 1000))
    asked(stepper, 2, 6, limit=8)
    for _ in range(2):
        stepper.step()
    stepper.instance.preempt(0, now_ns=stepper.now)
    stepper.instance.check()
    assert stepper.instance.block_tables() == {1: (0, 2)}
    planned = stepper.plan()
    assert [(g.request, g.start, g.length) for g in planned.plan.grants] == [(1, 6, 1), (0, 0, 8)]


def test_who_comes_back_shares_the_whole_prompt() -> None:
    """Preempted with one emitted token, a sample has 6 of its 7 known tokens from the first one, and computes one."""
    stepper = Stepper(sharing(), ROOMY)
    asked(stepper, 2, 6)
    for _ in range(2):
        stepper.step()
    stepper.instance.preempt(1, now_ns=stepper.now)
    planned = stepper.plan()
    (grant,) = [g for g in planned.plan.grants if g.request == 1]
    assert (grant.start, grant.length, grant.hit_tokens, len(planned.plan.copies_on_write)) == (6, 1, 6, 1)


def pool_of_two() -> tuple[BlockMemory, LiveRequest, LiveRequest]:
    """Blocks of 4; two samples of a prompt of 6, of which the first has blocks 0 and 1, the other 0 and a copy in 2."""
    memory = BlockMemory(blocks=6, block_size=4, rules=CacheRules(index="none", host_blocks=4))
    first, second = (
        LiveRequest(RequestSpec(number, 0, 6, 9, group=0), seq=number, model_length=40) for number in range(2)
    )
    memory.grow(first, 2)
    shared = memory.share(second, first)
    assert shared is not None
    memory.adopt(second, shared)
    return memory, first, second


def test_a_victim_of_the_very_step_needs_no_copy() -> None:
    """Given up before the plan is made, block 2 may be anybody's, and nothing is copied into it."""
    memory, first, second = pool_of_two()
    memory.release(second)
    assert memory.take_moves().copies_on_write == ()
    memory.check([first.table], [2])


def test_what_is_copied_stays_until_the_plan_is_made() -> None:
    """The first sample loses its blocks in the step in which the other one copies block 1: nobody gets it before."""
    memory, first, second = pool_of_two()
    memory.release(first)
    assert memory.free_order() == [3, 4, 5]
    memory.check([second.table], [2])
    assert memory.take_moves().copies_on_write == (BlockCopy(1, 2),)
    assert memory.free_order() == [1, 3, 4, 5]


def test_swapped_out_in_the_very_step_it_takes_what_it_would_have_copied() -> None:
    """Copies to the host are made first, so it reads block 1 in place of block 2, which is not filled yet."""
    memory, _, second = pool_of_two()
    assert memory.swap_out(second, 5) is None
    moves = memory.take_moves()
    assert (moves.copies_out, moves.copies_on_write) == ((BlockCopy(0, 0), BlockCopy(1, 1)), ())


def test_what_the_same_plan_brings_back_is_shared_a_step_later() -> None:
    """Block 1 of the first sample comes from the host in this plan, after the copies on write."""
    memory, first, second = pool_of_two()
    memory.release(second)
    memory.take_moves()
    assert memory.swap_out(first, 6) is None
    first.known = 7
    memory.swap_in(first)
    assert memory.share(second, first) is None
    memory.take_moves()
    assert memory.share(second, first) is not None


def test_without_samples_the_switch_decides_nothing() -> None:
    """The same plans, digest for digest, whatever the switch says."""
    requests = [request(index, 9 + index, 12, at_ms=index, prefix_blocks=(1,)) for index in range(8)]
    for prefix in ("none", "hash", "radix"):
        on, off = (
            play(
                policy_spec("vllm_v1", cache__prefix=prefix, cache__block_size=4, cache__share_samples=switch),
                requests,
                capacity=Capacity(16, 60),
            )
            for switch in (True, False)
        )
        assert on.report.plan_digests == off.report.plan_digests
    assert StepPlan(3, ()).digest() == "f3a0203475b2d644"  # as before there were samples


def peak(spec: Any, requests: Iterable[PlannedRequest]) -> int:
    return max(int(step.kv_used) for step in play(spec, list(requests)).sink.of(Step))


def test_pool_use_with_and_without() -> None:
    """Eight samples of a prompt of 66, four tokens each, blocks of 4.

    Alone each takes ceil((66 + 3) / 4) = 18 blocks, 144 together. Shared: 16 full blocks once, and 2 own ones each of
    the seven that wait; the first is over when they take their last: 30. With block hashes the full blocks are shared
    without the switch, too, but each of the seven computes the 2 tokens behind them, in place of 1.
    """
    requests = with_samples([request(0, 66, 4)], 8)
    assert peak(sharing(), requests) == 30
    assert peak(sharing(cache__share_samples=False), requests) == 144
    hashed = [play(sharing(cache__prefix="hash", cache__share_samples=on), requests) for on in (True, False)]
    computed = [sum(g[3] for s in p.sink.of(Step) for g in s.grants if g[4] == "prefill") for p in hashed]
    assert computed == [66 + 7 * 1, 66 + 7 * 2]


def test_static_batching_does_not_take_it() -> None:
    """Nobody joins a batch later, so nobody could wait for a prompt."""
    with pytest.raises(InputError, match="does not apply to policy 'static'"):
        resolve(policy_spec("static", cache__share_samples=True))
    takers = {name for name, manifest in manifests().items() if "cache.share_samples" in manifest.settable}
    assert takers == set(manifests()) - {"static"}


# --- drawn runs -----------------------------------------------------------------------------------------------------

SPECS = test_fastforward.SPECS.filter(lambda spec: spec.policy != "static").map(
    lambda spec: spec.model_copy(update={"cache": spec.cache.model_copy(update={"share_samples": True})})
)
DRAWN = given(
    spec=SPECS,
    rows=test_fastforward.REQUESTS,
    number=st.integers(2, 5),
    blocks=st.integers(16, 60),
    scale=st.sampled_from([0, 0.1, 1]),
    cancels=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 90_000_000)), max_size=6),
)


def grouped(rows: Any, scale: Any, number: int) -> list[PlannedRequest]:
    return list(with_samples(test_fastforward.build(rows[:6], scale), number))


@settings(max_examples=80)
@DRAWN
def test_stretches_tell_what_steps_tell(
    spec: Any, rows: Any, number: int, blocks: int, scale: Any, cancels: Any
) -> None:
    requests, capacity = grouped(rows, scale, number), Capacity(blocks, 60)
    told = test_recorded.recorded(spec, requests, capacity, cancels=cancels)
    assert test_recorded.spelled_out(told) == test_recorded.step_by_step(spec, requests, capacity, cancels=cancels)
    assert not audited(told, len(requests), blocks)


@settings(max_examples=60)
@DRAWN
def test_fast_forward_decides_the_same(
    spec: Any, rows: Any, number: int, blocks: int, scale: Any, cancels: Any
) -> None:
    requests, capacity = grouped(rows, scale, number), Capacity(blocks, 60)
    expected = test_fastforward.plain(spec, requests, capacity, cancels=cancels)
    assert test_fastforward.fused(spec, requests, capacity, cancels=cancels)[:2] == expected


def started(offered: int, blocks: int) -> RunStarted:
    return RunStarted(
        run="r", attempt=1, plan_digest="plan", policy_digest="policy", policy={}, target={}, level="simulation",
        source="modelled", offered=offered, kv_blocks=blocks, block_size=4, token_budget=40,
    )  # fmt: skip


def audited(records: list[Record], offered: int, blocks: int) -> str | None:
    """The first fault that the audit finds."""
    audit = Audit()
    for record in (started(offered, blocks), *records):
        audit.take(record)
    return audit.first_violation


def run_of_two_groups() -> list[Record]:
    requests = with_samples([request(0, 6, 5), request(1, 7, 5)], 3)
    return play(sharing(batch__token_budget=64), requests, capacity=Capacity(40, 60)).sink.records


def test_figures_count_what_is_shared_once() -> None:
    """Of 3 x 6 + 3 x 7 = 39 prompt tokens 2 x 5 + 2 x 6 = 22 are shared and 17 computed; 4 blocks are copied."""
    records = run_of_two_groups()
    summary = summarise([started(6, 40), *records], arm="a", repeat=0, tiers={})
    value = {name: summary.metrics[name].value for name in ("hit_rate", "shared_rate", "host_hit_rate")}
    assert value == {"hit_rate": 22 / 39, "shared_rate": 22 / 39, "host_hit_rate": 0}
    assert summary.metrics["copied_on_write_blocks"].value == 4
    assert summary.audit.passed


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Step, {"copied_on_write": 0}, "0 blocks copied on write, due are 4"),
        (Admitted, {"shared_tokens": 3}, "shares 3 of 5 tokens found"),
        (Admitted, {"shared_tokens": 0}, "4 blocks copied on write, due are 3"),
    ],
)
def test_the_audit_notices(kind: Any, change: Any, message: str) -> None:
    records, forged = run_of_two_groups(), False
    for place, record in enumerate(records):
        mark = next(iter(change))
        if isinstance(record, kind) and getattr(record, mark) and not forged:
            records[place], forged = replace(record, **change), True
    found = audited(records, 6, 40)
    assert found is not None
    assert message in found


# --- planted bugs ---------------------------------------------------------------------------------------------------


def small_pool() -> None:
    """Groups in a pool too small for them all; laws are checked at every step, and what was preempted comes back."""
    requests = with_samples([request(i, 6 + i, 9, at_ms=3 * i) for i in range(4)], 3)
    for prefix in ("none", "hash", "radix"):
        for way, kind in (("swap", Paused), ("recompute", Preempted)):
            spec = sharing(cache__prefix=prefix, cache__preemption=way, cache__host_blocks=6)
            played = play(spec, requests, capacity=Capacity(9, 60))
            assert played.report.outcomes == {"finished": 12}
            assert audited(played.sink.records, 12, 9) is None
            assert played.sink.of(kind)
            assert any(record.shared_tokens for record in played.sink.of(Admitted))


SCENES: list[Callable[[], Any]] = [
    test_three_samples_of_a_prompt_of_six,
    lambda: test_where_blocks_end(4, 3, 2, 4),
    lambda: test_where_blocks_end(5, 4, 0, 4),
    test_who_finds_nobody_computes_the_prompt_as_any_request,
    test_the_first_sample_leaves_and_what_it_shared_stays,
    test_who_comes_back_shares_the_whole_prompt,
    test_a_victim_of_the_very_step_needs_no_copy,
    test_what_is_copied_stays_until_the_plan_is_made,
    test_swapped_out_in_the_very_step_it_takes_what_it_would_have_copied,
    test_what_the_same_plan_brings_back_is_shared_a_step_later,
    small_pool,
]
MUTATIONS = {
    "the last token of the prompt is not computed": (BlockMemory, "share", "request.known - 1", "request.known"),
    "no block is copied": (BlockMemory, "_part", "self._on_write[target] = hits.partial", "pass"),
    "blocks are shared without a lease": (BlockMemory, "adopt", "self._ledger.share(blocks)", "pass"),
    "a copy is made of the block before": (BlockMemory, "share", "table[whole] if rest", "table[whole - 1] if rest"),
    "what is copied stays leased": (BlockMemory, "take_moves", "self._ledger.lift(_COPIED)", "pass"),
    "copies are made again and again": (BlockMemory, "take_moves", "self._on_write.clear()", "pass"),
    "a prompt is shared before it is computed": (samples, "shared_prompt", "first.confirmed <", "first.known <"),
    "nobody waits": (samples, "wait_for_prompt", "first is None or", "True or"),
    "samples wait for one that waits": (samples, "wait_for_prompt", "first.state is not _RUNNING", "False"),
    "copies of who is gone are made": (BlockMemory, "release", "if self._on_write", "if False"),
    "a block on its way is read": (BlockMemory, "share", "if self._in and", "if False and"),
    "the host gets a block that is not filled": (BlockMemory, "swap_out", "if self._on_write", "if False"),
    "a released block is still shared": (Ledger, "share", "leases[block] += 1", "leases[block] += 0"),
}


def test_the_scenes_hold() -> None:
    for scene in SCENES:
        scene()


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, old, new = MUTATIONS[name]
    mutant = rewritten(getattr(owner, attribute), old, new)
    monkeypatch.setattr(owner, attribute, mutant)
    if owner is samples:  # the planner holds it by name
        monkeypatch.setattr(sys.modules["scheduler_core.sched.planner"], attribute, mutant)
    with pytest.raises(Exception):  # noqa: B017 - a law, a refusal or a wrong number, whichever notices first
        test_the_scenes_hold()
