"""How well the modelled target predicts a real vLLM server, beside LLMServingSim on the same run.

The run (github.com/casys-kaist/LLMServingSim, MIT) is vLLM 0.19.0 with Llama 3.1 8B on an RTX 4090: 300 requests within
29 s, served in 184 s, nearly all of it with a full KV pool. A cost is fitted to the first tokens and last tokens of the
first half of the requests (by arrival); the other half is predicted from arrivals and lengths alone. Errors are
predicted / measured - 1 of the mean and of percentiles over the predicted half, all of it and apart: ``loaded`` are the
requests that ended while others still waited for their start, ``drain`` the rest. No request of that half starts before
the last arrival.

The folder of traces leaves out token ids, so it does not tell which prompts share a beginning; there the size of the
pool is fitted, too. With the published workload file beside the lengths, the shared beginnings are played as they were.
"""

import csv
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import harness
from gpu_runner.calibrate.served import ServedRun, Tokens, fit_pool, fit_served, play
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.roofline import roofline_profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import NS_PER_S

RUN = "rtx4090_llama31_8b"
WORKLOAD = "sharegpt-llama-3.1-8b-300-sps10.jsonl"
MODEL = "llama-3.1-8b@rtx4090"
BLOCK = 16
PERCENTILES = (50, 90, 95, 99)

Floats = npt.NDArray[np.float64]
Times = dict[str, Floats]
"""Queue wait, TTFT, TPOT and E2E in seconds, by request."""


@dataclass(frozen=True)
class Case:
    """The measured run, ready to be predicted; ``held_out`` marks the half that no fit sees."""

    run: ServedRun
    measured: Times
    other: Times
    held_out: npt.NDArray[np.bool_]
    loaded: npt.NDArray[np.bool_]
    shares_prefixes: bool


def folder() -> Path | None:
    """The measured run among the traces, if there are any."""
    root = os.environ.get("HEADWAY_TRACES")
    found = Path(root) / "llmservingsim" if root else None
    return found if found is not None and (found / RUN).is_dir() else None


def read_case(base: Path) -> Case:
    """Read settings, measured times and the other simulator's answer from ``base``."""
    rows = [json.loads(line) for line in (base / RUN / "vllm_requests.jsonl").read_text().splitlines()]
    meta = json.loads((base / RUN / "vllm_meta.json").read_text())
    queued, started, first, last = (
        np.array([row[name] for row in rows]) - rows[0]["queued_ts"]
        for name in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    )
    lengths = np.array([row["output_toks"] for row in rows], np.float64)
    prefixes = _prefixes(base / WORKLOAD)
    requests = [
        PlannedRequest(
            index, round(queued[index] * NS_PER_S), row["input_toks"], row["output_toks"], row["output_toks"],
            seed=index, prefix_blocks=prefixes.get(index, ()),
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip
    half = len(rows) // 2
    tokens = {index: Tokens(round(first[index] * NS_PER_S), round(last[index] * NS_PER_S)) for index in range(half)}
    run = ServedRun(requests, _policy(meta["engine_kwargs"]), meta["kv_cache"]["num_gpu_blocks"] - 1, tokens)
    return Case(
        run=run,
        measured=_times(queued, started, first, last, lengths),
        other=_other(base / RUN / "sim_per_request_no_itl.csv"),
        held_out=np.arange(len(rows)) >= half,
        loaded=last <= started.max(),
        shares_prefixes=bool(prefixes),
    )


def predict(case: Case, *, rounds: int, pools: Sequence[int]) -> tuple[ServedRun, Times]:
    """Fit on the measured half; the run as it was finally played, and the times of all requests."""
    start = roofline_profile(MODEL, where="MODEL")
    run = case.run
    profile = fit_served(run, start, rounds=rounds)
    if not case.shares_prefixes:
        blocks = fit_pool(run, profile, [run.kv_blocks + more for more in pools])
        run = ServedRun(run.requests, run.policy, blocks, run.measured)
        profile = fit_served(run, start, rounds=rounds)
    played = play(run, profile)
    order = range(len(run.requests))
    started = np.array([played.started[index] for index in order]) / NS_PER_S
    first, last = (np.array([of[index][1] for index in order]) / NS_PER_S for of in (played.first, played.last))
    queued = np.array([request.arrival_ns for request in run.requests]) / NS_PER_S
    lengths = np.array([request.output_tokens for request in run.requests], np.float64)
    return run, _times(queued, started, first, last, lengths)


def errors(case: Case, predicted: Times, rows: npt.NDArray[np.bool_]) -> dict[str, dict[str, float]]:
    """predicted / measured - 1 over ``rows``, by figure and statistic."""
    found = {}
    for name, measured in case.measured.items():
        ratios = _statistics(predicted[name][rows]) / _statistics(measured[rows]) - 1
        labels = ("mean_share", *(f"p{share}_share" for share in PERCENTILES))
        found[name] = {label: round(float(ratio), 4) for label, ratio in zip(labels, ratios, strict=True)}
    return found


def _statistics(values: Floats) -> Floats:
    return np.array([values.mean(), *np.percentile(values, PERCENTILES)])


def compare(case: Case, *, rounds: int, pools: Sequence[int]) -> dict[str, Any]:
    """All errors on the held-out half, ours beside the other simulator's."""
    harness.say("fitting to the first half ...")
    run, predicted = predict(case, rounds=rounds, pools=pools)
    parts = {
        "all": case.held_out,
        "loaded": case.held_out & case.loaded,
        "drain": case.held_out & ~case.loaded,
    }
    return {
        "fitted_on_requests": int((~case.held_out).sum()),
        "pool_blocks": run.kv_blocks,
        "server_pool_blocks": case.run.kv_blocks,
        "prefixes_known": case.shares_prefixes,
        **{
            part: {
                "requests_count": int(rows.sum()),
                "headway": errors(case, predicted, rows),
                "llmservingsim": errors(case, case.other, rows),
            }
            for part, rows in parts.items()
        },
    }


def _policy(settings: Mapping[str, Any]) -> PolicySpec:
    batch = {"size": settings["max_num_seqs"], "token_budget": settings["max_num_batched_tokens"]}
    execution = {"overlap": "schedule_ahead"}  # vLLM's async_scheduling, which the run's settings name
    return parse(PolicySpec, {"policy": "vllm_v1", "batch": batch, "execution": execution})


def _times(queued: Floats, started: Floats, first: Floats, last: Floats, lengths: Floats) -> Times:
    return {
        "queue": started - queued,
        "ttft": first - queued,
        "tpot": (last - first) / (lengths - 1),
        "e2e": last - queued,
    }


def _other(path: Path) -> Times:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = sorted(csv.DictReader(stream), key=lambda row: int(row["request id"]))
    names = {"queue": "queuing_delay", "ttft": "TTFT", "tpot": "TPOT", "e2e": "latency"}
    return {name: np.array([int(row[column]) for row in rows]) / NS_PER_S for name, column in names.items()}


def _prefixes(path: Path) -> dict[int, tuple[int, ...]]:
    """Identities of the full blocks of each prompt, equal where all tokens up to there are equal; empty without ids."""
    if not path.is_file():
        return {}
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    found = {}
    for index, line in enumerate(path.read_text().splitlines()):
        tokens, chain, before = json.loads(line)["input_tok_ids"], [], -1
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            before = known.setdefault((before, tuple(tokens[start : start + BLOCK])), len(known))
            chain.append(before)
        found[index] = tuple(chain)
    return found


def _measure(*, rounds: int, pools: Sequence[int]) -> harness.Figures:
    base = folder()
    if base is None:
        return {"skipped": "HEADWAY_TRACES names no folder with llmservingsim in it"}
    return compare(read_case(base), rounds=rounds, pools=pools)


def quick() -> harness.Figures:
    """Two rounds of fitting, four pools."""
    return _measure(rounds=2, pools=range(0, 49, 16))


def full() -> harness.Figures:
    """Six rounds, fifteen pools."""
    return _measure(rounds=6, pools=range(0, 113, 8))


if __name__ == "__main__":
    sys.exit(harness.main("llmservingsim", quick=quick, full=full))
