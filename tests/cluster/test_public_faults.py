"""Faults reported in public against separated prefill and decode, as scenes with the right outcome."""

from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.cluster_records import Landed, Transferred
from scheduler_core.types.records import Admitted, Finished, Step
from scheduler_core.types.time import NS_PER_MS
from tests.cluster.test_outages import audited, death

GROUPS = {"decode": 1, "prefill": 1}
RESERVES = ["before", "arrival", "ready"]


def split(**options: Any) -> Any:
    return policy_spec("vllm_v1", pools__layout="split", pools__prefill=("prefill",), cache__prefix="none", **options)


def used(cluster: Any) -> list[int]:
    """KV blocks in use of each instance that is not dead."""
    return [member.instance.occupancy().kv_used for i, member in enumerate(cluster.members) if cluster.serves(i)]


@pytest.mark.parametrize("reserve", RESERVES)
def test_a_report_that_comes_after_the_abort_frees_nothing_twice(reserve: str) -> None:
    """vllm-project/vllm #46283. A hundred prompts of 2 blocks, each moved at once and reported 500 ms late.

    All are aborted at 300 ms, when every byte has moved and no report has come. A request of all 400 blocks at 310 ms
    has them before the reports are due, and one of all blocks after those (at 900 ms) has them again.
    """
    requests = [request(i, 20, 4) for i in range(100)]
    requests += [request(100, 6380, 4, at_ms=310), request(101, 6380, 4, at_ms=900)]
    report, sink, cluster = play_cluster(
        split(pools__reserve=reserve, batch__size=128, batch__token_budget=8192),
        requests,
        GROUPS,
        capacity=Capacity(400, 8192),
        cancels=[(i, 300 * NS_PER_MS) for i in range(100)],
        kv_bytes_per_token=1000,
        late_share=1.0,
        late_ms=500,
    )
    assert len({r.request for r in sink.of(Transferred) if r.at_ns < 300 * NS_PER_MS}) == 100
    assert report.outcomes == {"cancelled": 100, "finished": 2}
    assert {r.request for r in sink.of(Landed)} == {100, 101}
    assert min(r.at_ns for r in sink.of(Admitted) if r.request == 100) == 310 * NS_PER_MS
    assert used(cluster) == [0, 0]
    audited(sink, cluster, 102, 400)


@pytest.mark.parametrize("victim", ["prefill", "decode"])
@pytest.mark.parametrize("reserve", RESERVES)
def test_when_one_side_fails_the_other_lets_go_and_the_client_hears_of_it(victim: str, reserve: str) -> None:
    """vllm-project/aibrix #2289. One side dies at 50.5 ms with a prompt half computed, or with its answer half decoded.

    It is missed 100 ms later: one failure that names its stage, no place kept at the side that lives, and nothing of it
    in any time to a first token but where that was emitted. An instance that is back serves the next one.
    """
    prompt, output = (1000, 4) if victim == "prefill" else (10, 200)
    spec = split(pools__reserve=reserve, pools__on_death="fail", pools__notice_ms=100, batch__token_budget=10)
    outages = [death(victim, 50.5, back_after_s=0.2)]
    _, sink, cluster = play_cluster(
        spec,
        [request(0, prompt, output), request(1, 20, 3, at_ms=400)],
        GROUPS,
        capacity=Capacity(70, 2000),
        outages=outages,
        cold_start={"place_s": 0, "image_s": 0, "weights_s": 0, "graphs_s": 0},
        kv_bytes_per_token=1000,
    )
    ends = {r.request: r for r in sink.of(Finished)}
    assert (ends[0].outcome, ends[0].stage, ends[0].reason) == ("failed", "instance", "instance_died")
    assert ends[0].at_ns <= 152 * NS_PER_MS
    assert ends[1].outcome == "finished"
    assert used(cluster) == [0, 0]
    summary = audited(sink, cluster, 2, 70)
    assert summary.metrics["failure_share"].value == 0.5
    assert summary.metrics["ttft_mean_ms"].n == 1


@pytest.mark.parametrize("late", ["prefill_step", "last_step"])
@pytest.mark.parametrize("emitter", ["prefill", "arrival", "decode"])
def test_a_cancel_during_a_last_step_is_a_cancel(emitter: str, late: str) -> None:
    """vllm-project/vllm #29987. Forty requests; all are cancelled while the last step of prefill, or of all, runs.

    Each ends as cancelled, none in what is told of successes, and no block is held for who will never call.
    """
    requests = [request(i, 20, 4) for i in range(40)]
    options: dict[str, Any] = {"capacity": Capacity(400, 1000), "kv_bytes_per_token": 1000}
    spec = split(pools__first_token=emitter, batch__size=64, batch__token_budget=4096)
    _, whole, _ = play_cluster(spec, requests, GROUPS, **options)
    steps = [s for s in whole.of(Step) if s.instance == (1 if late == "prefill_step" else 0)]
    middle = (steps[-1].planned_ns + steps[-1].available_ns) // 2
    assert len(steps[-1].grants) == 40
    late_one = request(40, 6000, 2, at_ms=1000)
    report, sink, cluster = play_cluster(
        split(pools__first_token=emitter, batch__size=64, batch__token_budget=8192),
        [*requests, late_one],
        GROUPS,
        cancels=[(i, middle) for i in range(40)],
        capacity=Capacity(400, 8000),
        kv_bytes_per_token=1000,
    )
    assert report.outcomes == {"cancelled": 40, "finished": 1}
    assert used(cluster) == [0, 0]
    summary = audited(sink, cluster, 41, 400)
    assert summary.metrics["e2e_mean_ms"].n == 1
    assert summary.metrics["cut_off_share"].value == pytest.approx(40 / 41)
