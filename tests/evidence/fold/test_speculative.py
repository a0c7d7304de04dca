"""Evidence of runs that draft: several tokens at a time, what was drafted in vain, and an audit that follows each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.finalise import summarise as quick
from scheduler_core.evidence.live.sampler import LiveSampler
from scheduler_core.evidence.records.segments import SegmentWriter, read_records
from scheduler_core.evidence.schema import Absence, RunSummary
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.records import Record, RunStarted, Step, decode, encode
from tests.evidence.played import summarise

K = 3


def records(k: int, *, acceptance: float = 0.6, count: int = 20, **settings: Any) -> list[Record]:
    """Steps of 1 ms; each request has a prompt of 10 and an answer of 40 tokens."""
    spec = resolve(policy_spec("vllm_v1", execution__draft_tokens=k, **settings))
    requests = [request(index, 10, 40, at_ms=2 * index) for index in range(count)]
    played = play(spec, requests, capacity=Capacity(1000, 1000), target=profile(acceptance=acceptance))
    started = RunStarted(
        run="r", attempt=1, plan_digest="", policy_digest="", policy=spec.canonical(), target={}, level="simulation",
        source="modelled", offered=count, kv_blocks=1000, block_size=16, token_budget=2048,
    )  # fmt: skip
    return [started, *played.sink.records]


def summary(found: list[Record], folder: Path) -> RunSummary:
    return summarise(found, folder, workload={"requests": 20})


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def test_tokens_that_come_at_once_share_the_wait_and_every_sum_holds(tmp_path: Path) -> None:
    """Steps take 1 ms whatever they compute: the longest wait is 1 ms, and four tokens are 0.25 ms apart."""
    found = summary(records(K, acceptance=1.0), tmp_path)
    assert found.audit.violations == []
    rows, gaps = table(tmp_path, "requests"), table(tmp_path, "gaps")
    for row in rows:
        own = [gap for gap in gaps if gap["request"] == row["request"]]
        assert [gap["token"] for gap in own] == list(range(1, 40))
        assert row["ttft_ms"] + sum(gap["gap_ms"] for gap in own) == pytest.approx(row["e2e_ms"])
        assert row["longest_gap_ms"] == 1
        # 1 + 9 x 4 + 3 tokens: ten steps after the first.
        assert row["tpot_ms"] == pytest.approx(10 / 39)
    assert {round(gap["gap_ms"], 3) for gap in gaps} == {0.25, 0.333}
    assert found.metrics["itl_p50_ms"].value == 0.25
    chunks = table(tmp_path, "chunks")
    assert [chunk["tokens"] for chunk in chunks if chunk["request"] == 7] == [1, *[4] * 9, 3]
    assert found.metrics["chunk_gap_p50_ms"].value == 1
    assert found.metrics["chunk_tokens_mean"].value == pytest.approx(40 / 11)
    # As vLLM's own benchmark reads a stream: waits between chunks, which Headway spreads over their tokens.
    assert found.by_tool["vllm-bench"]["itl_p50_ms"].value == 1
    assert quick(records(K, acceptance=1.0), arm="a", repeat=0, tiers={}).metrics == found.metrics


def test_what_was_drafted_and_accepted_is_told_step_by_step_and_in_sum(tmp_path: Path) -> None:
    kept = records(K)
    found = summary(kept, tmp_path)
    rows = [row for step in kept if isinstance(step, Step) for row in step.drafts]
    drafted, accepted = sum(row[1] for row in rows), sum(row[2] for row in rows)
    assert 0 < accepted < drafted
    assert found.metrics["drafted_tokens"].value == drafted
    assert found.metrics["acceptance_length_mean"].value == pytest.approx((accepted + len(rows)) / len(rows))
    assert found.metrics["draft_waste_share"].value == pytest.approx(1 - accepted / drafted)
    steps = table(tmp_path, "steps")
    assert sum(step["drafted_tokens"] for step in steps) == drafted
    assert sum(step["accepted_tokens"] for step in steps) == accepted
    assert sum(step["drafts"] for step in steps) == len(rows)
    assert found.output_tokens == 20 * 40
    # Each token but the last of a request was computed once; what was rejected was computed in vain.
    computed = sum(step["prefill_tokens"] + step["decode_tokens"] for step in steps)
    assert computed == 20 * (10 + 40 - 1) + drafted - accepted


def test_where_nothing_is_drafted_the_figures_do_not_apply(tmp_path: Path) -> None:
    found = summary(records(0), tmp_path)
    for name in ("drafted_tokens", "acceptance_length_mean", "draft_waste_share", "chunk_gap_p50_ms"):
        assert found.metrics[name].absence is Absence.NOT_APPLICABLE
    steps = table(tmp_path, "steps")
    assert {(step["drafted_tokens"], step["drafted_tokens_absence"]) for step in steps} == {(None, "not_applicable")}


def test_records_of_drafts_come_back_from_disk_and_old_ones_without_them_can_be_read(tmp_path: Path) -> None:
    kept = records(K, count=2)
    paths: list[Path] = []
    writer = SegmentWriter(tmp_path, records_per_segment=10, on_closed=lambda closed: paths.append(closed.path))
    for record in kept:
        writer.write(record)
    writer.close()
    assert list(read_records(paths)) == kept
    old = encode(next(record for record in kept if isinstance(record, Step)))
    del old["drafts"]
    assert decode(old) == next(record for record in kept if isinstance(record, Step))


def test_live_rates_count_tokens_that_came_of_it() -> None:
    """Twenty answers of 40 tokens, one of which the prompt's step gives: 20 x 39 decoded, however many were drafted."""
    samples: list[Any] = []
    sampler = LiveSampler(interval_ns=10**9, total=20, on_sample=samples.append, window_ns=10**12)
    for record in records(K):
        sampler.write(record)
    sampler.flush()
    assert samples[-1].account_broken is None
    assert samples[-1].decode_tokens_per_s * samples[-1].window_s == pytest.approx(20 * 39)
    assert samples[-1].gap_p50_ms < 1


Change = Callable[[Step], Step]


def drafts(*rows: tuple[int, int, int]) -> Change:
    return lambda step: replace(step, drafts=list(rows))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(drafts((0, 3, 4)), "drafts add up", id="more accepted than drafted"),
        pytest.param(drafts((0, 4, 3)), "drafts add up", id="nothing but drafts"),
        pytest.param(drafts((0, 3, 3), (0, 3, 3)), "drafts add up", id="twice"),
        pytest.param(drafts((7, 3, 3)), "drafts add up", id="of nobody in the step"),
        pytest.param(drafts((0, 2, 2)), "sampled at the end", id="one token nobody knew of"),
        pytest.param(drafts((0, 3, 2)), "tokens contiguous", id="one that was accepted is lost"),
        pytest.param(drafts(), "sampled at the end", id="not told"),
    ],
)
def test_the_audit_notices_drafts_that_do_not_add_up(change: Change, rule: str) -> None:
    """One request; its first decode computes 4 tokens, 3 of them drafts, all accepted."""
    kept = records(K, acceptance=1.0, count=1)
    place = next(number for number, record in enumerate(kept) if isinstance(record, Step) and record.drafts)
    step = kept[place]
    assert isinstance(step, Step)
    assert step.drafts == [(0, 3, 3)]
    audit = Audit()
    for record in [*kept[:place], change(step), *kept[place + 1 :]]:
        audit.take(record)
    assert rule in {violation.rule for violation in audit.violations}


def test_a_draft_beyond_the_limit_is_a_fault() -> None:
    """The last step of an answer of 40 tokens, limit 40: a draft behind its last token has no room."""
    kept = records(K, acceptance=1.0, count=1)
    place = max(number for number, record in enumerate(kept) if isinstance(record, Step))
    step = kept[place]
    assert isinstance(step, Step)
    request_, epoch, start, length, phase, sampled, hits = step.grants[0]
    longer = replace(step, grants=[(request_, epoch, start, length + 1, phase, sampled, hits)], drafts=[(0, 3, 2)])
    audit = Audit()
    for record in [*kept[:place], longer, *kept[place + 1 :]]:
        audit.take(record)
    assert "drafts add up" in {violation.rule for violation in audit.violations}
