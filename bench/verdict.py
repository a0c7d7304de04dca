"""Whether verdicts are right: false alarms of A against A, known effects under noise, and the time they take."""

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import harness
from bench.cases.effects import DRIFT_SHARE, EFFECTS, PAIRS, RESIDUAL_SHARE, Effect, answer, experiment, run
from headway.play import play
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Tier
from scheduler_core.types.records import Admitted, Arrived, Finished, Record, RunFinished, RunStarted, Step
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.schema import Comparison

AA_COMPARISONS = 200
POOL_RUNS = 200
TORCH_COMPARISONS = 20
TORCH_WORKLOAD = {
    "arrivals": {"constant": {"rate_rps": 400}},
    "lengths": {"prompt": {"fixed": 24}, "output": {"fixed": 4}},
    "requests": 24,
}
COUNTS = frozenset(
    {"aa_labels_other_than_same", "aa_comparisons", "effect_trials", "effect_3pct_right", "effect_10pct_right",
     "stall_right", "dropper_wins", "right_by_effect", "aa_torch_labels_other_than_same", "aa_torch_comparisons"}
)  # fmt: skip
AA = Effect("A against A", ("reject", "tune"), {"primary": "e2e_p50_ms", "better_by": 0.05, "guard": {}},
            workload={"requests": 60})  # fmt: skip


def quick() -> dict[str, Any]:
    """A against A from a pool of runs; two trials of each effect."""
    return {**_false_alarms(POOL_RUNS), **_effects(2), **_speed(), "noise": _noise()}


def full() -> dict[str, Any]:
    """A against A with fresh runs for each comparison, on the model and on kernels; twenty trials of each effect; a run
    of a million requests."""
    return {
        **_false_alarms(AA_COMPARISONS * 2 * PAIRS),
        **_torch_false_alarms(),
        **_effects(20),
        **_speed(),
        **_million(),
        "noise": _noise(),
    }


def _noise() -> dict[str, float]:
    return {"residual_share": RESIDUAL_SHARE, "drift_share": DRIFT_SHARE}


def _false_alarms(pool_runs: int) -> dict[str, Any]:
    """Labels other than "same" (no difference shown) in comparisons of equal arms, at 5 %."""
    spec = experiment(AA)
    pool = [run(spec, "baseline", 0, 10_000 + seed) for seed in range(pool_runs)]
    fresh = pool_runs >= AA_COMPARISONS * 2 * PAIRS
    draw = random.Random(5)
    labels: list[str] = []
    for comparison in range(AA_COMPARISONS):
        at = comparison * 2 * PAIRS
        chosen = pool[at : at + 2 * PAIRS] if fresh else draw.sample(pool, 2 * PAIRS)
        labels.append(decide(spec, _as_arms(chosen)).comparisons[0].gates[0].label)
    return {
        "aa_labels_other_than_same": sum(label != "same" for label in labels),
        "aa_comparisons": len(labels),
        "aa_runs": {"pool_runs": pool_runs, "fresh": fresh},
    }


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
        labels.append(decide(spec, chosen).comparisons[0].gates[0].label)
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


def _effects(trials: int) -> dict[str, Any]:
    """Right answers of each known effect."""
    found: dict[str, list[Comparison]] = {}
    for effect in EFFECTS:
        harness.say(f"  {effect.name} ...")
        spec = experiment(effect)
        found[effect.name] = [answer(spec, effect, trial) for trial in range(trials)]
    right = {effect.name: sum(is_right(effect, one) for one in found[effect.name]) for effect in EFFECTS}
    droppers = [one for name in ("slow requests dropped", "queue limit drops requests") for one in found[name]]
    return {
        "effect_trials": trials,
        "effect_3pct_right": right["step 3 percent longer"],
        "effect_10pct_right": right["step 10 percent longer"],
        "stall_right": right["stall of 2 s"],
        "dropper_wins": sum(one.decision == "accept" for one in droppers),
        "right_by_effect": right,
    }


def is_right(effect: Effect, found: Comparison) -> bool:
    """Whether the decision is a right one and the headline names what it must."""
    word = found.decision.value if found.decision else "not comparable"
    return word in effect.right and effect.names in found.headline


def _speed() -> dict[str, float]:
    """Seconds to compare 200 runs: 100 pairs."""
    spec = experiment(AA)
    chosen = [run(spec, "baseline", 0, seed) for seed in range(2)]
    many = [
        chosen[place % 2].model_copy(update={"arm": "candidate" if place % 2 else "baseline", "repeat": place // 2})
        for place in range(200)
    ]
    began = time.perf_counter()
    decide(spec, many)
    return {"compare_200_runs_s": round(time.perf_counter() - began, 3)}


def _million() -> dict[str, float]:
    """Summary of a run of a million requests, in a process of its own so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from bench.verdict import million; million()"],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak_mib = done.stdout.split()
    return {"summary_s_1m_requests": float(seconds), "peak_mib_1m_requests": float(peak_mib)}


def million(requests: int = 1_000_000) -> None:
    """Finalise a synthetic run, audited, take it to a verdict, and print seconds and peak MiB."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = finalise(waves(requests), folder=Path(folder), arm="a", repeat=0, tiers={"default": Tier()})
    assert summary.audit.passed, summary.audit.violations[:3]
    decide(experiment(AA), _as_arms([summary] * 2 * PAIRS))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(round(time.perf_counter() - began, 1), round(peak_kib / 1024, 1))


def waves(requests: int, width: int = 64, tokens: int = 8) -> Iterator[Record]:
    """Records of requests served in waves of ``width``, each of 16 prompt and ``tokens`` output tokens."""
    yield RunStarted(
        run="m", attempt=1, plan_digest="p", policy_digest="q", policy={"policy": "vllm_v1"},
        target={"modelled": {"noise": False}}, level="simulation", source="modelled", offered=requests,
        kv_blocks=4096, block_size=16, token_budget=8192,
    )  # fmt: skip
    now = step = 0
    for first in range(0, requests, width):
        wave = range(first, min(first + width, requests))
        for request in wave:
            yield Arrived(now, now, request, 16, tokens, "default", "default")
            yield Admitted(now, request, 0, 0, False, step)
        for token in range(tokens):
            grants = [
                (request, 0, 0, 16, "prefill", 1, 0) if token == 0 else (request, 0, 15 + token, 1, "decode", 1, 0)
                for request in wave
            ]
            step += 1
            yield Step(
                step, str(step), now, now + 1_000_000, grants, [("compute", "device", now, now + 1_000_000)], [],
                2 * len(wave), 0, 4096 - 2 * len(wave), 0, len(wave), 0, 8192,
            )  # fmt: skip
            now += 1_000_000
        for request in wave:
            yield Finished(now, request, "finished", "decode", "stop", tokens)
    yield RunFinished(now, True, "done", step, 0)


if __name__ == "__main__":
    sys.exit(harness.main("verdict", quick=quick, full=full, counts=COUNTS))
