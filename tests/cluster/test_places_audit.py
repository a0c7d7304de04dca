"""The audit follows who is on, who works for which pool and whose instances a tier may use: each lie is found."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.types.cluster_records import (
    ColdStartStage,
    Landed,
    OutageStage,
    Overflowed,
    PoolChanged,
    Routed,
    Scaled,
)
from scheduler_core.types.records import Admitted, Arrived, Finished, Record, RunFinished, RunStarted
from scheduler_core.types.time import NS_PER_S

RULES = ("power in order", "pools in order", "roles kept", "tiers apart")
COLD = {"place_s": 1, "image_s": 0, "weights_s": 2, "graphs_s": 0}
SCALE = {"least": 1}


def s(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def faults(groups: str, pools: dict[str, Any], records: list[Record]) -> list[tuple[str, str]]:
    """(rule, message) of what is wrong with where instances and requests are; ``groups`` has a letter an instance."""
    audit = Audit()
    described = [{"name": f"i{index}", "group": group, "kv_blocks": 100} for index, group in enumerate(groups)]
    audit.take(
        RunStarted("r", 1, "p", "d", {"pools": pools}, {"modelled": {"topology": {"cold_start": COLD}}}, "simulation",
                   "modelled", 1, 0, 1, 0, instances=described)
    )  # fmt: skip
    for record in records:
        audit.take(record)
    audit.take(RunFinished(s(99), True, "", 0, 0))
    return [(found.rule, found.message) for found in audit.violations if found.rule in RULES]


def arrive(request: int, at_s: float, instance: int, tier: str = "other") -> list[Record]:
    return [Arrived(s(at_s), s(at_s), request, 10, 10, "t", tier), Routed(s(at_s), request, instance)]


def admit(request: int, at_s: float) -> Record:
    return Admitted(s(at_s), request, 0, 0, False, 0)


def done(request: int, at_s: float) -> Record:
    return Finished(s(at_s), request, "finished", "", "", 1)


# --- power ----------------------------------------------------------------------------------------------------------

START: list[Record] = [
    Scaled(0, 0, "on", "from the start"),
    Scaled(0, 1, "off", "from the start"),
    Scaled(s(3), 1, "starting", "pressure"),
    ColdStartStage(s(3), 1, "place", s(4)),
    ColdStartStage(s(4), 1, "weights", s(6)),
    Scaled(s(6), 1, "on", "started"),
    *arrive(7, 6, 1),
    admit(7, 6),
    Scaled(s(8), 1, "draining", "pressure"),
    done(7, 9),
    Scaled(s(9), 1, "off", "drained"),
]


def without(*numbers: int) -> list[Record]:
    return [record for number, record in enumerate(START) if number not in numbers]


def changed(number: int, **values: Any) -> list[Record]:
    return [replace(record, **values) if at == number else record for at, record in enumerate(START)]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (START, ""),
        (without(2, 3, 4), "on after off"),
        (without(3), "which is not when the stage before it ended"),
        (without(4), "on at 6000000000 ns, its stages end at 4000000000"),
        (changed(4, until_ns=s(5)), "weights takes 1000000000 ns, the target says 2000000000"),
        (changed(5, at_ns=s(5)), "on at 5000000000 ns, its stages end at 6000000000"),
        ([START[0], START[1], START[2], START[4], START[3], *START[5:]], "weights at 4000000000 ns, which is not when"),
        (without(10), "requests [7] are still there"),
        (changed(7, at_ns=s(5), instance=1), "came to instance 1, which was ['starting']"),
        ([*START, *arrive(8, 10, 1), admit(8, 10)], "came to instance 1, which was ['off']"),
        ([*START[:10], *arrive(8, 8.5, 1), admit(8, 8.5)], "came to instance 1, which was ['draining']"),
        ([*START, Scaled(s(10), 0, "draining", "pressure")], "0 of its pool are left on, at least 1"),
    ],
)
def test_a_start_a_drain_and_what_is_wrong_with_them(records: list[Record], message: str) -> None:
    found = faults("aa", {"layout": "replicas", "scale": SCALE}, records)
    assert any(message in told for _, told in found) if message else not found, found


def test_nothing_scales_that_the_policy_does_not_let() -> None:
    pools = {"layout": "split", "prefill": ["p"], "scale_decode": SCALE}
    assert faults("dp", pools, [Scaled(s(1), 1, "draining", "")])[0] == (
        "power in order",
        "draining, but no scale_prefill is set",
    )


# --- pools ----------------------------------------------------------------------------------------------------------


def moves(*changes: tuple[float, int, str]) -> list[Record]:
    return [PoolChanged(s(at), instance, pool, "") for at, instance, pool in changes]


MOVE = moves((1, 1, "leaving"), (2, 1, "prefill"))
LEND = moves((1, 2, "mixed"), (2, 2, "prefill"))
BOTH = {"layout": "split", "prefill": ["p"], "rebalance": {"every_s": 1}, "borrow_tokens": 9}


@pytest.mark.parametrize(
    ("pools", "records", "message"),
    [
        ({}, MOVE, ""),
        ({}, LEND, ""),
        ({"rebalance": None}, MOVE, "leaving after decode"),
        ({"borrow_tokens": None}, LEND, "mixed after prefill"),
        ({}, moves((1, 1, "prefill")), "prefill after decode"),
        ({}, moves((1, 2, "mixed"), (2, 2, "decode")), "decode after mixed, home is prefill"),
        ({}, moves((1, 1, "leaving"), (2, 1, "mixed")), "mixed after leaving"),
        ({}, moves((1, 2, "leaving")), "only ['decode', 'leaving'] are left"),
        ({}, moves((1, 0, "leaving"), (1, 1, "leaving")), "only ['leaving', 'prefill'] are left"),
        # A request that landed at an instance before it changes its pool, and does not leave it.
        ({}, [*arrive(5, 0, 2), Landed(s(0.5), 5, 1, 1, 10), *MOVE], "requests [5] are still there"),
        ({}, [*arrive(5, 0, 2), Landed(s(0.5), 5, 1, 1, 10), MOVE[0], done(5, 2), MOVE[1]], ""),
        ({}, [*arrive(5, 0, 2), Landed(s(0.5), 5, 1, 1, 10), *MOVE, done(5, 2)], ""),
        # Prompts come only where they are computed, and KV goes only where it is decoded.
        ({}, [*arrive(5, 0, 0), admit(5, 0)], "came to instance 0, which was ['decode']"),
        ({}, [*MOVE, *arrive(5, 3, 1), admit(5, 3)], ""),
        ({}, [MOVE[0], *arrive(5, 1.5, 1), admit(5, 1.5)], "came to instance 1, which was ['leaving']"),
        ({}, [*arrive(5, 3, 0), *moves((3, 0, "mixed")), admit(5, 3)], ""),
        ({}, [*arrive(5, 0, 2), *MOVE, Landed(s(3), 5, 1, 1, 10)], "at instance 1, which is prefill and on"),
        ({}, [*arrive(5, 0, 2), MOVE[0], Landed(s(1.5), 5, 1, 1, 10)], ""),
    ],
)
def test_changes_of_pools_and_what_is_wrong_with_them(pools: Any, records: list[Record], message: str) -> None:
    """Instances 0 and 1 decode, 2 prefills."""
    found = faults("ddp", {**BOTH, **pools}, records)
    assert any(message in told for _, told in found) if message else not found, found


# --- tiers ----------------------------------------------------------------------------------------------------------

TIERS = {"layout": "replicas", "tiers": {"gold": {"groups": ["g"], "overflow": ["a"], "overflow_at": 2}}}
FULL = [*arrive(0, 0, 2, "gold"), admit(0, 0), *arrive(1, 0, 2, "gold"), admit(1, 0)]


def beyond(request: int, at_s: float, instance: int, *, told: bool = True) -> list[Record]:
    said = [Overflowed(s(at_s), request, instance, "gold")] if told else []
    return [*arrive(request, at_s, instance, "gold"), *said, admit(request, at_s)]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([*FULL, *beyond(2, 1, 0)], ""),
        ([*FULL, *beyond(2, 1, 0, told=False)], "of tier gold at instance 0, which is not its own"),
        ([*FULL[:3], *beyond(2, 1, 0)], "its own have [1] requests, fewer than 2"),
        ([*FULL, done(0, 0.5), *beyond(2, 1, 0)], "its own have [1] requests, fewer than 2"),
        ([OutageStage(s(0.5), 2, "noticed"), *beyond(2, 1, 0)], ""),
        ([OutageStage(s(0.5), 2, "noticed"), OutageStage(s(0.6), 2, "back"), *beyond(2, 1, 0)], "its own have [0]"),
        ([*FULL, *beyond(2, 1, 3)], "instance 3 does not help out"),
        ([*arrive(3, 0, 2, "other"), admit(3, 0)], "of tier other at instance 2, which is not its own"),
        ([*arrive(3, 0, 0, "other"), Overflowed(0, 3, 0, "gold"), admit(3, 0)], "told of tier gold, it is of other"),
    ],
)
def test_overflow_and_what_is_wrong_with_it(records: list[Record], message: str) -> None:
    """Instances 0 and 1 are anybody's and help out, 2 is gold's, 3 is silver's."""
    pools = {**TIERS, "tiers": {**TIERS["tiers"], "silver": {"groups": ["s"]}}}  # type: ignore[dict-item]
    found = faults("aags", pools, records)
    assert any(message in told for _, told in found) if message else not found, found


def test_a_router_that_knows_old_loads_may_overflow_by_them() -> None:
    assert not faults("aag", {**TIERS, "look_every_ms": 100}, beyond(2, 1, 0))
