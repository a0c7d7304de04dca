"""The standing questions to a run (E17), each answered with the fields it used."""

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.wording import amount


def answers(run: RunSummary) -> list[tuple[str, str, str]]:
    """(question, answer, fields with figures) for each; an absence is told with its reason."""
    return [
        ("Entry: was it the queue or the input?", _larger(run, "queue_wait_mean_ms", "input_prepare_mean_ms",
         "input_transfer_mean_ms"), _fields(run, "queue_wait_mean_ms", "input_prepare_mean_ms",
                                            "input_transfer_mean_ms")),
        ("Device: did the host leave it idle while there was work?", _idle(run),
         _fields(run, "idle_gap_ms", "idle_gap_host_ms", "idle_gap_policy_ms", "idle_gap_memory_ms")),
        ("Overlap: did host work and copies run beside the device?", _hidden(run),
         _fields(run, "step_work_ms", "step_path_ms", "hidden_work_ms", "hidden_work_share", "hidden_work_mean_ms")),
        ("Handoff: does it block decode?", _present(run, "handoff_ms"),
         _fields(run, "handoff_ms", "transfer_bytes", "recompute_mean_ms")),
        ("Network: is communication exposed?", _present(run, "exposed_comm_ms"),
         _fields(run, "communication_ms", "exposed_comm_ms", "overlap_ratio", "network_wait_ms")),
        ("Start: is anything cold counted as warm?",
         f"no: {run.cold_requests} cold requests are kept apart from every warm figure",
         _fields(run, "model_load_ms", "cold_ttft_mean_ms")),
        ("Stream: what does the way out cost?", _larger(run, "output_transfer_mean_ms", "stream_output_mean_ms"),
         _fields(run, "output_transfer_mean_ms", "stream_output_mean_ms")),
        ("Balance: is the pool used, and does one side starve the other?", _balance(run),
         _fields(run, "pool_utilisation", "batch_utilisation", "stalled_mean_ms", "stall_share")),
    ]  # fmt: skip


def _value(run: RunSummary, name: str) -> float | None:
    figure = run.metrics.get(name)
    return figure.value if figure is not None else None


def _fields(run: RunSummary, *names: str) -> str:
    shown = []
    for name in names:
        figure = run.metrics.get(name)
        if figure is None or figure.value is None:
            reason = figure.absence.value if figure is not None and figure.absence is not None else "not in the summary"
            shown.append(f"{name} {reason}")
        else:
            shown.append(f"{name} {amount(figure.value, METRICS[name].unit)}")
    return ", ".join(shown)


def _larger(run: RunSummary, *names: str) -> str:
    known = {name: value for name in names if (value := _value(run, name)) is not None}
    if not known:
        return "not measured"
    largest = max(known, key=lambda name: known[name])
    if known[largest] == 0:
        return "neither took time"
    return f"mostly {largest.removesuffix('_mean_ms').replace('_', ' ')}"


def _idle(run: RunSummary) -> str:
    idle, window = _value(run, "idle_gap_ms"), _value(run, "window_s")
    if idle is None or not window:
        return "not measured"
    share = idle / (window * 1000)
    cause = max(("host", "policy", "memory"), key=lambda name: _value(run, f"idle_gap_{name}_ms") or 0.0)
    return f"{share * 100:.1f} % of the window" + (f", mostly held by {cause}" if idle else "")


def _hidden(run: RunSummary) -> str:
    share = _value(run, "hidden_work_share")
    if share is None:
        return "not measured"
    if not share:
        return "no: every part of a step waited for the one before, so nothing left the critical path"
    return f"{share * 100:.1f} % of the steps' work was hidden; a gain only if elapsed time is shorter than without"


def _present(run: RunSummary, name: str) -> str:
    figure = run.metrics.get(name)
    if figure is not None and figure.value is not None:
        return f"{amount(figure.value, METRICS[name].unit)} per request"
    return figure.note or "not measured" if figure is not None else "not measured"


def _balance(run: RunSummary) -> str:
    used, stalls = _value(run, "pool_utilisation"), _value(run, "stall_share")
    if used is None:
        return "not measured"
    return f"busy {used * 100:.0f} % of the window, {(stalls or 0) * 100:.1f} % of streams stalled"
