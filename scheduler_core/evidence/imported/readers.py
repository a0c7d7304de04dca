"""Readers of per-request result files, one per tool; a bad row is refused by its place, never guessed."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from scheduler_core.evidence.imported.measured import Measured, MeasuredRun, in_order
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.reasons import Outcome

Row = Mapping[str, Any]
MS = 1e-3
NS = 1e-9
_SECONDS = {"s": 1.0, "ms": MS}


def read_measured(path: Path, tool: str) -> MeasuredRun:
    """The requests of ``path``, written by ``tool`` (a key of `READERS`); `InputError` names what is wrong where."""
    reader = READERS.get(tool)
    if reader is None:
        raise InputError([Problem("format", f"{tool!r} is not one of {', '.join(READERS)}")])
    try:
        run = reader(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, csv.Error) as error:
        # A value of a foreign type or shape, wherever a reader tripped over it, is a fault of the file.
        raise InputError([Problem(str(path), f"is not laid out as {tool} writes it: {error}")]) from None
    if not run.requests:
        raise InputError([Problem(str(path), "holds no requests")])
    return run


def llm_d(path: Path) -> MeasuredRun:
    """llm-d's client CSV: seconds, launch and finish in epoch; failed requests are simply absent."""
    requests = []
    for where, row in _csv(path):
        arrival, end = _number(where, row, "launch_time"), _number(where, row, "finish_time")
        requests.append(
            Measured(
                arrival,
                _count(where, row, "prompt_tokens"),
                _count(where, row, "generation_tokens"),
                _number(where, row, "ttft"),
                _positive(where, "finish_time - launch_time", end - arrival),
            )
        )
    note = "failed requests are absent from such files: their rows are those that finished"
    return in_order("llm-d", requests, (note,), by_arrival=False)


def vllm_requests(path: Path) -> MeasuredRun:
    """vLLM's own per-request JSON lines; the monotonic clock counts, ``arrival_time`` is another clock."""
    requests = []
    for where, row in _json_lines(path):
        queued = _number(where, row, "queued_ts")
        first, last = _number(where, row, "first_token_ts"), _number(where, row, "last_token_ts")
        requests.append(
            Measured(
                queued,
                _count(where, row, "input_toks"),
                _count(where, row, "output_toks"),
                _positive(where, "first_token_ts - queued_ts", first - queued),
                _positive(where, "last_token_ts - queued_ts", last - queued),
                queue_s=_positive(where, "scheduled_ts - queued_ts", _number(where, row, "scheduled_ts") - queued),
            )
        )
    return in_order("vllm-requests", requests, ("measured in the server, from its queue: no network, no client",))


def bench_serving(path: Path) -> MeasuredRun:
    """vLLM's and SGLang's serving benchmark with details: parallel lists, seconds; the last object of the file.

    Where the file tells how long a request waited in the client (``queue_times``), time counts from before that wait.
    """
    data = _last_object(path)
    names = ("input_lens", "output_lens", "ttfts", "itls")
    missing = [name for name in names if not isinstance(data.get(name), list)]
    if missing:
        problem = f"has no {', '.join(missing)}: save it with details (--save-detailed, --output-details)"
        raise InputError([Problem(str(path), problem)])
    count = len(data["ttfts"])
    uneven = [name for name in names if len(data[name]) != count]
    if uneven:
        raise InputError([Problem(str(path), f"{', '.join(uneven)} and ttfts differ in length")])
    errors = data.get("errors") or [""] * count
    starts = data.get("start_times")
    waits = data.get("queue_times") or [0.0] * count
    notes = [] if starts else ["arrival times are not in this file: order is that of the file"]
    requests = [
        _streamed(
            (float(starts[place]) if starts else float(place) * MS, max(0.0, float(waits[place]))),
            (int(data["input_lens"][place]), int(data["output_lens"][place])),
            float(data["ttfts"][place]),
            tuple(float(gap) for gap in data["itls"][place]),
            str(errors[place] or ""),
        )
        for place in range(count)
    ]
    empty = sum(len(item.gaps_s or ()) >= max(item.output_tokens, 1) for item in requests)
    if empty:
        notes.append(
            f"{empty} of {count} answers had more chunks than tokens: this tool counts chunks without a token, so that "
            "their TTFT may be that of an empty first one"
        )
    return in_order("bench-serving", requests, tuple(notes))


def aiperf(path: Path) -> MeasuredRun:
    """AIPerf's ``profile_export.jsonl``; each value carries its unit, warm-up phases are left out and counted.

    Time counts from when a request was given out (``credit_issued_ns``), and output tokens are the server's own count
    where it told it: the tool's is of the text, cut up anew.
    """
    requests, warm = [], 0
    for where, row in _json_lines(path):
        head = _part(where, row, "metadata")
        if head.get("benchmark_phase", "profiling") != "profiling":
            warm += 1
            continue
        sent_ns = _number(where, head, "request_start_ns")
        arrival = _number(where, {"credit_issued_ns": head.get("credit_issued_ns") or sent_ns}, "credit_issued_ns") * NS
        delay_s = max(0.0, sent_ns * NS - arrival)
        metrics = row.get("metrics") or {}
        error = row.get("error")
        if error or "request_latency" not in metrics:
            outcome = Outcome.CANCELLED if head.get("was_cancelled") else Outcome.FAILED
            reason = str((error or {}).get("message") or "no latency recorded")
            prompt = int(_aiperf(metrics, "error_isl") or 0)
            requests.append(Measured(arrival, prompt, 0, None, None, outcome, reason, send_delay_s=delay_s))
            continue
        ttft, gaps = _aiperf(metrics, "time_to_first_token"), _aiperf(metrics, "inter_chunk_latency")
        requests.append(
            Measured(
                arrival,
                int(_aiperf(metrics, "input_sequence_length") or 0),
                int(_aiperf(metrics, "usage_completion_tokens", "output_sequence_length") or 0),
                delay_s + ttft * MS if ttft is not None else None,
                delay_s + _aiperf(metrics, "request_latency") * MS,
                gaps_s=tuple(gap * MS for gap in gaps) if gaps else None,
                send_delay_s=delay_s,
            )
        )
    return in_order("aiperf", requests, (f"{warm} warm-up requests left out",) if warm else ())


def guidellm(path: Path) -> MeasuredRun:
    """GuideLLM's JSON report: one benchmark of it; errored and incomplete requests keep their place.

    Where a row has its timings, time counts from the targeted start to the last token; else from the real start to the
    end of the stream, as the tool's own latency does.
    """
    data = _last_object(path)
    benchmarks = data.get("benchmarks") or []
    if len(benchmarks) != 1:
        problem = f"holds {len(benchmarks)} benchmarks; give a report of one load point"
        raise InputError([Problem(str(path), problem)])
    requests = []
    kinds = {"successful": Outcome.FINISHED, "errored": Outcome.FAILED, "incomplete": Outcome.CUT_OFF}
    for kind, outcome in kinds.items():
        for place, row in enumerate((benchmarks[0].get("requests") or {}).get(kind) or []):
            where = f"{path} {kind} request {place}"
            done = outcome is Outcome.FINISHED
            start, delay_s, ttft_s, e2e_s = _guidellm_times(where, row)
            requests.append(
                Measured(
                    start,
                    int(row.get("prompt_tokens") or 0),
                    int(row.get("output_tokens") or 0),
                    ttft_s if done else None,
                    e2e_s if done else None,
                    outcome,
                    "" if done else str(row.get("error") or (row.get("info") or {}).get("error") or kind),
                    send_delay_s=delay_s,
                )
            )
    timed = all((row.get("info") or {}).get("timings") for row in _successful(benchmarks[0]))
    note = (
        "times count from the targeted start to the last token"
        if timed
        else "end-to-end is the tool's request latency, up to the end of the stream"
    )
    return in_order("guidellm", requests, (note,))


def _successful(benchmark: Row) -> list[Row]:
    return list((benchmark.get("requests") or {}).get("successful") or [])


def _guidellm_times(where: str, row: Row) -> tuple[float, float, float | None, float | None]:
    """Targeted start, how much later it was sent, TTFT and end-to-end time from the target, all in seconds.

    The tool writes 0 or nothing where there was no first token.
    """
    timings = (row.get("info") or {}).get("timings") or {}
    sent = timings.get("request_start") or row.get("request_start_time", row.get("start_time"))
    start = _number(where, {"start": timings.get("targeted_start") or sent}, "start")
    delay_s = max(0.0, float(sent) - start) if sent else 0.0
    first, last = timings.get("first_token_iteration"), timings.get("last_token_iteration")
    if first and last:
        return start, delay_s, _positive(where, "first token - start", float(first) - start), float(last) - start
    ttft, latency = row.get("time_to_first_token_ms"), row.get("request_latency")
    from_sent = [None if value is None else float(value) + delay_s for value in (ttft and ttft * MS, latency)]
    return start, delay_s, from_sent[0] if ttft else None, from_sent[1]


def inference_perf(path: Path) -> MeasuredRun:
    """inference-perf's ``per_request_lifecycle_metrics.json``: token times in seconds of one clock.

    Tokens of one chunk have one time, so that waits lie between different times. Output tokens are the server's own
    count (``server_usage``) where it told it: the tool's is of the text, cut up anew.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise InputError([Problem(str(path), "expected a list of requests")])
    requests = []
    for place, row in enumerate(rows):
        where = f"{path} request {place}"
        info = row.get("info") or {}
        answer = info.get("response_metrics") or info
        usage = answer.get("server_usage") or {}
        times = [float(time) for time in answer.get("output_token_times") or []]
        start = _number(where, row, "start_time")
        error = row.get("error")
        if isinstance(error, dict):
            error = error.get("error_msg") or error.get("error_type") or "failed"
        done = not error and bool(times)
        reason = "" if done else str(error or "no token was received")
        requests.append(
            Measured(
                start, int(info.get("input_tokens") or 0),
                int(usage.get("completion_tokens") or answer.get("output_tokens") or len(times)),
                _positive(where, "first token - start_time", times[0] - start) if done else None,
                _positive(where, "last token - start_time", times[-1] - start) if done else None,
                Outcome.FINISHED if done else Outcome.FAILED, reason,
                gaps_s=tuple(b - a for a, b in pairwise(sorted(set(times)))) if done else None,
            )
        )  # fmt: skip
    return in_order("inference-perf", requests)


def genai_bench(path: Path) -> MeasuredRun:
    """genai-bench's result of one load point; it keeps no arrival times, and counts 0 for what it did not see.

    Its times are in the unit that was asked for (``_time_unit``: s, or ms), in seconds where the file names none.
    """
    data = _last_object(path)
    rows, unit = data.get("individual_request_metrics"), data.get("_time_unit", "s")
    if unit not in _SECONDS:
        raise InputError([Problem(str(path), f"_time_unit is {unit!r}; s or ms was expected")])
    if not isinstance(rows, list):
        raise InputError([Problem(str(path), "has no individual_request_metrics")])
    requests = []
    for place, row in enumerate(rows):
        failed = bool(row.get("error_code")) or not row.get("ttft")
        requests.append(
            Measured(
                place * MS, int(row.get("num_input_tokens") or 0), int(row.get("num_output_tokens") or 0),
                None if failed else float(row["ttft"]) * _SECONDS[unit],
                None if failed else float(row["e2e_latency"]) * _SECONDS[unit],
                Outcome.FAILED if failed else Outcome.FINISHED,
                str(row.get("error_message") or row.get("error_code") or "no first token") if failed else "",
            )
        )  # fmt: skip
    return in_order("genai-bench", requests, ("arrival times are not in this file: order is that of the file",))


READERS: dict[str, Callable[[Path], MeasuredRun]] = {
    "llm-d": llm_d,
    "vllm-requests": vllm_requests,
    "vllm-bench": bench_serving,
    "sglang-bench": bench_serving,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "inference-perf": inference_perf,
    "genai-bench": genai_bench,
}


def _streamed(
    sent: tuple[float, float], lengths: tuple[int, int], ttft_s: float, gaps_s: tuple[float, ...], error: str
) -> Measured:
    """A request of which first token and chunk gaps were kept; these tools write TTFT 0 for a failure.

    ``sent`` is when it was sent and how long it had waited in the client until then.
    """
    (sent_s, delay_s), (prompt, output) = sent, lengths
    arrival_s = sent_s - delay_s
    if error or ttft_s <= 0:
        reason = error or "no first token was received"
        return Measured(arrival_s, prompt, output, None, None, Outcome.FAILED, reason, send_delay_s=delay_s)
    first_s = delay_s + ttft_s
    return Measured(arrival_s, prompt, output, first_s, first_s + sum(gaps_s), gaps_s=gaps_s, send_delay_s=delay_s)


def _aiperf(metrics: Row, *names: str) -> Any:
    """The first of ``names`` that has a value, in the unit this reader expects; a foreign unit is refused."""
    name = next((name for name in names if metrics.get(name) is not None), names[0])
    item = metrics.get(name)
    if item is None:
        return None
    if item.get("unit") not in ("ms", "tokens"):
        raise InputError([Problem(name, f"unit is {item.get('unit')!r}; ms or tokens was expected")])
    return item["value"]


def _csv(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8", newline="") as stream:
        for place, row in enumerate(csv.DictReader(stream), start=2):
            yield f"{path} line {place}", row


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8") as stream:
        for place, line in enumerate(stream, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise InputError([Problem(f"{path} line {place}", f"not JSON: {error}")]) from None
                yield f"{path} line {place}", row


def _last_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file, or the last of a JSON-lines file that a tool appended to."""
    text = path.read_text(encoding="utf-8").strip()
    for piece in (text, text.splitlines()[-1] if text else ""):
        try:
            data = json.loads(piece)
        except ValueError:
            continue
        if isinstance(data, dict):
            return data
    raise InputError([Problem(str(path), "not a JSON object")])


def _part(where: str, row: Row, name: str) -> Row:
    part = row.get(name)
    if not isinstance(part, dict):
        raise InputError([Problem(where, f"{name} is missing")])
    return part


def _number(where: str, row: Row, name: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        raise InputError([Problem(where, f"{name} is {row.get(name)!r}, a number was expected")]) from None
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError([Problem(where, f"{name} is {row[name]!r}, a finite number was expected")])
    return value


def _count(where: str, row: Row, name: str) -> int:
    value = _number(where, row, name)
    if value != int(value) or value < 0:
        raise InputError([Problem(where, f"{name} is {row[name]!r}, a whole number of tokens was expected")])
    return int(value)


def _positive(where: str, name: str, value: float) -> float:
    if value < 0:
        raise InputError(
            [Problem(where, f"{name} is {value:g} s: a duration cannot be negative; are two clocks mixed?")]
        )
    return value
