"""Figures of a whole run: rates, shares, peaks, utilisation and idleness."""

from collections.abc import Callable, Iterable

import numpy as np

from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.metrics.metric import Better, Metric, Scope, defined, quantile_rule, tail
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.quantile import quantile
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NS_PER_MS

Value = Callable[[RunTables], float | None]


def _run(name: str, unit: str, formula: str, better: Better, value: Value, scope: Scope = "run") -> Metric:
    """A metric with one value per run; None means that its denominator does not exist in the run."""

    def compute(run: RunTables) -> Figure:
        return defined(value(run), unit, "nothing to divide by")

    return Metric(name, unit, formula, better, scope, "one per run", compute)


def _never(name: str, unit: str, formula: str, better: Better, absence: Absence, why: str) -> Metric:
    """A metric that these targets do not supply: a typed absence with the reason."""

    def compute(_run: RunTables) -> Figure:
        return Figure(value=None, unit=unit, absence=absence, note=why)

    return Metric(name, unit, formula, better, "run", "one per run", compute)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _outcome_share(*outcomes: Outcome) -> Value:
    def value(run: RunTables) -> float | None:
        rows, measured = run.requests.rows, run.requests.measured
        codes = [run.requests.labels.outcomes.get(outcome) for outcome in outcomes]
        return _ratio(float((measured & np.isin(rows["outcome"], codes)).sum()), float(measured.sum()))

    return value


def _finished_rate(run: RunTables) -> float | None:
    return _ratio(float((run.requests.measured & run.requests.finished).sum()), run.window_s)


def _completion(run: RunTables) -> float | None:
    requests = run.requests
    return _ratio(float((requests.measured & requests.finished).sum()), float(requests.measured.sum()))


def _met(run: RunTables) -> float:
    return float((run.requests.measured & run.attainment.met).sum())


def _finished_tokens(run: RunTables) -> float | None:
    requests = run.requests
    tokens = requests.rows["output_tokens"][requests.measured & requests.finished].sum()
    return _ratio(float(tokens), run.window_s)


def _hit_rate(column: str) -> Value:
    def of(run: RunTables) -> float | None:
        rows = run.requests.rows
        looked = run.requests.measured & (rows["hit_tokens"] != MISSING)
        return _ratio(float(rows[column][looked].sum()), float(rows["prompt_tokens"][looked].sum()))

    return of


def _sum(column: str) -> Value:
    return lambda run: float(run.requests.rows[column][run.requests.measured].sum())


def _step_sum(*names: str) -> Callable[[RunTables], float]:
    return lambda run: float(sum(run.steps.sums[name] for name in names))


def _per_step(*names: str) -> Value:
    return lambda run: _ratio(_step_sum(*names)(run), run.steps.steps)


def _idle(cause: str) -> Value:
    def value(run: RunTables) -> float:
        return run.steps.idle_by_cause.get(run.requests.labels.causes.get(cause), 0) / NS_PER_MS

    return value


def _hidden_ms(run: RunTables) -> float:
    return max(0, run.steps.sums["work_ns"] - run.steps.sums["path_ns"]) / NS_PER_MS


def _out_of_memory(run: RunTables) -> Figure:
    wanted = ("memory", "capacity", "never_fits", "no_blocks")
    found = sum(count for reason, count in run.requests.reasons().items() if any(word in reason for word in wanted))
    return Figure(value=float(found), unit="count")


def _queue_length(run: RunTables) -> float | None:
    rows, measured = run.requests.rows, run.requests.measured
    waited = rows["queue_ns"][measured].sum() + rows["requeue_ns"][measured].sum()
    return _ratio(float(waited), float(run.window.span_ns))


def _jitter(run: RunTables) -> float | None:
    gaps = run.gap_ms
    return quantile(gaps, 0.99) - quantile(gaps, 0.5) if len(gaps) >= 100 else None


def _stall_share(run: RunTables) -> float | None:
    return _ratio(float(run.stalled.sum()), float(run.requests.warm_finished.sum()))


def _unattributed_share(run: RunTables) -> float | None:
    requests = run.requests
    rows, done = requests.rows, requests.finished
    elapsed = (rows["last_token_ns"] - rows["arrival_ns"])[done]
    return float((rows["unattributed_ns"][done] / np.maximum(elapsed, 1)).max()) if done.any() else None


def _cold_ttft(run: RunTables) -> float | None:
    requests = run.requests
    rows = requests.measured & requests.finished & requests.cold
    return float(requests.columns["ttft_ms"].values[rows].mean()) if rows.any() else None


def _peak_memory(run: RunTables) -> Figure:
    if run.device_bytes is None:
        why = "the model has no memory in bytes" if run.modelled else "the executor reported none"
        absence = Absence.NOT_APPLICABLE if run.modelled else Absence.NOT_MEASURED
        return Figure(value=None, unit="MB", absence=absence, note=f"{why}; peak_kv_blocks stands for it")
    return Figure(value=run.device_bytes / 1e6, unit="MB")


def _model_load(run: RunTables) -> Figure:
    if run.load_ns is None or run.modelled:
        absence = Absence.NOT_APPLICABLE if run.modelled else Absence.NOT_MEASURED
        return Figure(value=None, unit="ms", absence=absence, note="no load was recorded")
    return Figure(value=run.load_ns / NS_PER_MS, unit="ms", n=run.loads)


def _rates() -> list[Metric]:
    return [
        _run("throughput_tokens_per_s", "tokens/s", "output tokens produced in the window / its length, whoever "
             "they were for", "higher", lambda run: run.window.tokens_per_s),
        _run("throughput_peak_tokens_per_s", "tokens/s", "most output tokens of a second of the window / its length: "
             "the tokens of each chunk when it came, whole seconds from the window's start, the last one with what is "
             "left over, all of a window shorter than one; never below throughput_tokens_per_s", "none",
             lambda run: run.window.peak_tokens_per_s),
        _run("throughput_finished_tokens_per_s", "tokens/s", "output tokens of finished measured requests / length "
             "of the window", "higher", _finished_tokens),
        _run("throughput_requests_per_s", "requests/s", "finished measured requests / length of the window",
             "higher", _finished_rate),
        _run("prefill_tokens_per_s", "tokens/s", "prompt tokens computed in the window, first time / its length",
             "higher", lambda run: _ratio(run.steps.sums["prefill_tokens"], run.window_s)),
        _run("goodput_rps", "requests/s", "offered measured requests that met every objective of their tier / "
             "length of the window; a tier without objectives counts finished ones", "higher",
             lambda run: _ratio(_met(run), run.window_s)),
        _run("goodput_per_device_rps", "requests/s", "goodput_rps / devices that served the run", "higher",
             lambda run: _ratio(_met(run), run.device_s)),
        _run("attainment_share", "share", "measured requests that met every objective of their tier / offered",
             "higher", lambda run: _ratio(_met(run), float(run.requests.measured.sum()))),
        _run("completion_share", "share", "finished / offered measured requests", "higher", _completion),
        _run("rejection_share", "share", "rejected / offered measured requests", "lower",
             _outcome_share(Outcome.REJECTED)),
        _run("timeout_share", "share", "timed out / offered measured requests", "lower",
             _outcome_share(Outcome.TIMED_OUT)),
        _run("degraded_share", "share", "taken in as less than was asked for (shorter output, lower tier) / offered "
             "measured requests; the quality of such answers is the user's to declare", "lower",
             lambda run: _ratio(float((run.requests.measured & run.requests.degraded).sum()),
                                float(run.requests.measured.sum()))),
        _run("failure_share", "share", "failed / offered measured requests", "lower", _outcome_share(Outcome.FAILED)),
        _run("cut_off_share", "share", "cancelled or cut off / offered measured requests", "lower",
             _outcome_share(Outcome.CANCELLED, Outcome.CUT_OFF)),
        _run("window_s", "s", "first measured arrival to last end of a measured request", "lower",
             lambda run: run.window_s),
    ]  # fmt: skip


def _cache_and_memory() -> list[Metric]:
    return [
        _run("peak_kv_blocks", "blocks", "most KV blocks used after planning a step", "lower",
             lambda run: float(run.steps.peaks["kv_used"]), "pool"),
        _run("kv_peak_share", "share", "most KV blocks used after planning a step / all KV blocks of the instance",
             "lower", lambda run: run.use.kv_peak_share, "pool"),
        _run("kv_used_mean_share", "share", "mean over steps of used / all KV blocks of the instance", "none",
             lambda run: run.use.kv_used_mean_share, "pool"),
        Metric("peak_memory_mb", "MB", "most device memory reported, 10^6 bytes", "lower", "pool", "one per run",
               _peak_memory),
        _run("hit_rate", "share", "prompt tokens found in the prefix cache at first look-up / prompt tokens looked "
             "up; look-ups after a preemption are not in it", "higher", _hit_rate("hit_tokens")),
        _run("host_hit_rate", "share", "the part of hit_rate that was copied back from host memory", "none",
             _hit_rate("host_hit_tokens")),
        _run("shared_rate", "share", "the part of hit_rate that is in blocks shared with another sample of the prompt",
             "none", _hit_rate("shared_tokens")),
        _run("rehit_tokens", "tokens", "tokens found again in the cache after preemptions", "none",
             _sum("rehit_tokens")),
        _run("preemptions", "count", "preemptions of measured requests", "lower", _sum("preemptions")),
        _run("pauses", "count", "pauses of measured requests, blocks kept or swapped out", "lower", _sum("pauses")),
        _run("paused_max", "requests", "most requests paused or swapped out at once", "lower",
             lambda run: float(run.steps.peaks["paused"])),
        _run("swapped_blocks", "blocks", "KV blocks copied between device and host", "lower",
             _step_sum("copied_out", "copied_in"), "pool"),
        _run("host_peak_blocks", "blocks", "most blocks of the host pool that held something", "none",
             lambda run: float(run.steps.peaks["host_used"]), "pool"),
        _run("evicted_ahead_blocks", "blocks", "cached KV blocks evicted ahead of need, to have clean ones", "none",
             _step_sum("evicted_ahead"), "pool"),
        _run("copied_on_write_blocks", "blocks", "KV blocks copied because a sample was to write to one that it shared",
             "none", _step_sum("copied_on_write"), "pool"),
        _run("recomputed_tokens", "tokens", "tokens computed again after preemptions, first computations of who comes "
             "back not counted", "lower",
             _sum("recomputed_tokens")),
    ]  # fmt: skip


def _queue_and_batch() -> list[Metric]:
    granted = _step_sum("prefill_tokens", "decode_tokens", "recompute_tokens")
    return [
        Metric("out_of_memory_count", "count", "requests that did not finish for want of memory", "lower", "run",
               "one per run", _out_of_memory),
        _run("queue_length_mean", "requests", "summed waiting time of measured requests / length of the window",
             "lower", _queue_length),
        _run("queue_length_max", "requests", "most waiting requests after planning a step", "lower",
             lambda run: float(run.steps.peaks["waiting"])),
        _run("running_max", "requests", "most requests resident at once", "higher",
             lambda run: float(run.steps.peaks["running"])),
        _run("batch_requests_mean", "requests", "granted requests per step", "none",
             _per_step("prefill_requests", "decode_requests"), "step"),
        _run("batch_tokens_mean", "tokens", "granted tokens per step", "none",
             _per_step("prefill_tokens", "decode_tokens", "recompute_tokens"), "step"),
        _run("batch_utilisation", "share", "granted / budgeted tokens", "higher",
             lambda run: _ratio(granted(run), run.steps.sums["budget"]), "step"),
        _run("decode_jitter_ms", "ms", "p99 - p50 of the pooled gaps, from 100 gaps", "lower", _jitter, "request"),
        _run("stall_share", "share", "warm finished measured requests whose longest gap is over 1 s and over ten times "
             "the median gap / all of them", "lower", _stall_share, "request"),
        _run("batch_tokens_max", "tokens", "most tokens granted in one step", "none",
             lambda run: float(run.steps.peaks["tokens"]), "step"),
        _run("steps", "count", "steps executed in the window", "none", lambda run: float(run.steps.steps)),
    ]  # fmt: skip


def _device() -> list[Metric]:
    return [
        _run("pool_utilisation", "share", "compute time of steps / length of the window, mean over instances", "none",
             lambda run: run.use.utilisation(range(run.use.count)), "pool"),
        _run("idle_gap_ms", "ms", "device idle while a request that arrived was unfinished", "lower",
             lambda run: run.steps.sums["idle_ns"] / NS_PER_MS),
        _run("idle_gap_host_ms", "ms", "part of idle_gap_ms spent in the host between steps", "lower", _idle("host")),
        _run("idle_gap_policy_ms", "ms", "part of idle_gap_ms in which the policy held requests back", "lower",
             _idle("policy")),
        _run("idle_gap_memory_ms", "ms", "part of idle_gap_ms in which memory held requests back", "lower",
             _idle("memory")),
        _run("step_work_ms", "ms", "host, copies and compute of all steps, added up: their time one after the other",
             "lower", lambda run: run.steps.sums["work_ns"] / NS_PER_MS),
        _run("step_path_ms", "ms", "what the steps add to the critical path: each one's span, less what lies over the "
             "step before", "lower", lambda run: run.steps.sums["path_ns"] / NS_PER_MS),
        Metric("step_p99_ms", "ms", "99th percentile of steps, from planning to their tokens", "lower", "step",
               quantile_rule(0.99), lambda run: tail(np.sort(np.asarray(run.steps.spans)) / NS_PER_MS, 0.99)),
        _run("hidden_work_ms", "ms", "step_work_ms - step_path_ms: work that ran beside other steps", "none",
             _hidden_ms),
        _run("hidden_work_share", "share", "hidden_work_ms / step_work_ms; it is a gain only where elapsed time falls",
             "none", lambda run: _ratio(_hidden_ms(run), run.steps.sums["work_ns"] / NS_PER_MS)),
        _run("idle_empty_ms", "ms", "device idle with nothing to run", "none",
             lambda run: run.steps.sums["idle_empty_ns"] / NS_PER_MS),
        Metric("model_load_ms", "ms", "load and initialise, summed over instance starts", "lower", "pool",
               "one per run", _model_load),
        _run("cold_ttft_mean_ms", "ms", "mean TTFT of finished requests first served before the instance was warm",
             "lower", _cold_ttft, "request"),
        _run("unattributed_share_max", "share", "largest unattributed / elapsed time of a finished request", "lower",
             _unattributed_share, "request"),
    ]  # fmt: skip


def _absences() -> list[Metric]:
    return [
        _never("input_transfer_bytes", "bytes", "bytes of input copied to the device", "lower",
               Absence.NOT_MEASURED, "the executor does not count them"),
        _never("isolation_ratio", "x", "tail of one tenant or tier with more others / with fewer, its own requests "
               "being the same", "lower", Absence.NOT_MEASURED, "needs an experiment with a section isolation"),
        _never("concurrency_capacity", "requests", "highest load that meets the SLO at the stated attainment",
               "higher", Absence.NOT_MEASURED, "needs a load sweep"),
    ]  # fmt: skip


def run_metrics() -> Iterable[Metric]:
    """All of them."""
    yield from (*_rates(), *_cache_and_memory(), *_queue_and_batch(), *_device(), *_absences())
