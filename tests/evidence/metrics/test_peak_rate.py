"""The peak token rate: tokens are counted, not chunks, and the peak is never below the average."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.evidence.client.fold import ClientFold, ClientTables
from scheduler_core.evidence.columns import IntRows
from scheduler_core.evidence.fold.layout import CHUNK_INTS, GAP_INTS, Labels
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.evidence.window import Window
from scheduler_core.types.client_records import Answered, Sent, Streamed
from scheduler_core.types.records import Arrived, Finished, Record
from scheduler_core.types.time import NS_PER_S
from tests.evidence.client.test_client import Scene as Served
from tests.evidence.played import play, summarise
from tests.evidence.scenes import Scene

PEAK, MEAN = "throughput_peak_tokens_per_s", "throughput_tokens_per_s"


def rates(summary: RunSummary) -> tuple[float, float]:
    """Peak and average of a run that has both."""
    peak, mean = (summary.metrics[name].value for name in (PEAK, MEAN))
    assert peak is not None and mean is not None
    return peak, mean


def test_a_window_shorter_than_a_second_is_one_part(tmp_path: Path) -> None:
    """Chunks at 100 (1), 130 (3), 160 (3): 7 tokens, not 3 chunks, in 0.16 s: 43.75 a second, peak and average."""
    assert rates(Served(1).request(0, 0, [(100, 1), (130, 3), (160, 3)]).finalise(tmp_path)) == (43.75, 43.75)


def test_what_is_left_over_belongs_to_the_last_second(tmp_path: Path) -> None:
    """Chunks at 500 (1), 1500 (3), 2400 (4) and the end at 2400: 1 / 1 s, then 7 / 1.4 s = 5; on average 8 / 2.4."""
    peak, mean = rates(Served(1).request(0, 0, [(500, 1), (1500, 3), (2400, 4)]).finalise(tmp_path))
    assert peak == pytest.approx(5)
    assert mean == pytest.approx(8 / 2.4)


def test_a_burst_stands_out_from_the_average(tmp_path: Path) -> None:
    """30 tokens within the third of five seconds, one in each of the others: 30 beside 34 / 5."""
    chunks = [(500.0, 1), (1500.0, 1), (2100.0, 10), (2200.0, 10), (2300.0, 10), (3500.0, 1), (5000.0, 1)]
    peak, mean = rates(Served(1).request(0, 0, chunks).finalise(tmp_path))
    assert peak == 30
    assert mean == pytest.approx(34 / 5)


def test_counts_that_the_server_corrects_are_corrected_in_their_second(tmp_path: Path) -> None:
    """Chunks at 500, 1500 and 3000, told one token each; the answer says 2, 9 and 1: each whole second has its own."""
    scene = Served(1).request(0, 0, [(500, 1), (1500, 1), (3000, 1)], counts=[2, 9, 1])
    assert rates(scene.finalise(tmp_path)) == (9, 4)


def test_no_length_has_no_rate(tmp_path: Path) -> None:
    scene = Scene(1)
    scene.arrive(0, 5)
    scene.finish(0, 5, outcome="rejected")
    summary = summarise(scene.end(5), tmp_path)
    assert [summary.metrics[name].absence for name in (PEAK, MEAN)] == ["not_applicable"] * 2


Chunks = list[tuple[int, int, int]]  # ns since the chunk before, tokens told, tokens that it really had
STREAMS = st.lists(
    st.tuples(
        st.integers(0, 3 * NS_PER_S),  # arrival
        st.lists(st.tuples(st.integers(1, 2 * NS_PER_S), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8),
        st.booleans(),  # whether the answer corrects the counts
    ),
    min_size=1,
    max_size=5,
)


def _records(number: int, arrival: int, chunks: Chunks, *, corrects: bool) -> Iterator[tuple[int, Record]]:
    yield arrival, Arrived(arrival, arrival, number, 8, 99, "default", "default")
    yield arrival, Sent(arrival, number, 1, 0)
    at = arrival
    for gap, told, _ in chunks:
        at += gap
        yield at, Streamed(at, [(number, at, told)])
    counts = [real for _, _, real in chunks] if corrects else None
    yield at, Answered(at, number, counts, None, None, None, comments=0, empty=0, done_mark=True)
    yield at, Finished(at, number, "finished", "stream", "", sum(counts or [told for _, told, _ in chunks]))


@given(STREAMS, st.integers(0, 2))
def test_for_any_streams_of_several_tokens_a_chunk_the_peak_is_at_least_the_average(
    streams: list[tuple[int, Chunks, bool]], warmups: int
) -> None:
    """Exactly, not up to rounding, whatever the window; and at least every whole second's tokens, counted anew."""
    streams.sort(key=lambda stream: stream[0])
    drawn = [
        item
        for number, (arrival, chunks, corrects) in enumerate(streams)
        for item in _records(number, arrival, chunks, corrects=corrects)
    ]
    fold = ClientFold(ClientTables(IntRows(GAP_INTS), IntRows(CHUNK_INTS)), Labels())
    fold.window.opens_with = min(warmups, len(streams) - 1)
    for _, record in sorted(drawn, key=lambda item: item[0]):
        fold.take(record)
    window = fold.window
    assert window.peak_tokens_per_s is not None and window.tokens_per_s is not None
    assert window.peak_tokens_per_s >= window.tokens_per_s
    if not fold.window.opens_with:
        assert window.peak_tokens_per_s == pytest.approx(_by_hand(streams, window))


def _by_hand(streams: list[tuple[int, Chunks, bool]], window: Window) -> float:
    """Seconds looked at one after the other, tokens at their chunk's time."""
    came = []
    for arrival, chunks, corrects in streams:
        at = arrival
        for gap, told, real in chunks:
            at += gap
            came.append((at, real if corrects else told))
    start, end = streams[0][0], max(at for at, _ in came)
    assert (window.start_ns, window.end_ns) == (start, end)
    edges = list(range(start, end - NS_PER_S + 1, NS_PER_S)) or [start]
    parts = list(zip(edges, [*edges[1:], end + 1], strict=True))
    longs = [*(NS_PER_S for _ in edges[1:]), end - edges[-1]]
    return max(
        sum(tokens for at, tokens in came if first <= at < after) / (long / NS_PER_S)
        for (first, after), long in zip(parts, longs, strict=True)
    )


@pytest.mark.parametrize("rate_rps", [0.5, 6, 60])
def test_it_is_so_of_runs_by_steps(rate_rps: float, tmp_path: Path) -> None:
    workload: dict[str, Any] = {"arrivals": {"poisson": {"rate_rps": rate_rps}}, "requests": 30}
    peak, mean = rates(summarise(play({"policy": "vllm_v1"}, workload), tmp_path, workload=workload))
    assert peak > mean > 0
