"""The sweep partitions time; records that lie show as unattributed time."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.evidence.fold.sweep import PRECEDENCE, RANK, UNATTRIBUTED, Segment, StepTime, sweep, union_ns
from scheduler_core.evidence.tables.tables import read_table
from tests.evidence.played import summarise
from tests.evidence.scenes import Scene, ns

KINDS = st.sampled_from([str(kind) for kind in PRECEDENCE])
SPANS = st.lists(st.tuples(KINDS, st.integers(-5, 40), st.integers(-5, 40)).map(lambda row: Segment(*row)), max_size=12)


@given(SPANS, st.integers(0, 10), st.integers(0, 30))
def test_segments_partition_the_range_and_the_highest_class_wins(spans: list[Segment], start: int, length: int) -> None:
    end = start + length
    segments = sweep(spans, start, end)
    assert sum(segment.end_ns - segment.start_ns for segment in segments) == length
    assert all(left.end_ns == right.start_ns and left.kind != right.kind for left, right in pairwise(segments))
    for segment in segments:
        for at in range(segment.start_ns, segment.end_ns):
            present = [RANK[span.kind] for span in spans if span.start_ns <= at < span.end_ns]
            assert segment.kind == (PRECEDENCE[min(present)] if present else UNATTRIBUTED)


def test_worked_partition() -> None:
    """Queue 0-10, prepare 8-12, compute 12-20, streaming 19-25 of [0, 30): 8 + 4 + 8 + 5, and 5 that nothing covers."""
    spans = [
        Segment("queue", 0, 10), Segment("input_prepare", 8, 12), Segment("compute_prefill", 12, 20),
        Segment("stream_output", 19, 25),
    ]  # fmt: skip
    assert sweep(spans, 0, 30) == [
        ("queue", 0, 8), ("input_prepare", 8, 12), ("compute_prefill", 12, 20), ("stream_output", 20, 25),
        ("unattributed", 25, 30),
    ]  # fmt: skip


def test_union_counts_overlap_once() -> None:
    assert union_ns([(0, 5), (3, 8), (10, 12), (11, 11)]) == 10


def test_lanes_of_a_step_belong_to_its_participants() -> None:
    """Planning 0-2, prepare 2-3, compute 3-9, copy out 9-10, streaming 10-11 (ms): the whole step is accounted."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    step = scene.step(
        0, 11, [(0, 10)], compute=(3, 9),
        lanes=[("input_prepare", 2, 3), ("output_transfer", 9, 10), ("stream_output", 10, 11)],
    )  # fmt: skip
    shape = StepTime(step.planned_ns, step.available_ns, step.lanes)
    assert {PRECEDENCE[rank]: spent for rank, spent in shape.totals("prefill")} == {
        "input_prepare": ns(3), "compute_prefill": ns(6), "output_transfer": ns(1), "stream_output": ns(1)
    }  # fmt: skip
    assert [(PRECEDENCE[rank], spent) for rank, spent in shape.totals("stalled")] == [("stalled", ns(11))]


def test_overlapping_steps_are_swept_together(tmp_path: Path) -> None:
    """A pipelined executor: step 2 (8-20, compute 10-18) is planned while step 1 (0-12, compute 0-10) streams.

    Compute of either wins at each instant: 0-10 prefill, 10-18 decode, 18-20 streaming of step 2.
    """
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 12, [(0, 10)], compute=(0, 10), lanes=[("stream_output", 10, 12)])
    scene.step(8, 20, [(0, 1)], compute=(10, 18), lanes=[("stream_output", 18, 20)])
    scene.finish(0, 20)
    summary = summarise(scene.end(20), tmp_path)
    row = read_table(tmp_path / "requests.parquet").to_pylist()[0]
    assert (row["prefill_ms"], row["decode_ms"], row["stream_output_ms"], row["unattributed_ms"]) == (10, 8, 2, 0)
    assert summary.audit.violations == []


def test_stalled_while_resident_is_named(tmp_path: Path) -> None:
    """Request 1 is admitted at 0 and gets nothing in the step 10-30, which prefills request 2 only."""
    scene = Scene(2)
    scene.arrive(1, 0)
    scene.admit(1, 0)
    scene.step(0, 10, [(1, 10)])
    scene.arrive(0, 10)
    scene.admit(0, 10)
    scene.step(10, 30, [(0, 10)], stalled=[(1, "others_prefill")])
    scene.step(30, 40, [(0, 1), (1, 1)])
    scene.finish(0, 40)
    scene.finish(1, 40)
    summary = summarise(scene.end(40), tmp_path)
    row = read_table(tmp_path / "requests.parquet").to_pylist()[1]
    assert (row["stalled_ms"], row["stall_cause"]) == (20, "others_prefill")
    assert (row["longest_gap_ms"], row["longest_gap_cause"]) == (30, "stalled: others_prefill")
    assert summary.audit.violations == []
