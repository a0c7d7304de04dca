"""Evidence by stretches of steps says what evidence step by step says: the same records once spelled out."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.drive.cuts import CacheResetAt
from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.columns import IntRows
from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.fold.fold import RunFold
from scheduler_core.evidence.fold.layout import GAP_INTS, STEP_INTS, Labels
from scheduler_core.evidence.live.sampler import LiveSampler
from scheduler_core.evidence.records.condense import Condenser
from scheduler_core.evidence.records.expand import expand, shapes
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.sched.recorded import RecordedInstance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.sim.recorded import RecordedDriver
from scheduler_core.testing.builders import ListSink, play, policy_spec, request
from scheduler_core.types.patience import Patience
from scheduler_core.types.records import Arrived, Finished, Record, RunStarted, Step, Steps, decode, encode
from scheduler_core.types.shape import shape_of_step
from tests.core.test_fastforward import REQUESTS, SPECS, TARGET, build


def recorded(spec: Any, requests: Any, capacity: Any, **ends: Any) -> list[Record]:
    policy, sink = build_policy(spec, replace(capacity, profile=TARGET)), ListSink()
    RecordedDriver(
        instance=RecordedInstance(policy),
        requests=requests,
        executor=SimulatedExecutor(profile=TARGET, block_size=policy.limits.block_size),
        sink=sink,
        stop=lambda: False,
        law_interval=7,
        **ends,
    ).run()
    return sink.records


def step_by_step(spec: Any, requests: Any, capacity: Any, **ends: Any) -> list[Record]:
    return without_order(play(spec, requests, capacity=capacity, target=TARGET, law_interval=7, **ends).sink.records)


def spelled_out(records: list[Record]) -> list[Record]:
    return without_order(expand(records))


def without_order(records: Iterable[Record]) -> list[Record]:
    """Steps without digest; a step's grants, and the requests that end with it, by request.

    Passes of a policy may order them otherwise than admission did.
    """
    found: list[Record] = []
    for ended_ns, group in groupby(records, key=lambda record: record.at_ns if isinstance(record, Finished) else None):
        if ended_ns is None:
            found += [replace(r, digest="", grants=sorted(r.grants)) if isinstance(r, Step) else r for r in group]
        else:
            found += sorted(group, key=lambda record: getattr(record, "request", 0))
    return found


@settings(max_examples=120)
@given(spec=SPECS, rows=REQUESTS, blocks=st.integers(6, 40), scale=st.sampled_from([0, 0.1, 1]))
def test_spelled_out_it_is_the_evidence_of_a_plain_run(spec: Any, rows: Any, blocks: Any, scale: Any) -> None:
    requests, capacity = build(rows, scale), Capacity(blocks, 60)
    records = recorded(spec, requests, capacity)
    assert spelled_out(records) == step_by_step(spec, requests, capacity)
    assert [decode(encode(record)) for record in records] == records


@settings(max_examples=120)
@given(
    spec=SPECS,
    rows=REQUESTS,
    blocks=st.integers(6, 40),
    scale=st.sampled_from([0, 0.1, 1]),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 90_000_000)), max_size=6),
    waits=st.tuples(st.sampled_from([None, 3_000_000, 20_000_000]), st.sampled_from([None, 9_000_000, 40_000_000])),
    own=st.sampled_from([None, 0, 1_500_000, 12_000_000]),
    resets=st.lists(st.builds(CacheResetAt, st.integers(0, 90_000_000), st.booleans()), max_size=3),
)
def test_it_is_with_cancels_time_limits_and_resets(
    spec: Any, rows: Any, blocks: Any, scale: Any, cancels: Any, waits: Any, own: Any, resets: Any
) -> None:
    requests, capacity = build(rows, scale), Capacity(blocks, 60)
    requests[-1] = replace(requests[-1], cancel_ns=own)
    ends = {"cancels": cancels, "patience": {"default": Patience(*waits)}, "resets": resets}
    assert spelled_out(recorded(spec, requests, capacity, **ends)) == step_by_step(spec, requests, capacity, **ends)


def figures(records: list[Record]) -> tuple[Any, list[Any], list[tuple[int, ...]]]:
    """Summary, live samples, and gaps in order of request and token, of the same records."""
    started = beginning(records)
    samples: list[Any] = []
    sampler = LiveSampler(interval_ns=7_000_000, total=1, on_sample=samples.append, window_ns=20_000_000)
    for record in (started, *records):
        sampler.write(record)
    sampler.flush()
    # Checks are counted per record, which may reach beyond the moment of a sample; in the end they are the same.
    samples = [sample.model_copy(update={"account_checks": None}) for sample in samples[:-1]] + samples[-1:]
    gaps = IntRows(GAP_INTS)
    fold = RunFold(IntRows(STEP_INTS), gaps, Labels())
    for record in (started, *records):
        fold.take(record)
    fold.end()
    rows = gaps.take()
    table = sorted(zip(*(rows[name].tolist() for name in GAP_INTS[:4]), strict=True))
    summary = summarise([started, *records], arm="a", repeat=0, tiers={})
    return summary.canonical(), samples, table


def beginning(records: list[Record]) -> RunStarted:
    return RunStarted(
        run="r", attempt=1, plan_digest="plan", policy_digest="policy", policy={}, target={}, level="simulation",
        source="modelled", offered=sum(isinstance(record, Arrived) for record in records),
        kv_blocks=sum(next((kv_total(r) for r in records if isinstance(r, Step | Steps)), (0,))), block_size=4,
        token_budget=40,
    )  # fmt: skip


def kv_total(step: Step | Steps) -> tuple[int, ...]:
    counts = (step.kv_used, step.kv_cached, step.kv_free)
    return tuple(count[0] if isinstance(count, list) else count for count in counts)


@settings(max_examples=80)
@given(
    spec=SPECS,
    rows=REQUESTS,
    blocks=st.integers(6, 40),
    scale=st.sampled_from([0, 0.1, 1]),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 90_000_000)), max_size=4),
)
def test_every_figure_check_and_sample_is_the_same(spec: Any, rows: Any, blocks: Any, scale: Any, cancels: Any) -> None:
    requests, capacity = build(rows, scale), Capacity(blocks, 60)
    records = recorded(spec, requests, capacity, cancels=cancels)
    found = figures(records)
    assert list(shapes(records)) == [shape_of_step(r) for r in expand(records) if isinstance(r, Step)]
    expected = figures(step_by_step(spec, requests, capacity, cancels=cancels))
    assert found == expected
    assert found[0]["audit"]["passed"]


def condensed(records: list[Record]) -> list[Record]:
    condenser = Condenser()
    return [condenser.take(record) if isinstance(record, Step) else record for record in records]


def audited(records: list[Record]) -> Audit:
    audit = Audit()
    for record in records:
        audit.take(record)
    return audit


@settings(max_examples=60)
@given(
    spec=SPECS,
    rows=REQUESTS,
    blocks=st.integers(6, 40),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 90_000_000)), max_size=4),
    lost=st.integers(0, 300),
)
def test_steps_told_one_by_one_can_be_condensed(spec: Any, rows: Any, blocks: Any, cancels: Any, lost: int) -> None:
    """Spelled out again they are the same; the audit counts the same checks, and misses a lost record no less."""
    requests, capacity = build(rows, 1), Capacity(blocks, 60)
    records = step_by_step(spec, requests, capacity, cancels=cancels)
    assert spelled_out(condensed(records)) == records
    plain, short = audited(records), audited(condensed(records))
    assert (plain.checks, plain.violations) == (short.checks, short.violations)
    torn = [record for number, record in enumerate(records) if number != lost]
    assert (audited(torn).first_violation is None) == (audited(condensed(torn)).first_violation is None)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("kv_used", lambda values: [values[0], values[1] + 1, *values[2:]]),
        ("kv_free", lambda values: [*values[:-1], values[-1] - 1]),
        ("available_ns", lambda values: [values[0], values[2], values[1], *values[3:]]),
        ("available_ns", lambda values: [*values[:-1], values[-2] - 1]),
        ("lanes", lambda lanes: [("input_prepare", "host", 1, 0), *lanes]),
        ("lanes", lambda lanes: [*lanes, *lanes]),
        ("budget", lambda budget: 1),
        ("host_used", lambda used: -1),
        ("copied_on_write", lambda copies: 1),
    ],
)
def test_a_fault_within_a_stretch_is_found_as_it_is_step_by_step(field: str, change: Any) -> None:
    """Steps audited together: where one of them is wrong, the audit says first what it says of single steps."""
    requests = [request(0, 5, 14), request(1, 6, 14)]
    records = recorded(policy_spec("vllm_v1"), requests, Capacity(40, 60))
    records.insert(0, beginning(records))
    place, stretch = next((n, r) for n, r in enumerate(records) if isinstance(r, Steps) and len(r.available_ns) > 3)
    broken = [*records[:place], replace(stretch, **{field: change(getattr(stretch, field))}), *records[place + 1 :]]
    found, expected = audited(broken), audited(list(expand(broken)))
    assert found.first_violation == expected.first_violation is not None
