"""What the client makes of a stream, byte for byte, with no clock and no network: every figure worked out by hand."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.server.client.chunks import Heard
from gpu_runner.server.client.exchange import Ending, Exchange
from gpu_runner.server.client.sse import EventParser
from gpu_runner.server.http.connection import Connection
from scheduler_core.types.reasons import Outcome

STREAM = {"content-type": "text/event-stream; charset=utf-8"}


class Answer:
    """An exchange that remembers what it told."""

    def __init__(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.chunks: list[tuple[int, int]] = []
        self.ending: Ending | None = None
        self.exchange = Exchange(lambda at, n: self.chunks.append((at, n)), self._end, keep_answer=True)
        self.exchange.head(status, STREAM if headers is None else headers, 0)

    def _end(self, ending: Ending, _at: int) -> None:
        assert self.ending is None, "an exchange ends once"
        self.ending = ending

    def hear(self, *events: tuple[int, Any]) -> "Answer":
        for at, event in events:
            text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            self.exchange.body([text.encode()], at)
        return self

    def done(self, at: int = 999) -> "Answer":
        self.exchange.complete(at)
        return self


def chunk(text: str, finish: str | None = None, usage: int | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}
    return found | ({"usage": {"prompt_tokens": 3, "completion_tokens": usage}} if usage is not None else {})


DONE = "data: [DONE]\n\n"


def test_tokens_of_a_chunk_are_counted_by_the_server_s_running_total() -> None:
    """Totals 1, 4, 7: chunks of 1, 3 and 3 tokens at 100, 130 and 160."""
    answer = Answer().hear((100, chunk("a", usage=1)), (130, chunk("bcd", usage=4)), (160, chunk("efg", "stop", 7)))
    answer.hear((161, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}), (162, DONE)).done()
    assert answer.chunks == [(100, 1), (130, 3), (160, 3)]
    assert answer.ending == Ending(Outcome.FINISHED, "stream", "")
    assert answer.exchange.heard.declared == 7 and answer.exchange.heard.reported


def test_token_ids_count_where_there_is_no_running_total() -> None:
    answer = Answer().hear((5, chunk("ab", token_ids=[7, 8])), (9, chunk("c", "stop", token_ids=[9])), (9, DONE)).done()
    assert answer.chunks == [(5, 2), (9, 1)]
    assert answer.exchange.heard.token_ids == [7, 8, 9]


def test_a_token_without_text_counts_where_the_server_says_so() -> None:
    """Half of a character decodes to nothing, but its token was made and waited for."""
    answer = Answer().hear((5, chunk("", usage=1)), (9, chunk("é", "stop", 2)), (9, DONE)).done()
    assert answer.chunks == [(5, 1), (9, 1)]


def test_an_empty_first_delta_is_no_first_token() -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    word = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    answer = Answer().hear((10, role), (70, word), (71, DONE)).done()
    assert answer.chunks == [(70, 1)]
    assert answer.exchange.heard.empty == 1


def test_reasoning_is_output_too() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    assert Answer().hear((10, thought)).chunks == [(10, 1)]


def test_comments_are_counted_and_carry_nothing() -> None:
    answer = Answer().hear((1, ": keep-alive\n\n"), (2, chunk("a", "stop")), (3, ": ping\n\n"), (4, DONE)).done()
    assert answer.chunks == [(2, 1)]
    assert answer.exchange.comments == 2
    assert answer.ending is not None and answer.ending.outcome is Outcome.FINISHED


@pytest.mark.parametrize("text", [r'"\ud83d"', '"a", "logprobs": {"token_logprobs": [NaN]}'])
def test_what_json_of_python_takes_is_taken(text: str) -> None:
    """Half of a surrogate pair, as gateways in JavaScript send it, and NaN among what nobody asked for."""
    event = f'data: {{"choices": [{{"text": {text}}}]}}\n\n'
    answer = Answer().hear((5, event), (9, chunk("b", "stop"))).done()
    assert answer.chunks == [(5, 1), (9, 1)]
    assert answer.ending == Ending(Outcome.FINISHED, "stream", "")


def test_a_usage_chunk_alone_is_no_token() -> None:
    answer = Answer().hear((1, chunk("a", "stop")), (9, {"choices": [], "usage": {"completion_tokens": 1}}), (9, DONE))
    assert answer.done().chunks == [(1, 1)]


def test_the_server_s_own_queue_time_is_taken_from_the_usage_chunk() -> None:
    last = {"choices": [], "usage": {"completion_tokens": 1}, "metrics": {"queue_time_ms": 12.5}}
    assert Answer().hear((1, chunk("a", "stop")), (2, last)).exchange.heard.queue_ms == 12.5


@pytest.mark.parametrize(
    ("events", "stage", "reason"),
    [
        ([chunk("a"), {"error": {"message": "out of memory", "code": 500}}, DONE], "stream", "out of memory"),
        ([{"error": "boom"}, DONE], "first_token", "boom"),
        ([chunk("a"), chunk("b")], "stream", "the stream ended with neither a finish reason nor [DONE]"),
        ([DONE], "first_token", "the stream ended without a token"),
        ([chunk("a"), chunk("", "error"), DONE], "stream", "finish reason error"),
        ([chunk("a"), "data: {torn"], "stream", "the stream ended with neither a finish reason nor [DONE]"),
        (["data: nonsense\n\n", DONE], "first_token", "a chunk is not JSON: b'nonsense'"),
        (["data: 7\n\n"], "first_token", "a chunk is not one of a completion (Expected `object`, got `int`): b'7'"),
    ],
)
def test_failures_inside_a_200(events: list[Any], stage: str, reason: str) -> None:
    answer = Answer().hear(*enumerate(events)).done()
    assert answer.ending == Ending(Outcome.FAILED, stage, reason)


def test_a_missing_end_mark_after_a_finish_reason_is_forgiven() -> None:
    answer = Answer().hear((1, chunk("a", "length"))).done()
    assert answer.ending is not None and answer.ending.outcome is Outcome.FINISHED
    assert not answer.exchange.heard.done


def test_a_connection_lost_after_the_end_is_forgiven_and_before_it_is_not() -> None:
    whole = Answer().hear((1, chunk("a", "length")))
    whole.exchange.lost("reset", 2)
    assert whole.ending is not None and whole.ending.outcome is Outcome.FINISHED
    torn = Answer().hear((1, chunk("a")))
    torn.exchange.lost("connection lost: reset", 2)
    assert torn.ending == Ending(Outcome.FAILED, "stream", "connection lost: reset", again=False)
    fresh = Answer()
    fresh.exchange.lost("connection lost: reset", 2)
    assert fresh.ending == Ending(Outcome.FAILED, "first_token", "connection lost: reset", again=True)


@pytest.mark.parametrize(
    ("status", "headers", "body", "ending"),
    [
        (429, {"retry-after": "2"}, b'{"error":{"message":"full"}}',
         Ending(Outcome.REJECTED, "answer", "status 429: full", again=True, after_s=2.0)),
        (503, {}, b"", Ending(Outcome.REJECTED, "answer", "status 503", again=True)),
        (500, {}, b"oh", Ending(Outcome.FAILED, "answer", "status 500: oh")),
        (404, {}, b'{"detail":"Not Found"}', Ending(Outcome.FAILED, "answer", "status 404: Not Found")),
        (200, {"content-type": "application/json"}, b'{"choices":[{"text":"hi"}]}',
         Ending(Outcome.FAILED, "first_token", "answered whole where a stream was asked for")),
        (200, {"content-type": "application/json"}, b'{"error":{"message":"no GPU"}}',
         Ending(Outcome.FAILED, "first_token", "no GPU")),
    ],
)  # fmt: skip
def test_answers_that_are_no_stream(status: int, headers: dict[str, str], body: bytes, ending: Ending) -> None:
    answer = Answer(status, headers)
    answer.exchange.body([body], 1)
    assert answer.done().ending == ending
    assert not answer.chunks


TEXT = 'data: {"a": "é"}\r\n\r\n: ping\n\nevent: x\ndata: one\ndata: two\n\ndata: [DONE]\n\n'.encode()


@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=12))
def test_events_do_not_depend_on_how_the_network_cut_them(cuts: list[int]) -> None:
    parser = EventParser()
    places = [0, *sorted(set(cuts)), len(TEXT)]
    events = [event for a, b in pairwise(places) for event in parser.feed(TEXT[a:b])]
    assert events == ['{"a": "é"}'.encode(), b"one\ntwo", b"[DONE]"]
    assert parser.comments == 1 and not parser.torn


def on_the_wire(*bodies: bytes, done: bool = True) -> bytes:
    """A chunked answer as a server puts it on the wire, a transfer chunk for each of ``bodies``."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + (b"0\r\n\r\n" if done else b"")


def event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


WIRES = {
    "counted, several tokens a chunk, with comments and a usage chunk": on_the_wire(
        event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": {"completion_tokens": 0}}),
        b": keep-alive\n\n", event(chunk("aé", usage=2)), event(chunk("bcd", "length", usage=5)) + b": ping\n\n",
        event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}), DONE.encode(),
    ),
    "uncounted, two events in one transfer chunk, one event in two": on_the_wire(
        event(chunk("a")) + event(chunk("b")), event(chunk("c"))[:9], event(chunk("c"))[9:], event(chunk("", "stop"))
    ),
    "an error object after a token": on_the_wire(event(chunk("a")), event({"error": "out"}), DONE.encode()),
    "carriage returns": on_the_wire(event(chunk("a", "stop")).replace(b"\n", b"\r\n"), b"data: [DONE]\r\n\r\n"),
    "torn off": on_the_wire(event(chunk("a")), event(chunk("b"))[:-1], done=False),
}  # fmt: skip


def heard_of(wire: bytes, cuts: list[int]) -> list[Any]:
    """Everything that an exchange makes of ``wire``, cut into reads."""
    answer, connection = Answer(), Connection()
    connection.connection_made(Mock(spec=asyncio.Transport))
    connection.send(b"", answer.exchange)
    places = sorted({0, *(cut % len(wire) for cut in cuts), len(wire)})
    for a, b in pairwise(places):
        connection.data_received(wire[a:b])
    connection.connection_lost(None)
    heard = answer.exchange.heard
    said = {name: getattr(heard, name) for name in Heard.__slots__}
    return [[tokens for _, tokens in answer.chunks], answer.ending, answer.exchange.comments, said]


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=40))
def test_records_do_not_depend_on_how_the_network_cut_the_answer(wire: bytes, cuts: list[int]) -> None:
    assert heard_of(wire, cuts) == heard_of(wire, []) == heard_of(wire, list(range(len(wire))))


def test_an_answer_from_the_wire_by_hand() -> None:
    """The first wire: chunks of 2 and 3 tokens, an empty one before them, two comments, five tokens declared."""
    tokens, ending, comments, said = heard_of(next(iter(WIRES.values())), [])
    assert (tokens, ending, comments) == ([2, 3], Ending(Outcome.FINISHED, "stream", ""), 2)
    assert (said["declared"], said["prompt_tokens"], said["empty"], said["done"]) == (5, 3, 1, True)


def recorded(name: str) -> Answer:
    """A recorded stream, its events 10 ns apart."""
    sample = (Path(__file__).parent / "samples" / name).read_text()
    events = [f"{event}\n\n" for event in sample.split("\n\n") if event.strip()]
    return Answer().hear(*((10 * (number + 1), event) for number, event in enumerate(events))).done()


def test_a_stream_that_transformers_serve_sent_is_read_to_its_end() -> None:
    """Recorded from the server of transformers 5.19: no finish reason until a last chunk, which has no text and the
    usage in it, and no end mark. Five tokens, one a chunk.
    """
    answer = recorded("transformers_serve.txt")
    assert answer.chunks == [(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]
    assert answer.ending == Ending(Outcome.FINISHED, "stream", "")
    heard = answer.exchange.heard
    assert (heard.declared, heard.prompt_tokens, heard.done) == (5, 3, False)


def test_a_stream_that_llama_cpp_sent_is_read_though_it_counts_no_tokens() -> None:
    """Recorded from llama-cpp-python's server: no usage even when asked for it, so a chunk with text is a token."""
    answer = recorded("llama_cpp_python.txt")
    assert answer.chunks == [(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]
    assert answer.ending == Ending(Outcome.FINISHED, "stream", "")
    assert (answer.exchange.heard.declared, answer.exchange.heard.done) == (None, True)


def test_a_completion_that_vllm_sent_counts_its_tokens_with_each_chunk() -> None:
    """Recorded from vLLM 0.32.0 with log probabilities: three tokens counted chunk by chunk, a usage chunk, [DONE]."""
    answer = recorded("vllm_completions.txt")
    assert answer.chunks == [(10, 1), (20, 1), (30, 1)]
    assert answer.ending == Ending(Outcome.FINISHED, "stream", "")
    heard = answer.exchange.heard
    assert (heard.finish, heard.declared, heard.prompt_tokens, heard.reported, heard.done) == (
        "length",
        3,
        3,
        True,
        True,
    )
    assert "".join(heard.text) == "fiel\f AttributeError"


def test_a_chat_that_vllm_sent_begins_with_an_empty_delta() -> None:
    """Recorded from vLLM 0.32.0: a role, four tokens a chunk each, and their total only in the usage chunk."""
    answer = recorded("vllm_chat.txt")
    assert answer.chunks == [(20, 1), (30, 1), (40, 1), (50, 1)]
    heard = answer.exchange.heard
    assert (heard.empty, heard.declared, heard.prompt_tokens, heard.done) == (1, 4, 11, True)
