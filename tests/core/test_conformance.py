"""Every installed policy conforms, and a policy that does not is told why."""

from typing import Any

import pytest

from scheduler_core.policies.manifests import manifests, resolve
from scheduler_core.policies.parts import RoomAboveWatermark
from scheduler_core.sched.decisions import Deferral
from scheduler_core.testing import conformance
from scheduler_core.testing.builders import policy_spec
from scheduler_core.types.reasons import Defer


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
