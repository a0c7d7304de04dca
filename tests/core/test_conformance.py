"""Every installed policy conforms, and a policy that does not is told why."""

from typing import Any

import pytest

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.policies.parts import RoomAboveWatermark
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.sched.decisions import Deferral
from scheduler_core.testing import conformance
from scheduler_core.testing.builders import play, policy_spec
from scheduler_core.types.reasons import Defer
from scheduler_core.types.records import RunStarted


@pytest.mark.parametrize("name", sorted(manifests()))
def test_installed_policies_conform(name: Any) -> None:
    assert conformance.faults(resolve(policy_spec(name))) == []


def test_a_policy_that_lets_requests_wait_for_ever_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(self: Any, need: int, have: int, view: Any) -> Deferral:
        return Deferral(Defer.NO_BLOCKS, need, have)

    monkeypatch.setattr(RoomAboveWatermark, "decide", never)
    assert conformance.main(["vllm_v1"]) == 1
    assert "everything_ends: LawError: nothing is granted, in flight or due" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(manifests()))
@pytest.mark.parametrize("blocks", [14, 40])
def test_records_of_every_policy_pass_the_independent_audit(name: str, blocks: int) -> None:
    """Cancels at odd moments, a pool that preempts, turns that wait: the account of the run still adds up."""
    for kind in ("burst", "stream", "turns"):
        requests = conformance.traffic(kind, 3, 40)
        cancels = [(3 * index, 40_000_000 + 9_000_000 * index) for index in range(10)]
        played = play(
            policy_spec(name),
            requests,
            capacity=Capacity(blocks, 400),
            target=conformance.TARGET,
            cancels=cancels,
            law_interval=50,
        )
        audit = Audit()
        audit.take(RunStarted("run", 1, "", "", {}, {}, "simulation", "modelled", len(requests), blocks, 16, 0))
        for record in played.sink.records:
            audit.take(record)
        assert audit.checks["tokens contiguous"] > 100
        assert [f"{item.rule} at {item.where}: {item.message}" for item in audit.violations] == []
        assert set(played.report.outcomes) <= {"finished", "cancelled", "rejected"}
