"""Every state of a handoff times every fault that may hit it there: nothing leaked, nothing lost, nothing doubled."""

from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.cluster_records import (
    Handoff,
    Held,
    Landed,
    Leased,
    Lost,
    Parked,
    Revoked,
    Routed,
    Transferred,
)
from scheduler_core.types.records import Admitted, Arrived, Finished, Step
from tests.cluster.test_outages import audited

GROUPS = {"d": 2, "p": 2}  # instances 0 and 1 decode, 2 and 3 prefill
VICTIM = 2
WARM = {"place_s": 0, "image_s": 0, "weights_s": 0, "graphs_s": 0}

_STATES = {Arrived: "queued", Parked: "waiting", Landed: "landed", Revoked: "revoked", Finished: "over"}

# What makes the victim, the last of three, stay in a state for a while; prompts of 20 tokens, 1 ms a step.
SETTINGS: dict[str, dict[str, Any]] = {
    "held": {"pools": {"reserve": "before", "headroom_tokens": 28}},
    "prefilling": {
        "pools": {"reserve": "arrival", "move": "chunks"},
        "budget": 3,
        "blocks": 24,
        "link": {"link_gb_per_s": 0.002},
    },
    "waiting": {"pools": {"headroom_tokens": 28}},
    "sending": {"link": {"link_gb_per_s": 0.001}},
    "unreported": {"link": {"late_share": 1.0, "late_ms": 20.0}},
    "landed": {"size": 1},
    "decoding": {},
}
FAULTS = ("abort", "source dies", "destination dies")


def state_of(records: list[Any], now_ns: int) -> tuple[str, int, int]:
    """(state, source, destination) of the victim after all that its records say up to ``now_ns``."""
    state, source, destination = "", -1, 0
    for record in records:
        if getattr(record, "request", None) != VICTIM or record.at_ns > now_ns:
            continue
        if isinstance(record, Routed):
            source = record.instance
        elif isinstance(record, Handoff):
            state, destination = "sending", record.destination
        elif isinstance(record, Transferred):
            state = "unreported" if state == "sending" else state
        elif isinstance(record, Held):
            state = "prefilling" if record.over else "held"
        elif isinstance(record, Admitted):
            state = "prefilling" if state in ("", "queued", "prefilling") else "decoding"
        else:
            state = _STATES.get(type(record), state)
    return state, source, destination


def played(state: str, *, lease_ms: float | None, broken: float, on_death: str, fault: dict[str, Any]) -> Any:
    """Plays three requests, the last of which is the victim, and a fourth much later."""
    setting = SETTINGS[state]
    pools = {
        "layout": "split",
        "prefill": ("p",),
        "notice_ms": 5,
        "broken": "transfer",
        "on_death": on_death,
        **({} if lease_ms is None else {"lease_ms": lease_ms}),
        **setting.get("pools", {}),
    }
    spec = policy_spec(
        "vllm_v1",
        **{f"pools__{name}": value for name, value in pools.items()},
        cache__prefix="none",
        cache__block_size=4,
        batch__size=setting.get("size", 8),
        batch__token_budget=setting.get("budget", 64),
    )
    link = {"link_gb_per_s": 0.02, "link_latency_us": 0, "kv_bytes_per_token": 1000, **setting.get("link", {})}
    requests = [*(request(i, 20, 20, at_ms=5 * (i == VICTIM)) for i in range(3)), request(3, 20, 5, at_ms=1500)]
    return play_cluster(
        spec,
        requests,
        GROUPS,
        capacity=Capacity(setting.get("blocks", 12), 100),
        cold_start=WARM,
        broken_share=broken,
        **link,
        **fault,
    )


def moment_in(state: str, broken: float) -> tuple[int, int, int]:
    """(ns, source, destination) of a moment at which the victim is in ``state``, found in a run without a fault."""
    _, sink, _ = played(state, lease_ms=None, broken=broken, on_death="recompute", fault={})
    places = ((at_ns, state_of(sink.records, at_ns)) for at_ns in range(250_000, 200_000_000, 500_000))
    found = [(at_ns, place[1], place[2]) for at_ns, place in places if place[0] == state]
    assert found, f"the victim is never {state}"
    return found[len(found) // 2]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("state", SETTINGS)
def test_every_state_survives_every_fault(state: str, fault: str) -> None:
    """With and without leases, where transfers break off too, and where the dead one's requests fail or go on.

    Who is aborted is cancelled, once; of a dead instance's requests all go on, or just those fail; everybody else gets
    all tokens. Then no block is held at any instance, and a request that comes much later is served as ever.
    """
    for broken in (0.0, 0.4):
        at_ns, source, destination = moment_in(state, broken)
        member = destination if fault == "destination dies" else source
        outage = {"at_s": at_ns / 1e9, "group": "d" if member < 2 else "p", "number": member % 2, "back_after_s": 0.5}
        injected = {"cancels": [(VICTIM, at_ns)]} if fault == "abort" else {"outages": [outage]}
        for lease_ms, on_death in ((None, "recompute"), (3.0, "fail"), (100.0, "recompute")):
            _, sink, cluster = played(state, lease_ms=lease_ms, broken=broken, on_death=on_death, fault=injected)
            assert state_of(sink.records, at_ns - 1)[0] == state
            ends = [(record.request, record.outcome, record.output_tokens) for record in sink.of(Finished)]
            assert sorted(request_ for request_, *_ in ends) == [0, 1, 2, 3]
            lost = {record.request for record in sink.of(Lost)}
            for number, outcome, tokens in ends:
                if fault == "abort" and number == VICTIM:
                    assert outcome == "cancelled"
                elif on_death == "fail" and number in lost:
                    assert outcome == "failed"
                else:
                    assert (outcome, tokens) == ("finished", 5 if number == 3 else 20), (number, lease_ms, on_death)
            if fault != "abort" and (fault == "source dies") == (state not in ("landed", "decoding")):
                assert VICTIM in lost
            steps = sink.of(Step)
            assert steps[-1].kv_used <= 7, "only who came last is left"
            assert [m.instance.occupancy().kv_used for m in cluster.members] == [0] * 4
            audited(sink, cluster, 4, SETTINGS[state].get("blocks", 12))


def test_a_lease_is_taken_in_every_state_in_which_bytes_move() -> None:
    """An abort while bytes move or are not reported holds blocks; in every other state there is nothing to hold."""
    taken = {}
    for state in SETTINGS:
        at_ns, *_ = moment_in(state, 0.0)
        _, sink, _ = played(
            state, lease_ms=100.0, broken=0.0, on_death="recompute", fault={"cancels": [(VICTIM, at_ns)]}
        )
        taken[state] = bool(sink.of(Leased))
    assert [state for state, held in taken.items() if held] == ["prefilling", "sending", "unreported"]
