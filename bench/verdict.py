"""Whether verdicts are right: false alarms of A against A, known effects under noise, and the time they take."""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import harness
from bench.cases.effects import DRIFT_SHARE, EFFECTS, PAIRS, RESIDUAL_SHARE, Case, Effect, Trials, experiment
from headway.play import play
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Tier
from scheduler_core.types.records import Admitted, Arrived, Finished, Record, RunFinished, RunStarted, Steps
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.schema import Comparison, Gate

AA_COMPARISONS = 200
POOL_RUNS = 120
TORCH_COMPARISONS = 20
TORCH_WORKLOAD = {
    "arrivals": {"constant": {"rate_rps": 400}},
    "lengths": {"prompt": {"fixed": 24}, "output": {"fixed": 4}},
    "requests": 24,
}
_STEP_NS = 1_000_000
COUNTS = frozenset(
    {"aa_labels_other_than_same", "aa_comparisons", "effect_trials", "effect_3pct_right", "effect_10pct_right",
     "stall_right", "dropper_wins", "right_by_effect", "aa_torch_labels_other_than_same", "aa_torch_comparisons"}
)  # fmt: skip
AA = Effect("A against A", ("reject", "tune"), {"primary": "e2e_p50_ms", "better_by": 0.05, "guard": {}},
            workload={"requests": 60})  # fmt: skip


def quick() -> dict[str, Any]:
    """A against A from a pool of runs; two trials of each effect."""
    return _measured(
        {"A against A": lambda: _false_alarms(POOL_RUNS), "known effects": lambda: _effects(2), "speed": _speed}
    )


def full() -> dict[str, Any]:
    """A against A with fresh runs for each comparison, on the model and on kernels; twenty trials of each effect; a run
    of a million requests."""
    return _measured(
        {
            "A against A": lambda: _false_alarms(AA_COMPARISONS * 2 * PAIRS),
            "known effects": lambda: _effects(20),
            "speed": _speed,
            "a million requests": _million,
            "A against A on kernels": _torch_false_alarms,
        }
    )


def _measured(parts: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """The figures of all parts, each said as soon as it is known, and the CPU time that each took."""
    figures: dict[str, Any] = {"noise": {"residual_share": RESIDUAL_SHARE, "drift_share": DRIFT_SHARE}}
    spent = {}
    for name, measure in parts.items():
        began = _cpu_s()
        found = measure()
        spent[name] = round(_cpu_s() - began, 1)
        harness.say(f"{name}, {spent[name]} CPU s: {json.dumps(found)}")
        figures |= found
    return {**figures, "cpu_s": spent}


def _cpu_s() -> float:
    """CPU time of this process and of those it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _false_alarms(pool_runs: int) -> dict[str, Any]:
    """Labels other than "same" (no difference shown) in comparisons of equal arms, at 5 %."""
    case = Case(AA)
    pool = [case.run("baseline", 0, 10_000 + seed) for seed in range(pool_runs)]
    fresh = pool_runs >= AA_COMPARISONS * 2 * PAIRS
    draw = random.Random(5)
    labels: list[str] = []
    for comparison in range(AA_COMPARISONS):
        at = comparison * 2 * PAIRS
        chosen = pool[at : at + 2 * PAIRS] if fresh else draw.sample(pool, 2 * PAIRS)
        labels.append(_gate(case.spec, _as_arms(chosen)).label)
    exact = Case(AA, noise=False)
    return {
        "aa_labels_other_than_same": sum(label != "same" for label in labels),
        "aa_comparisons": len(labels),
        "aa_runs": {"pool_runs": pool_runs, "fresh": fresh},
        "aa_without_noise": _gate(
            exact.spec, _as_arms([exact.run("baseline", 0, seed) for seed in range(10)])
        ).sentence,
    }


def _gate(spec: ExperimentSpec, chosen: list[RunSummary]) -> Gate:
    """What the primary metric's gate says of two arms."""
    return decide(spec, chosen).comparisons[0].gates[0]


def _torch_false_alarms(comparisons: int = TORCH_COMPARISONS) -> dict[str, Any]:
    """Labels other than "same" in comparisons of equal arms on real kernels, small shapes, at 5 %: interleaved runs of
    one experiment, taken five pairs at a time."""
    form = {**experiment(AA).canonical(), "target": {"torch": {"model": "tiny", "threads": 1}},
            "workload": TORCH_WORKLOAD, "repeats": comparisons * PAIRS}  # fmt: skip
    spec = parse(ExperimentSpec, form)
    played = play(spec, base=Path.cwd(), on_step=lambda step: None)
    labels = []
    for comparison in range(comparisons):
        repeats = range(comparison * PAIRS, (comparison + 1) * PAIRS)
        chosen = [run for run in played.runs if run.repeat in repeats]
        labels.append(_gate(spec, chosen).label)
    return {
        "aa_torch_labels_other_than_same": sum(label != "same" for label in labels),
        "aa_torch_comparisons": len(labels),
    }


def _as_arms(chosen: list[RunSummary]) -> list[RunSummary]:
    """Runs of one policy as pairs of two arms."""
    return [
        item.model_copy(update={"arm": "candidate" if place % 2 else "baseline", "repeat": place // 2})
        for place, item in enumerate(chosen)
    ]


def _effects(count: int) -> dict[str, Any]:
    """Right answers of each known effect in ``count`` trials."""
    trials = Trials()
    right: dict[str, int] = {}
    won = 0
    for effect in EFFECTS:
        case = Case(effect)
        found = [trials.answer(case, trial) for trial in range(count)]
        right[effect.name] = sum(is_right(effect, one) for one in found)
        won += effect.drops and sum(one.decision == "accept" for one in found)
        wrong = sorted({one.headline for one in found if not is_right(effect, one)})
        harness.say(f"  {effect.name}: {right[effect.name]} of {count} right" + "".join(f"\n    {w}" for w in wrong))
    return {
        "effect_trials": count,
        "effect_3pct_right": right["step 3 percent longer"],
        "effect_10pct_right": right["step 10 percent longer"],
        "stall_right": right["stall of 2 s"],
        "dropper_wins": won,
        "right_by_effect": right,
    }


def is_right(effect: Effect, found: Comparison) -> bool:
    """Whether the decision is a right one and the headline names what it must."""
    word = found.decision.value if found.decision else "not comparable"
    return word in effect.right and effect.names in found.headline


def _speed() -> dict[str, float]:
    """Seconds to compare 200 runs: 100 pairs."""
    case = Case(AA)
    chosen = [case.run("baseline", 0, seed) for seed in range(2)]
    many = [
        chosen[place % 2].model_copy(update={"arm": "candidate" if place % 2 else "baseline", "repeat": place // 2})
        for place in range(200)
    ]
    began = time.perf_counter()
    decide(case.spec, many)
    return {"compare_200_runs_s": round(time.perf_counter() - began, 3)}


def _million() -> dict[str, float]:
    """Summary of a run of a million requests, in a process of its own so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from bench.verdict import million; million()"],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def million(requests: int = 1_000_000) -> None:
    """Finalise a synthetic run, audited, take it to a verdict, and print wall and CPU seconds and peak MiB."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = finalise(waves(requests), folder=Path(folder), arm="a", repeat=0, tiers={"default": Tier()})
    assert summary.audit.passed, summary.audit.violations[:3]
    decide(experiment(AA), _as_arms([summary] * 2 * PAIRS))
    figures = {
        "summary_s_1m_requests": round(time.perf_counter() - began, 1),
        "summary_cpu_s_1m_requests": round(time.process_time(), 1),
        "peak_mib_1m_requests": round(_peak_kib() / 1024, 1),
    }
    print(json.dumps(figures))


def _peak_kib() -> int:
    """Peak memory of this program; not Linux's ``ru_maxrss``, which begins with that of the parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def waves(requests: int, width: int = 64, tokens: int = 8) -> Iterator[Record]:
    """Records of requests served in waves of ``width``, each of 16 prompt and ``tokens`` output tokens.

    As a modelled run writes them: steps in which the same requests decode are one record.
    """
    yield RunStarted(
        run="m", attempt=1, plan_digest="p", policy_digest="q", policy={"policy": "vllm_v1"},
        target={"modelled": {"noise": False}}, level="simulation", source="modelled", offered=requests,
        kv_blocks=4096, block_size=16, token_budget=8192,
    )  # fmt: skip
    now = step = 0
    before: list[int] = []
    for first in range(0, requests, width):
        wave = list(range(first, min(first + width, requests)))
        for request in wave:
            yield Arrived(now, now, request, 16, tokens, "default", "default")
            yield Admitted(now, request, 0, 0, False, step)
        prompts = [(request, 0, 0, 16, "prefill", 1, 0) for request in wave]
        yield _steps(step, now, 1, running=len(wave), left=before, grants=prompts)
        decoding = [(request, 0, 16) for request in wave]
        yield _steps(step + 1, now + _STEP_NS, tokens - 1, running=len(wave), joined=decoding)
        step += tokens
        now += tokens * _STEP_NS
        for request in wave:
            yield Finished(now, request, "finished", "decode", "stop", tokens)
        before = wave
    yield RunFinished(now, True, "done", step, 0)


def _steps(number: int, planned_ns: int, count: int, *, running: int, **changes: Any) -> Steps:
    """``count`` steps of `_STEP_NS` each, every running request holding two blocks."""
    end = planned_ns + _STEP_NS
    who = {"joined": [], "left": [], "grants": [], **changes}
    return Steps(
        id=number, planned_ns=planned_ns, available_ns=[end + more * _STEP_NS for more in range(count)], **who,
        lanes=[("compute", "device", planned_ns, end)], stalled=[], kv_used=[2 * running] * count,
        kv_cached=[0] * count, kv_free=[4096 - 2 * running] * count, waiting=0, running=running, paused=0, budget=8192,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(harness.main("verdict", quick=quick, full=full, counts=COUNTS))
