"""What must change nothing, or only what it says: units of time, names, idle tenants, more room, spare parents."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.spec.target import Profile
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.testing.conformance import traffic
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.patience import Promise
from scheduler_core.types.records import Admitted, Finished, Preempted, Step, Swapped
from scheduler_core.types.time import NS_PER_MS

SMALL = {"cache__block_size": 16, "batch__size": 6, "batch__token_budget": 96}
TENANTS = ("tenant-0", "tenant-1", "tenant-2")
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "quotas": ("vllm_v1", {"cache__tenant_quota": 0.3, "cache__tenant_quotas": {"tenant-1": {"share": 0.5}}}),
    "quotas and fair shares": ("vtc", {"cache__tenant_quota": 0.4}),
    "host tier": ("vllm_v1", {"cache__host_prefix_blocks": 20}),
    "feedback": ("vllm_v1", {"feedback__step_ms": 2.2, "feedback__watermark": 0.3, "feedback__window": 4}),
    "promises": ("vllm_v1", {"feedback__attainment": 0.9, "feedback__window": 4}),
    "swap by levels": (
        "fastserve",
        {"order__quantum_ms": 2, "order__starvation_ms": 40, "cache__host_blocks": 24, "batch__size": 4},
    ),
}
"""The parts that are under test, as (preset, settings); every one is reached by the traffic below."""


def times(settings: dict[str, Any], factor: int) -> dict[str, Any]:
    return {name: value * factor if name.endswith("_ms") else value for name, value in settings.items()}


def target(factor: int = 1) -> Profile:
    """A profile whose every time is ``factor`` times that of the first one, copies included."""
    numbers = {"base_ms": 1.25, "prefill_token_ms": 0.015, "decode_request_ms": 0.0625, "context_token_ms": 0.001}
    slow = profile(**{name: value * factor for name, value in numbers.items()})
    assert slow.link is not None
    link = slow.link.model_copy(
        update={"latency_ns": slow.link.latency_ns * factor, "bytes_per_s": slow.link.bytes_per_s / factor}
    )
    return slow.model_copy(update={"link": link})


def played(part: str, requests: Sequence[PlannedRequest], *, factor: int = 1, **changes: Any) -> Any:
    preset, settings = PARTS[part]
    spec = policy_spec(preset, **{**SMALL, **times(settings, factor), **changes})
    promises = {"default": Promise(ttft_ns=8 * NS_PER_MS * factor)}
    capacity = Capacity(24, 400, promises=promises)
    return play(spec, requests, capacity=capacity, target=target(factor), law_interval=200)


def decisions(run: Any) -> list[tuple[Any, ...]]:
    """What was granted, step by step."""
    return [tuple((*row[:5], row[6]) for row in step.grants) for step in run.sink.of(Step)]


def ends(run: Any) -> dict[int, tuple[int, str, int]]:
    return {r.request: (r.at_ns, r.outcome, r.output_tokens) for r in run.sink.of(Finished)}


def scene(kind: str = "turns") -> list[PlannedRequest]:
    """Thirty requests of three tenants with common beginnings; in ``turns`` two of three wait for an earlier one."""
    return traffic(kind, 5)


def test_the_traffic_reaches_every_part() -> None:
    """Quotas pass somebody over, the tier gives something back, parts adapt, KV moves: else nothing is tested here."""
    for part in ("quotas", "quotas and fair shares"):
        reasons = {r.reason for r in played(part, scene("burst")).sink.records if hasattr(r, "have")}
        assert "tenant_quota" in reasons
    assert sum(r.host_tokens for r in played("host tier", scene("burst")).sink.of(Admitted)) > 0
    plain = play(policy_spec("vllm_v1", **SMALL), scene("burst"), capacity=Capacity(24, 400), target=target())
    assert decisions(played("feedback", scene("burst"))) != decisions(plain)
    assert "rejected" in {outcome for _, outcome, _ in ends(played("promises", scene("stream"))).values()}
    assert {r.to for r in played("swap by levels", scene("burst")).sink.of(Swapped)} == {"host", "device"}


@pytest.mark.parametrize("kind", ["burst", "stream", "turns"])
@pytest.mark.parametrize("part", PARTS)
def test_a_slower_clock_changes_only_times(part: str, kind: str) -> None:
    """All times are three times as long, those of requests, steps, copies and of the policy: the same decisions."""
    slow = [replace(item, arrival_ns=3 * item.arrival_ns) for item in scene(kind)]
    once, thrice = played(part, scene(kind)), played(part, slow, factor=3)
    assert decisions(thrice) == decisions(once)
    assert {number: (end[0] * 3, *end[1:]) for number, end in ends(once).items()} == ends(thrice)


@pytest.mark.parametrize("part", PARTS)
def test_a_later_beginning_shifts_everything_alike(part: str) -> None:
    """Everything happens 17 ms later; what waits for another request comes as long after it as before."""
    shift = 17 * NS_PER_MS
    later = [item if item.after else replace(item, arrival_ns=item.arrival_ns + shift) for item in scene()]
    first, second = played(part, scene()), played(part, later)
    assert decisions(second) == decisions(first)
    assert {number: (end[0] + shift, *end[1:]) for number, end in ends(first).items()} == ends(second)


@pytest.mark.parametrize("part", PARTS)
def test_names_mean_nothing(part: str) -> None:
    """Requests get other ids, largest first, and tenants names that sort the other way round."""
    names = dict(zip(TENANTS, ("zoe", "moe", "ann"), strict=True))
    renamed = [
        replace(item, index=900 - item.index, tenant=names[item.tenant], after=tuple(900 - one for one in item.after))
        for item in scene()
    ]
    quotas = PARTS[part][1].get("cache__tenant_quotas", {})
    changes: dict[str, Any] = (
        {"cache__tenant_quotas": {names[tenant]: share for tenant, share in quotas.items()}} if quotas else {}
    )
    one, other = played(part, scene()), played(part, renamed, **changes)
    assert {900 - number: end for number, end in ends(other).items()} == ends(one)


@pytest.mark.parametrize("part", PARTS)
def test_who_comes_when_all_is_over_changes_nothing(part: str) -> None:
    """A tenant with a quota of its own that comes a minute later; the others' ends stay as they were."""
    late = request(30, 20, 5, at_ms=60_000, tenant="late")
    quotas = PARTS[part][1].get("cache__tenant_quotas", {})
    changes: dict[str, Any] = {"cache__tenant_quotas": {**quotas, "late": {"share": 0.9}}} if "quota" in part else {}
    alone, joined = ends(played(part, scene())), ends(played(part, [*scene(), late], **changes))
    assert joined.pop(30)[1] == "finished"
    assert joined == alone


@pytest.mark.parametrize("changes", [{"cache__tenant_quota": 1.0}, {"cache__host_prefix_blocks": 50}])
def test_a_part_that_never_binds_changes_nothing(changes: Any) -> None:
    """Nobody fills a roomy pool, and nothing is evicted from it."""
    specs = policy_spec("vllm_v1", **SMALL), policy_spec("vllm_v1", **SMALL, **changes)
    runs = [play(spec, scene(), capacity=Capacity(400, 400), target=target(), law_interval=200) for spec in specs]
    assert decisions(runs[0]) == decisions(runs[1])
    assert ends(runs[0]) == ends(runs[1])


@pytest.mark.parametrize("part", PARTS)
def test_a_grandparent_is_no_further_parent(part: str) -> None:
    """Who waits for a request that waited for another may name both, in any order: the last to end is the same."""
    parents = {item.index: item.after for item in scene()}
    named = [replace(item, after=(*parents[item.after[0]], *item.after) if item.after else ()) for item in scene()]
    assert any(len(item.after) == 2 for item in named)
    expected = ends(played(part, scene()))
    for requests in (named, [replace(item, after=item.after[::-1]) for item in named]):
        assert ends(played(part, requests)) == expected


ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=14
)


@settings(max_examples=25)
@given(rows=ROWS, blocks=st.integers(4, 12), size=st.integers(1, 6))
def test_twice_the_blocks_delay_nobody_who_is_served_in_turn(rows: Any, blocks: int, size: int) -> None:
    """First come, first served, room kept for the whole answer, steps of 1 ms whatever they compute.

    Whoever comes on a whole ms meets a step boundary, so with twice the blocks nobody ends later.
    """
    at, requests = 0, []
    for index, (gap, prompt, output, _) in enumerate(rows):
        at += gap
        requests.append(request(index, prompt, output, at_ms=at))
    settings_ = {"cache__admit": "limit", "cache__prefix": "none", "cache__block_size": 16, "batch__size": size}
    runs = [
        ends(play(policy_spec("vllm_v1", **settings_), requests, capacity=Capacity(room, 400)))
        for room in (blocks, 2 * blocks)
    ]
    assert all(runs[1][number][0] <= end[0] for number, end in runs[0].items())


@settings(max_examples=25)
@given(rows=ROWS, blocks=st.integers(4, 8), slots=st.sampled_from([1, 3, 8]))
def test_twice_the_host_tier_finds_no_less(rows: Any, blocks: int, slots: int) -> None:
    """One request at a time, so that both see the same look-ups: what is found in all does not shrink."""
    requests = [
        request(index, prompt, output, seed=shared, prefix_blocks=(shared,))
        for index, (_, prompt, output, shared) in enumerate(rows)
    ]
    found = []
    for tier in (slots, 2 * slots):
        spec = policy_spec("vllm_v1", batch__size=1, cache__block_size=16, cache__host_prefix_blocks=tier)
        run = play(spec, requests, capacity=Capacity(blocks, 400))
        assert not run.sink.of(Preempted)
        found.append(sum(r.hit_tokens for r in run.sink.of(Admitted)))
    assert found[0] <= found[1]
