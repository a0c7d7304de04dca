"""Faults of cancels and counts reported in public, each as its scene on real kernels; those of scheduling are in
`test_real_faults`.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scheduler_core.testing.builders import request
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.records import Preempted, Step
from scheduler_core.types.time import NS_PER_MS
from tests.engine.scenes import engine, has_its_own_tokens, serve


@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.TWO_STREAM, Overlap.SCHEDULE_AHEAD])
def test_15_a_cancel_during_the_last_step_is_a_cancel(overlap: Overlap) -> None:
    """20 blocks and 20 requests of 10 + 3 tokens, a block each. Step 2 makes their last tokens and runs until 410 ms;
    at 400 every client gives up. All end cancelled with the two tokens that they had, and are in no latency and no
    throughput of successes. Their blocks are free for the next step: a request that waited for one is in step 3, and
    its figures are the only ones.
    """
    giving_up = [request(index, 10, 3, cancel_ns=400 * NS_PER_MS) for index in range(20)]
    waiting = request(20, 10, 3)
    with engine(20, hold=(2, 410), overlap=overlap) as executor:
        served = serve(executor, [*giving_up, waiting], execution__overlap=overlap.value)
        *cancelled, last = served.ended
        assert Counter((record.outcome, record.output_tokens) for record in cancelled) == {("cancelled", 2): 20}
        assert (last.outcome, last.output_tokens) == ("finished", 3)
        assert has_its_own_tokens(executor, replace(waiting, index=1000), last.tokens)
        held = served.of(Step)[2]
        assert held.id == 2
        assert {row[0] for row in held.grants} == set(range(20))
        assert held.available_ns >= 410 * NS_PER_MS > max(record.at_ns for record in cancelled)
        assert served.steps[3] == {20: 10}
        assert served.of(Step)[3].kv_used == 1
        figures = served.summary.metrics
        assert (figures["ttft_mean_ms"].n, figures["e2e_mean_ms"].n, figures["tpot_mean_ms"].n) == (1, 1, 1)
        window_s = figures["window_s"].value or 0
        assert (figures["throughput_requests_per_s"].value or 0) * window_s == pytest.approx(1)
        assert (figures["throughput_finished_tokens_per_s"].value or 0) * window_s == pytest.approx(3)
        assert figures["completion_share"].value == 1 / 21


def test_19_thrown_away_work_is_not_counted_twice(tmp_path: Path) -> None:
    """4 blocks of 16. Requests of 30 + 8 and 20 + 5 tokens begin together, two blocks each, and have a token each from
    steps 0, 1 and 2. In step 3 the first needs a third block: the second, with 23 tokens known and 22 written, is
    preempted. The first has its 8th token in step 7; step 8 computes the second's 23 tokens, 22 of them again, and
    makes its fourth token, step 9 the fifth.

    Five tokens, four gaps of which the third holds the wait; TTFT + the gaps = E2E, TPOT their mean, all by the clock
    of the steps that made the tokens; what was computed again stands apart.
    """
    requests = [request(0, 30, 8), request(1, 20, 5)]
    with engine(4) as executor:
        served = serve(executor, requests, cache__prefix="none")
        assert served.preempted == [1]
        assert served.steps[2:4] + served.steps[7:] == [{0: 1, 1: 1}, {0: 1}, {0: 1}, {1: 23}, {1: 1}]
        assert [record.tokens_lost for record in served.of(Preempted)] == [22]
        summary = served.finalise(tmp_path)
        at_ms = [step.available_ns / NS_PER_MS for step in served.of(Step)]
        assert has_its_own_tokens(executor, replace(requests[1], index=1000), served.ended[1].tokens)
    row = pq.read_table(tmp_path / "requests.parquet").to_pylist()[1]
    gaps = [gap for gap in pq.read_table(tmp_path / "gaps.parquet").to_pylist() if gap["request"] == 1]
    times = [at_ms[number] for number in (0, 1, 2, 8, 9)]
    assert row["output_tokens"] == 5
    assert row["ttft_ms"] == pytest.approx(times[0])
    assert row["e2e_ms"] == pytest.approx(times[4])
    assert row["tpot_ms"] == pytest.approx((times[4] - times[0]) / 4)
    assert [gap["gap_ms"] for gap in gaps] == pytest.approx([b - a for a, b in pairwise(times)])
    assert row["ttft_ms"] + sum(gap["gap_ms"] for gap in gaps) == pytest.approx(row["e2e_ms"])
    assert [gap["cause"].startswith("preempted") for gap in gaps] == [False, False, True, False]
    assert row["longest_gap_ms"] == pytest.approx(max(gap["gap_ms"] for gap in gaps))
    assert (row["preemptions"], row["recomputed_tokens"]) == (1, 22)
    assert summary.output_tokens == 13
    assert summary.metrics["recomputed_tokens"].value == 22


def test_19_under_heavy_preemption_every_token_is_counted_once(tmp_path: Path) -> None:
    """30 blocks of 16, 40 requests of 64 + 32 (6 blocks each when done) at once. Each emits exactly its tokens; what is
    computed again is what was lost, no more; each prompt is computed for the first time once; and all other computing
    is that of 31 tokens each, the last token being never written.
    """
    requests = [request(index, 64, 32) for index in range(40)]
    with engine(30) as executor:
        served = serve(executor, requests, cache__prefix="none", batch__token_budget=100)
    emitted = Counter(row[0] for step in served.of(Step) for row in step.grants if row[5])
    assert emitted == dict.fromkeys(range(40), 32)
    assert len(served.preempted) > 10
    lost = sum(record.tokens_lost for record in served.of(Preempted))
    figures = served.finalise(tmp_path).metrics
    assert figures["recomputed_tokens"].value == lost
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert {row["prefilled_tokens"] for row in rows} == {64}
    computed = sum(tokens for step in served.steps for tokens in step.values())
    assert computed - lost == 40 * (64 + 31)
