"""A whole run against a server whose token times are known: every figure is what was sent, faults included."""

import statistics
import urllib.request
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from gpu_runner.server.client.load import split
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.client_records import Sent, Streamed
from scheduler_core.types.records import Arrived
from scheduler_core.types.time import NS_PER_MS
from tests.server.playing import Played, evenly, play, play_at

SLOW = Scripted(ttft_ms=200, gap_ms=50)


def truth_ms(played: Played) -> dict[str, list[float]]:
    """What the mock's own stamps say of each finished request: both clocks are this host's monotonic one.

    The run's zero is found from the sends themselves: a request's first token came TTFT after it was sent.
    """
    found: dict[str, list[float]] = {"tpot": [], "decode": [], "longest": []}
    for item in played.truth.values():
        sent = item["sent"]
        if item["reason"] != "length" or len(sent) < 2:
            continue
        at = [time / NS_PER_MS for time, _ in sent]
        tokens = sum(count for _, count in sent)
        found["decode"].append(at[-1] - at[0])
        found["tpot"].append((at[-1] - at[0]) / (tokens - 1))
        found["longest"].append(max(b - a for a, b in pairwise(at)))
    return found


def near(one: float, other: float, *, share: float = 0.01, floor: float = 1.0) -> bool:
    return abs(one - other) <= max(share * abs(other), floor)


@pytest.mark.parametrize(("dialect", "per_chunk"), [("vllm", 4), ("sglang", 4), ("openai", 4)])
def test_figures_equal_what_was_sent(dialect: Any, per_chunk: int, tmp_path: Path) -> None:
    script = SLOW.model_copy(update={"tokens_per_chunk": per_chunk})
    behaviour = Behaviour(dialect=dialect, scripted=script, keep_alive_comments=True, empty_first_delta=True)
    played = play(behaviour, evenly(24, gap_ms=40, output=9), tmp_path)
    assert played.result.outcome == "succeeded", played.result.reason
    truth = truth_ms(played)
    assert len(truth["tpot"]) == 24 == played.summary.outcomes["finished"]
    assert near(played.value("tpot_mean_ms"), statistics.mean(truth["tpot"]))
    # One gap shows what the machine did between the two stamps, which a mean over many does not.
    assert near(played.value("longest_gap_p50_ms"), statistics.median(truth["longest"]), share=0.1)
    decode = played.value("e2e_mean_ms") - played.value("ttft_mean_ms")
    assert near(decode, statistics.mean(truth["decode"]))
    assert played.value("chunk_tokens_mean") == pytest.approx(9 / (1 + -(-8 // per_chunk)))
    assert played.summary.audit.passed, played.summary.audit.violations
    assert played.summary.output_tokens == 24 * 9


def test_first_tokens_count_from_the_intended_time_to_the_server_s_stamp(tmp_path: Path) -> None:
    """The mock's first stamp less the intended time, on one monotonic clock, is TTFT to a percent."""
    played = play(Behaviour(scripted=SLOW), evenly(20, gap_ms=40, output=3), tmp_path)
    firsts = {n: item["sent"][0][0] for n, item in played.truth.items()}
    streamed = {row[0]: row[1] for record in reversed(played.records) if isinstance(record, Streamed)
                for row in reversed(record.rows)}  # fmt: skip
    due = {record.request: record.at_ns for record in played.records if isinstance(record, Arrived)}
    # One request gives the offset between the run's clock and the host's; all others must agree with it.
    offsets = sorted(firsts[n] - streamed[n] for n in firsts)
    zero = offsets[len(offsets) // 2]
    true_ms = [(firsts[n] - zero - due[n]) / NS_PER_MS for n in firsts]
    assert near(played.value("ttft_p50_ms"), statistics.median(true_ms), floor=2.0)


def test_error_objects_and_broken_streams_are_failures(tmp_path: Path) -> None:
    """Ten streams: three end in an error object, one with neither end mark nor reason: six succeed."""
    faults: dict[int, Any] = {1: "error_in_stream", 4: "error_in_stream", 7: "error_in_stream", 8: "no_finish"}
    played = play(Behaviour(scripted=Scripted(ttft_ms=20, gap_ms=5), faults=faults), evenly(10, gap_ms=10), tmp_path)
    counts = {name: n for name, n in played.summary.outcomes.items() if n}
    assert counts == {"finished": 6, "failed": 4}
    assert played.summary.metrics["ttft_mean_ms"].n == 6
    assert played.value("throughput_finished_tokens_per_s") == pytest.approx(6 * 8 / played.value("window_s"), rel=1e-6)
    reasons = played.summary.reasons
    assert reasons["failed: stream: engine ran out of memory"] == 3
    assert reasons["failed: stream: the stream ended with neither a finish reason nor [DONE]"] == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("reset", "failed", "stream: "),
        ("empty_stream", "failed", "first_token: the stream ended without a token"),
        ("plain_json", "failed", "first_token: answered whole where a stream was asked for"),
        ("refused", "rejected", "answer: status 429: queue is full"),
        ("failed", "failed", "answer: status 500: engine is dead"),
        ("no_done", "finished", ""),
    ],
)
def test_each_fault_is_told_by_its_name(fault: Any, outcome: str, reason: str, tmp_path: Path) -> None:
    behaviour = Behaviour(scripted=Scripted(ttft_ms=10, gap_ms=5), faults={2: fault})
    played = play(behaviour, evenly(5, gap_ms=20), tmp_path)
    assert played.summary.audit.passed, played.summary.audit.violations
    if outcome == "finished":
        assert played.summary.outcomes["finished"] == 5
        return
    assert played.summary.outcomes[outcome] == 1 and played.summary.outcomes["finished"] == 4
    assert any(found.startswith(f"{outcome}: {reason}") for found in played.summary.reasons), played.summary.reasons
    durations = [f.value for name, f in played.summary.metrics.items() if name.endswith("_ms") and f.value is not None]
    assert min(durations) >= 0


def test_a_silent_server_times_out(tmp_path: Path) -> None:
    behaviour = Behaviour(scripted=Scripted(ttft_ms=10, gap_ms=5), faults={1: "silent"})
    played = play(behaviour, evenly(3, gap_ms=10), tmp_path, client={"timeout_s": 0.5})
    assert played.summary.outcomes["timed_out"] == 1
    assert "timed_out: first_token: no end within 0.5 s" in played.summary.reasons


def test_clients_that_give_up_are_cancelled_and_the_server_hears_of_it(tmp_path: Path) -> None:
    requests = [
        *evenly(3, gap_ms=10),
        PlannedRequest(3, 30 * NS_PER_MS, 16, 500, 500, seed=3, cancel_ns=200 * NS_PER_MS),
    ]
    played = play(Behaviour(scripted=Scripted(ttft_ms=10, gap_ms=10)), requests, tmp_path)
    assert played.summary.outcomes == {**played.summary.outcomes, "finished": 3, "cancelled": 1}
    assert played.truth[3]["reason"] == "abort"


def test_all_fail_is_a_result_with_reasons(tmp_path: Path) -> None:
    faults: dict[int, Any] = dict.fromkeys(range(6), "failed")
    played = play(Behaviour(faults=faults), evenly(6, gap_ms=5), tmp_path)
    assert played.result.outcome == "succeeded"
    assert played.summary.outcomes["failed"] == 6
    assert played.summary.metrics["ttft_p50_ms"].value is None
    assert played.summary.reasons == {"failed: answer: status 500: engine is dead": 6}


def test_nobody_there_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    from tests.server.playing import play_at

    played = play_at("http://127.0.0.1:9", evenly(2, gap_ms=5), tmp_path)
    assert played.result.outcome == "failed"
    assert played.result.reason.startswith("target.server.url: http://127.0.0.1:9: cannot connect to 127.0.0.1:9")


# --- sending --------------------------------------------------------------------------------------------------------


def test_sends_keep_to_the_absolute_schedule(tmp_path: Path) -> None:
    """200 requests a second against an endpoint that answers at once: delays never add up."""
    played = play(Behaviour(scripted=Scripted(ttft_ms=0, gap_ms=0)), evenly(400, gap_ms=5, output=1), tmp_path)
    asked, sent = played.value("offered_rps"), played.value("sent_rps")
    assert asked == pytest.approx(200, rel=1e-6)
    assert sent == pytest.approx(asked, rel=0.05)
    assert played.value("send_delay_p50_ms") < 50  # were delays added up, they would reach seconds
    due = [r.at_ns for r in played.records if isinstance(r, Arrived)]
    wrote = {r.request: r.at_ns for r in played.records if isinstance(r, Sent)}
    assert all(wrote[n] >= at for n, at in enumerate(sorted(due)))


def test_a_late_client_voids_the_run(tmp_path: Path) -> None:
    """300 requests/s of 64 chunks held to a limit that no machine keeps: void, and said so."""
    played = play(
        Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=2)), evenly(60, gap_ms=3, output=64), tmp_path,
        client={"late_ms": 0.001},
    )  # fmt: skip
    assert played.summary.void.startswith("the load client was late: 99 % of requests were sent within")
    assert played.result.outcome == "succeeded"  # the evidence is kept, and nothing is concluded from it


def test_a_limit_on_connections_shows_as_lateness(tmp_path: Path) -> None:
    behaviour = Behaviour(scripted=Scripted(ttft_ms=100, gap_ms=10))
    played = play(behaviour, evenly(6, gap_ms=1, output=2), tmp_path, client={"connections": 2, "late_ms": 20})
    assert played.summary.outcomes["finished"] == 6
    assert played.value("send_delay_max_ms") > 150
    assert "late" in played.summary.void


def test_retries_are_counted_and_time_counts_from_the_first_intention(tmp_path: Path) -> None:
    behaviour = Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1), faults={0: "refused"})
    client = {"retry": {"tries": 2, "wait_ms": 50, "factor": 2}}
    played = play(behaviour, evenly(1, gap_ms=1), tmp_path, client=client)
    sends = [record for record in played.records if isinstance(record, Sent)]
    assert [record.number for record in sends] == [1, 2, 3]
    assert (sends[1].at_ns - sends[0].at_ns) / NS_PER_MS >= 50
    assert (sends[2].at_ns - sends[1].at_ns) / NS_PER_MS >= 100
    assert played.value("client_retries") == 2 and played.summary.outcomes["rejected"] == 1


def closed_loop(users: int, rounds: int, think_ms: float) -> list[PlannedRequest]:
    requests = []
    for turn in range(rounds):
        for user in range(users):
            index = turn * users + user
            after = (index - users,) if turn else ()
            at = round(think_ms * NS_PER_MS) if turn else 0
            requests.append(PlannedRequest(index, at, 16, 4, 4, seed=index, after=after))
    return requests


def test_a_closed_loop_waits_for_answers(tmp_path: Path) -> None:
    played = play(Behaviour(scripted=Scripted(ttft_ms=20, gap_ms=10)), closed_loop(3, 4, 30), tmp_path)
    assert played.summary.outcomes["finished"] == 12
    due = {r.request: r.at_ns for r in played.records if isinstance(r, Arrived)}
    last = {row[0]: row[1] for r in played.records if isinstance(r, Streamed) for row in r.rows}
    for index in range(3, 12):
        assert 29 <= (due[index] - last[index - 3]) / NS_PER_MS < 1000  # how much later tells of the machine alone
    assert played.value("running_max") <= 3


def conversation() -> list[PlannedRequest]:
    first = PlannedRequest(0, 0, 32, 5, 5, seed=1, session=1, turn=0, prefix_blocks=(7, 8))
    later = PlannedRequest(1, 0, 53, 5, 5, seed=2, session=1, turn=1, after=(0,), prefix_blocks=(7, 8, 9, 10))
    return [first, later]


def test_the_real_answer_is_in_the_next_turn(tmp_path: Path) -> None:
    """The mock's answer has ids 0 to 4, which no made-up prompt holds (they begin at 16): they are in turn two."""
    played = play(Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1)), conversation(), tmp_path)
    first, second = played.truth[0]["ids"], played.truth[1]["ids"]
    assert second[:37] == [*first, 0, 1, 2, 3, 4]
    assert len(second) == 53 and min(second[37:]) >= 16


def test_chat_turns_carry_the_answer_as_a_message(tmp_path: Path) -> None:
    played = play(Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=1)), conversation(), tmp_path, api="chat")
    roles = [message["role"] for message in played.truth[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert played.truth[1]["messages"][1]["content"] == " tok" * 5


def test_prompts_share_what_the_plan_shares_and_no_two_runs_share_anything(tmp_path: Path) -> None:
    requests = [
        PlannedRequest(n, n * NS_PER_MS, 40, 1, 1, seed=n, prefix_blocks=(5, 6) if n < 2 else (5, 9)) for n in range(3)
    ]
    runs: list[Played] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        runs.append(play(Behaviour(scripted=Scripted(ttft_ms=1)), requests, folder, salt_of=name))
    a, b, c = (runs[0].truth[n]["ids"] for n in range(3))
    assert a[:32] == b[:32] and a[32:] != b[32:]
    assert a[:16] == c[:16] and a[16:32] != c[16:32]
    assert a[:16] != runs[1].truth[0]["ids"][:16]


def test_what_comes_together_again_is_not_split_apart() -> None:
    """Two chains and a third on its own; request 4 waits for both chains, and stands after all of them."""
    after = {2: (0,), 3: (1,), 4: (2, 3)}
    requests = [
        PlannedRequest(index, 0, 16, 4, 4, seed=index, after=after.get(index, ())) for index in (0, 1, 5, 2, 3, 4)
    ]
    assert [[r.index for r in part] for part in split(requests, 3)] == [[0, 1, 2, 3, 4], [5]]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_plan_is_split_along_its_dependencies(processes: int) -> None:
    requests = closed_loop(5, 4, 1)
    parts = split(requests, processes)
    assert sorted(r.index for part in parts for r in part) == list(range(20))
    for part in parts:
        inside = {request.index for request in part}
        assert all(set(request.after) <= inside for request in part)


def test_two_processes_tell_one_story(tmp_path: Path) -> None:
    played = play(Behaviour(scripted=Scripted(ttft_ms=20, gap_ms=5)), evenly(40, gap_ms=5), tmp_path,
                  client={"processes": 2})  # fmt: skip
    assert played.summary.outcomes["finished"] == 40 and played.summary.audit.passed


def order_of(values: Sequence[float]) -> bool:
    return all(a <= b for a, b in pairwise(values))


def test_a_server_that_takes_only_uuids_for_request_ids_is_played(tmp_path: Path) -> None:
    """As llama-cpp-python's server, which answers another name with an empty 400 and counts no tokens."""
    behaviour = Behaviour(dialect="openai", only_uuids=True, usage="none", scripted=Scripted(ttft_ms=5, gap_ms=1))
    with mock_server(behaviour) as url:
        other = urllib.request.Request(f"{url}/v1/models", headers={"x-request-id": "run-0"})
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(other, timeout=10)
        assert (refused.value.code, refused.value.read()) == (400, b"")
        played = play_at(url, evenly(4, gap_ms=5, output=8), tmp_path)
    assert played.summary.outcomes["finished"] == 4 and played.summary.output_tokens == 4 * 8


def test_live_samples_come_while_it_runs(tmp_path: Path) -> None:
    played = play(Behaviour(scripted=Scripted(ttft_ms=50, gap_ms=20)), evenly(30, gap_ms=40, output=20), tmp_path,
                  scrape_ms=100)  # fmt: skip
    times = [sample["t_s"] for sample in played.samples]
    assert len(times) >= 4 and order_of(times)
    assert any(sample["in_flight"] for sample in played.samples)
    assert any(sample["running"] for sample in played.samples)
    assert any(sample["ttft_p50_ms"] for sample in played.samples)
    assert all(sample["step_budget"] is None for sample in played.samples)
