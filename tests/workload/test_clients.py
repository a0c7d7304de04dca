"""Requests drawn from fitted clients: rates, gaps and lengths as the files say, the same for a seed everywhere."""

import gzip
import itertools
import json
import os
import statistics
from pathlib import Path

import pytest
from scipy import stats

from scheduler_core.types.errors import InputError
from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.clients import Span, draw_requests, read_clients
from scheduler_core.workload.distributions import UNIT, weibull
from scheduler_core.workload.uniform import ONE

FULL, LATE = {10: 0.25, 30: 0.75}, {500: 1.0}


def write_client(folder: Path, name: str, rows: list[str], *, packed: bool = True) -> None:
    (folder / f"{name}-trace.csv").write_text("\n".join(rows) + "\n")
    windows = {
        "0": {"input_tokens": str(FULL), "output_tokens": "{5: 1.0}"},
        "600": {"input_tokens": "{}", "output_tokens": "{}"},
        "1200": {"input_tokens": str(LATE), "output_tokens": "{7: 1.0}"},
    }
    data = json.dumps(windows).encode()
    path = folder / f"{name}-dataset.json{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(data) if packed else data)


def test_a_weibull_table_is_the_distribution(tmp_path: Path) -> None:
    for shape in (0.5, 0.8, 2.0):
        ours, theirs = weibull(shape), stats.weibull_min(shape)
        assert float(ours.mean()) == pytest.approx(1, rel=1e-9)
        for share in (0.01, 0.5, 0.9, 0.999):
            assert ours.at(int(share * ONE)) / UNIT == pytest.approx(theirs.ppf(share) / theirs.mean(), rel=2e-3)


def test_requests_come_at_the_rate_of_their_window_with_its_lengths(tmp_path: Path) -> None:
    """600 s at 5/s, 600 s of silence, 600 s at 10/s by gaps of variation 2: about 3,000, 0 and 6,000 requests.

    Lengths of the empty window are those of the one before it.
    """
    write_client(tmp_path, "a", ["0,5,1,Gamma,1.0,0.2", "600,0,,,,", "1200,10,2,Gamma,0.25,0.4"])
    clients = read_clients(tmp_path)
    found = draw_requests(clients, Span(0, 1800), seed=3)
    seconds = [request.arrival_ns / NS_PER_S for request in found]
    early, late = [at for at in seconds if at < 600], [at for at in seconds if at >= 1200]
    assert len(early) + len(late) == len(found)
    assert len(early) == pytest.approx(3000, rel=0.06)
    assert len(late) == pytest.approx(6000, rel=0.1)
    gaps = [right - left for left, right in itertools.pairwise(late)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(2, rel=0.15)
    first = [request for request in found if request.arrival_ns < 600 * NS_PER_S]
    assert {request.output_tokens for request in first} == {5}
    assert sum(request.prompt_tokens == 30 for request in first) / len(first) == pytest.approx(0.75, abs=0.03)
    assert {request.prompt_tokens for request in found[len(first) :]} == {500}


def test_a_span_is_the_same_however_it_is_asked_for(tmp_path: Path) -> None:
    write_client(tmp_path, "a", ["0,2,1,Weibull,0.8,1", "600,4,1,Gamma,1,1"])
    write_client(tmp_path, "b", ["0,1,1,Gamma,1,1"], packed=False)
    clients = read_clients(tmp_path)
    both = draw_requests(clients, Span(0, 900), seed=1)
    assert both == draw_requests(read_clients(tmp_path), Span(0, 900), seed=1)
    assert both != draw_requests(clients, Span(0, 900), seed=2)
    alone = draw_requests(clients[:1], Span(0, 900), seed=1)
    assert [request for request in both if request.tenant == "a"] == alone  # a client's draws are its own
    assert all(0 <= request.arrival_ns < 100 * NS_PER_S for request in draw_requests(clients, Span(500, 100), seed=1))
    half = draw_requests(clients, Span(0, 900, scale=0.5), seed=1)
    assert len(half) == pytest.approx(len(both) / 2, rel=0.15)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["0,fast,1,Gamma,1,1"], "line 1"),
        (["0,1,1,Pareto,1,1"], "Gamma or Weibull"),
        (["0,1,1,Gamma,1,1", "0,1,1,Gamma,1,1"], "line 2: windows must begin one after the other"),
        ([""], "line 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path: Path, rows: list[str], said: str) -> None:
    write_client(tmp_path, "a", rows)
    with pytest.raises(InputError, match=said):
        read_clients(tmp_path)


@pytest.mark.parametrize(
    "rates",
    [pytest.param(b"\xff\xfe", id="no text"), pytest.param(b'0,"' + b"x" * 200_000, id="a field without an end")],
)
def test_rates_that_are_no_table_are_refused(tmp_path: Path, rates: bytes) -> None:
    (tmp_path / "a-trace.csv").write_bytes(rates)
    with pytest.raises(InputError, match=r"a-trace\.csv: cannot be read"):
        read_clients(tmp_path)


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param("{10: 1e999}", id="an infinite weight"),
        pytest.param("-" * 100_000 + "1", id="text nested too deep"),
        pytest.param("(" * 5_000, id="too many parentheses"),
        pytest.param("[10]", id="a list"),
    ],
)
def test_lengths_that_are_no_histogram_are_refused(tmp_path: Path, prompts: str) -> None:
    (tmp_path / "a-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    window = {"input_tokens": prompts, "output_tokens": "{5: 1.0}"}
    (tmp_path / "a-dataset.json").write_text(json.dumps({"0": window}))
    with pytest.raises(InputError, match=r"a-dataset\.json: is not an object of windows"):
        read_clients(tmp_path)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(gzip.compress(b"[" * 200_000), id="deep"),
        pytest.param(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 9, id="broken"),
    ],
)
def test_a_packed_file_that_is_none_is_refused(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "a-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    (tmp_path / "a-dataset.json.gz").write_bytes(packed)
    with pytest.raises(InputError, match=r"a-dataset\.json\.gz: is not an object of windows"):
        read_clients(tmp_path)


def test_a_client_needs_both_its_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no client"):
        read_clients(tmp_path)
    (tmp_path / "a-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    with pytest.raises(InputError, match=r"is missing beside a-trace\.csv"):
        read_clients(tmp_path)


@pytest.mark.skipif("HEADWAY_TRACES" not in os.environ, reason="HEADWAY_TRACES names no folder of public traces")
def test_the_public_clients_give_their_mean_rates() -> None:
    """Ten minutes of four language clients: as many requests as their windows say, within chance."""
    clients = read_clients(Path(os.environ["HEADWAY_TRACES"]) / "servegen" / "language_m-small")
    span = Span(3600, 600, scale=0.1)
    expected = sum(
        float(window.rate) * 60 for client in clients for window in client.windows if window.start_s == span.start_s
    )
    assert len(draw_requests(clients, span, seed=0)) == pytest.approx(expected, rel=0.15)
