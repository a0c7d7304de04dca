"""Quotas of tenants on KV blocks: who waits, who goes on, who is refused, and who is stopped when it grows."""

from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import Stepper, play, policy_spec, request
from scheduler_core.types.errors import LawError
from scheduler_core.types.records import Deferred, Finished, Preempted

POOL = Capacity(10, 100)


def spec(**settings: Any) -> Any:
    values = {"cache__block_size": 4, "cache__prefix": "none", "cache__tenant_quota": 0.5, **settings}
    return policy_spec("vllm_v1", **values)


def test_who_would_exceed_its_quota_waits_and_others_go_on() -> None:
    """Pool 10, quota 5. A's first takes 3 blocks (12 tokens), its second would make it 6: passed over. B comes in.

    A's third asks for only 1 block, but nobody passes one of its own tenant. When A's first ends, both come in.
    """
    stepper = Stepper(spec(), POOL)
    for index, (tenant, prompt) in enumerate((("A", 12), ("A", 12), ("B", 12), ("A", 4))):
        stepper.submit(index, prompt, limit=2, tenant=tenant)
    assert stepper.step(last=[0]) == {0: 12, 2: 12}
    (deferred,) = (record for record in stepper.records if isinstance(record, Deferred))
    assert (deferred.request, deferred.reason, deferred.need, deferred.have) == (1, "tenant_quota", 6, 5)
    assert stepper.step() == {2: 1, 1: 12, 3: 4}


def test_who_alone_exceeds_its_quota_is_refused() -> None:
    """20 tokens of prompt and 2 of output fill 21 positions, 6 blocks of 4: more than 5. One token less fits."""
    stepper = Stepper(spec(), POOL)
    ended = stepper.submit(0, 20, limit=2)
    assert ended is not None and (ended.reason, ended.need, ended.have) == ("over_tenant_quota", 6, 5)
    assert stepper.submit(1, 19, limit=2) is None


def test_a_tenant_may_have_a_quota_of_its_own() -> None:
    """A may hold 8 of 10 blocks, everybody else 5."""
    stepper = Stepper(spec(cache__tenant_quotas={"A": {"share": 0.8}}), POOL)
    assert stepper.submit(0, 28, limit=2, tenant="A") is None
    assert stepper.submit(1, 28, limit=2, tenant="B") is not None


def test_growth_beyond_the_quota_stops_one_of_the_tenants_own() -> None:
    """Quota 5, A's two requests of 8 hold 2 blocks each, B's one 2. In step 2 all three need a third block.

    The first of A gets it, 5 held. The second would be the sixth: the last admitted of A is itself, so it stops. B,
    admitted last of all, is not asked to.
    """
    stepper = Stepper(spec(), POOL)
    for index, tenant in enumerate("AAB"):
        stepper.submit(index, 8, limit=6, tenant=tenant)
    assert stepper.step() == {0: 8, 1: 8, 2: 8}
    assert stepper.step() == {0: 1, 2: 1}
    (lost,) = (record for record in stepper.records if isinstance(record, Preempted))
    assert (lost.request, lost.reason) == (1, "tenant_quota")


def test_a_swapped_request_that_waits_for_its_quota_lets_others_come_in() -> None:
    """As above, with its 8 tokens swapped to the host: it comes back when A's first has ended, C comes in before."""
    stepper = Stepper(spec(cache__preemption="swap", cache__host_blocks=8), POOL)
    for index, tenant in enumerate("AAB"):
        stepper.submit(index, 8, limit=6, tenant=tenant)
    stepper.step()
    stepper.step()
    stepper.submit(3, 4, limit=2, tenant="C")
    assert stepper.step(last=[0]) == {0: 1, 2: 1, 3: 4}
    assert stepper.step() == {2: 1, 3: 1, 1: 1}


@pytest.mark.parametrize("name", ["static", "vllm_v1", "sarathi", "sglang", "vtc", "nano", "reserve_max", "fastserve"])
def test_every_preset_keeps_quotas_and_ends_all_work(name: str) -> None:
    """The law is checked after every step: a tenant never holds more than 0.4 of 20 blocks."""
    requests = [
        request(n, 5 + 7 * n % 17, 1 + 5 * n % 11, at_ms=n // 3, tenant=f"t{n % 3}", output_limit=12) for n in range(30)
    ]
    settings = {"cache__block_size": 4, "cache__tenant_quota": 0.4, "batch__token_budget": 24, "batch__size": 6}
    played = play(policy_spec(name, **settings), requests, capacity=Capacity(20, 60))
    outcomes = {record.request: record.outcome for record in played.sink.of(Finished)}
    assert len(outcomes) == 30
    assert set(outcomes.values()) <= {"finished", "rejected"} and "finished" in outcomes.values()


def test_the_law_names_the_tenant() -> None:
    stepper = Stepper(spec(), POOL)
    stepper.submit(0, 16, limit=2, tenant="A")
    stepper.step()
    live = stepper.instance._state.requests[0]
    stepper.instance._state.memory.grow(live, 3)
    with pytest.raises(LawError, match="tenant A holds 7 blocks, its quota is 5"):
        stepper.instance.check()
