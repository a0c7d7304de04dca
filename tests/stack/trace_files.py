"""A trace file of every kind: generated ones in the real shape, and slices of the public ones."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUESTS = 10


@dataclass(frozen=True)
class TraceFile:
    """A file, how to read it where the file does not say, and how to play ``requests`` rows of it in a second or two.

    ``format`` is what its reader must find out or be told; ``declared`` the options without which it is refused.
    """

    name: str
    content: bytes
    format: str
    scale: float
    declared: dict[str, Any] = field(default_factory=dict)
    requests: int = REQUESTS
    rate_rps: float | None = 12

    def played(self, dataset: str) -> dict[str, Any]:
        """The trace section of a workload that plays it as an imported dataset."""
        rows = f"1-{self.requests}"
        return {"dataset": dataset, "rows": rows, "lengths_scale": self.scale, "rate_rps": self.rate_rps}


def _rows(seed: int) -> list[tuple[float, int, int]]:
    """Arrival in seconds, prompt and output tokens of a dozen requests."""
    draw, at, rows = random.Random(seed), 0.0, []
    for _ in range(REQUESTS + 2):
        rows.append((round(at, 6), draw.randint(200, 1500), draw.randint(40, 400)))
        at += draw.expovariate(4)
    return rows


def _table(header: str, lines: list[str], *, end: str = "\n") -> bytes:
    return end.join([header, *lines]).encode()


def _azure(seed: int, *, zoned: bool) -> bytes:
    def clock(at: float) -> str:
        seconds, ticks = divmod(round(at * 10_000_000), 10_000_000)
        time = f"{10 + seconds // 60:02d}:{seconds % 60:02d}"
        return f"2024-05-10 00:{time}.{ticks // 10:06d}+00:00" if zoned else f"2023-11-16 18:{time}.{ticks:07d}"

    lines = [f"{clock(at)},{prompt},{output}" for at, prompt, output in _rows(seed)]
    return _table("TIMESTAMP,ContextTokens,GeneratedTokens", lines, end="\n" if zoned else "\r\n")


def _mooncake() -> bytes:
    """Milliseconds on a grid of 3 s, 512-token blocks, prompts of tens of thousands, a common beginning."""
    draw = random.Random(3)
    lines: list[dict[str, Any]] = []
    for row in range(REQUESTS + 2):
        prompt = draw.randint(2_000, 40_000)
        own = [1000 * (row + 1) + block for block in range(-(-prompt // 512))]
        ids = [0, 1, *own[2:]] if row % 2 else own
        lines.append({"timestamp": row // 4 * 3000, "input_length": prompt, "output_length": 300, "hash_ids": ids})
    return "\n".join(map(json.dumps, lines)).encode()


def _bailian() -> bytes:
    """Seconds as decimals, 16-token blocks; every third chat is the second turn of the one before it."""
    draw = random.Random(4)
    lines: list[dict[str, Any]] = []
    for row, (at, _, output) in enumerate(_rows(4)):
        turn = 2 if row % 3 == 1 else 1
        prompt = draw.randint(100, 900)
        own = [1000 * row + block for block in range(-(-prompt // 16))]
        before = lines[-1]["hash_ids"][:4] if turn == 2 else []
        line: dict[str, Any] = {"chat_id": 100 + row, "parent_chat_id": 99 + row if turn == 2 else -1}
        line |= {"timestamp": round(61 + at, 3), "input_length": prompt, "output_length": output, "type": "text"}
        lines.append(line | {"turn": turn, "hash_ids": [*before, *own[len(before) :]]})
    return "\n".join(map(json.dumps, lines)).encode()


def _burst(*, eight: bool) -> bytes:
    """Whole seconds and a failed call in the older form; sessions, decimals and elapsed time in the newer."""
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    if eight:
        header = header.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")
    lines = []
    for row, (at, prompt, output) in enumerate(_rows(5)):
        prompt, output = (0, 0) if row == 3 else (prompt, output)
        start = f"{19_000_000 + at},{'s1' if row % 3 == 0 else ''},2.5" if eight else f"{5 + 7 * row}"
        lines.append(f"{start},ChatGPT,{prompt},{output},{prompt + output},Conversation log")
    return _table(header, lines)


def _plain_csv() -> bytes:
    lines = [f"{round(1_000 * at)};ignored,{prompt},{output}".replace(";", ",") for at, prompt, output in _rows(8)]
    return _table("t_ms,note,in,out", lines)


def _plain_jsonl() -> bytes:
    return b"\n".join(
        json.dumps({"us": round(1e6 * at), "in": prompt, "out": output}).encode() for at, prompt, output in _rows(9)
    )


_VIDUR = [f"{at},{prompt},{output}" for at, prompt, output in _rows(6)]
_SPLITWISE = [f"{row},2,0,{at},1,{prompt},{output}" for row, (at, prompt, output) in enumerate(_rows(7))]

GENERATED = [
    TraceFile("azure-2023 conv", _azure(1, zoned=False), "azure-2023", 0.04),
    TraceFile("azure-2023 code", _azure(10, zoned=False), "azure-2023", 0.02),
    TraceFile("azure-2024", _azure(2, zoned=True), "azure-2024", 0.04),
    TraceFile("mooncake", _mooncake(), "mooncake", 0.004),
    TraceFile("qwen-bailian", _bailian(), "qwen-bailian", 0.1),
    TraceFile("burstgpt", _burst(eight=False), "burstgpt", 0.04),
    TraceFile("burstgpt with sessions", _burst(eight=True), "burstgpt", 0.04),
    TraceFile("vidur", _table("arrived_at,num_prefill_tokens,num_decode_tokens", _VIDUR), "vidur", 0.04),
    TraceFile(
        "splitwise",
        _table(
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size", _SPLITWISE
        ),
        "splitwise",
        0.04,
    ),
    TraceFile(
        "plain csv",
        _plain_csv(),
        "csv",
        0.04,
        {
            "format": "csv",
            "time_unit": "ms",
            "columns": {"arrival": "t_ms", "prompt_tokens": "in", "output_tokens": "out"},
        },
    ),
    TraceFile(
        "plain jsonl",
        _plain_jsonl(),
        "jsonl",
        0.04,
        {
            "format": "jsonl",
            "time_unit": "us",
            "columns": {"arrival": "us", "prompt_tokens": "in", "output_tokens": "out"},
        },
    ),
]
UNPUBLISHED = [trace for trace in GENERATED if trace.name in ("qwen-bailian", "burstgpt with sessions")]


def public(folder: Path) -> list[TraceFile]:
    """The public slices below ``folder``, one of each kind that is there."""

    def slice_of(path: str, kind: str, scale: float, **more: Any) -> TraceFile:
        return TraceFile(f"public {path}", (folder / path).read_bytes(), kind, scale, **more)

    measured = {"arrival": "launch_time", "prompt_tokens": "prompt_tokens", "output_tokens": "generation_tokens"}
    lengths = {"arrival": "arrival_time_ns", "prompt_tokens": "input_toks", "output_tokens": "output_toks"}
    return [
        slice_of("azure2023/conv_rows_00001-08000.csv", "azure-2023", 0.04),
        slice_of("azure2023/code_rows_0001-4000.csv", "azure-2023", 0.02),
        slice_of("azure2024/code_head5_tail5.csv", "azure-2024", 0.02),
        # Its first rows have one time, so there is no gap to stretch: a burst.
        slice_of("mooncake/conversation_lines_00001-03000.jsonl", "mooncake", 0.004, rate_rps=None),
        slice_of("mooncake/synthetic_lines_0001-1000.jsonl", "mooncake", 0.004),
        slice_of("burstgpt/burstgpt_1_rows_001-400.csv", "burstgpt", 0.04),
        slice_of("vidur_format/splitwise_conv_rows_0001-2000.csv", "vidur", 0.04),
        slice_of("splitwise_sim/test_trace.csv", "splitwise", 0.02, requests=3),
        slice_of(
            "llmd_measured/exp2_llmd/short_input_qps5.csv", "csv", 0.5,
            declared={"format": "csv", "time_unit": "s", "columns": measured},
        ),
        slice_of(
            "llmservingsim/sharegpt_llama31_300_lengths.jsonl", "jsonl", 0.02,
            declared={"format": "jsonl", "time_unit": "ns", "columns": lengths},
        ),
    ]  # fmt: skip
