"""Requests made ahead of their time: the same bytes as made at their time, no more of them than memory is set for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.server.client import outbox
from gpu_runner.server.client.agenda import SendAgenda
from gpu_runner.server.client.outbox import Outbox
from gpu_runner.server.client.prompts import Manner, Said
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.pool import Origin
from scheduler_core.spec.server import LoadClient
from scheduler_core.types.arrival import PlannedRequest


def made_of(*requests: PlannedRequest) -> Outbox:
    plan = ShardPlan("r", requests, Manner("m"), LoadClient(), Origin("http://h:1/x"), headers={"authorization": "k"})
    return Outbox(plan, SendAgenda(requests).in_order())


def body(data: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(data.partition(b"\r\n\r\n")[2])
    return found


def test_a_whole_request_by_hand() -> None:
    """Two token ids of seed 3, its UUID's last group 5, and a content length that is the body's."""
    outbox_ = made_of(PlannedRequest(5, 0, 2, 4, 4, seed=3))
    head, _, rest = outbox_.take(PlannedRequest(5, 0, 2, 4, 4, seed=3))[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[:4] == ["POST /x/v1/completions HTTP/1.1", "host: h:1", "accept: */*", "authorization: k"]
    assert lines[4].startswith("x-request-id: ") and lines[4].endswith("-000000000005")
    assert lines[5:] == ["content-type: application/json", f"content-length: {len(rest)}"]
    assert body(head + b"\r\n\r\n" + rest)["max_tokens"] == 4


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=12), st.data())
def test_made_ahead_or_in_time_the_bytes_are_the_same(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    requests = [PlannedRequest(n, at, length, 4, 4, seed=n) for n, (at, length) in enumerate(shapes)]
    ahead, in_time = made_of(*requests), made_of(*requests)
    for request in sorted(requests, key=lambda request: (request.arrival_ns, request.index)):
        ahead.make(data.draw(st.integers(0, 5)), request.arrival_ns - 1)
        assert ahead.take(request)[0] == in_time.take(request)[0]


def test_no_more_lie_made_than_memory_is_set_for(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [PlannedRequest(n, n, 16, 4, 4, seed=n) for n in range(9)]
    size = len(made_of(*requests).take(requests[0])[0])
    monkeypatch.setattr(outbox, "LARGEST_AHEAD_BYTES", 2 * size)
    found = made_of(*requests)
    assert found.make(9, -1) in (2, 3)  # ids are of one to four digits, so sizes differ a little
    assert found.make(9, -1) == 0
    found.take(requests[0])
    assert found.make(1, -1) == 1


def test_what_is_due_already_is_not_made_again() -> None:
    requests = [PlannedRequest(n, n, 16, 4, 4, seed=n) for n in range(4)]
    found = made_of(*requests)
    assert found.make(9, 1) == 2  # those of 2 and 3 ns


def test_a_later_turn_is_made_once_its_history_is_known() -> None:
    """It waits for the first turn, so it is not among those that are due by themselves; then it holds the answer."""
    first = PlannedRequest(0, 0, 2, 1, 1, seed=0, session=1, turn=0)
    later = PlannedRequest(1, 5, 6, 1, 1, seed=1, session=1, turn=1, after=(0,))
    found = made_of(first, later)
    assert found.make(9, -1) == 1
    said = found.take(first)[1]
    assert said.ids is not None
    answer = found.writer.answered(said, [7], "")
    assert isinstance(answer, Said) and answer.ids is not None
    found.follows(1, answer)
    found.released([(25, later)])
    assert found.make(9, 20) == 1
    prompt = body(found.take(later)[0])["prompt"]
    assert isinstance(prompt, list) and prompt[:3] == [*said.ids.tolist(), 7] and len(prompt) == 6
