"""Local play: an experiment from file to verdict in this process, with no server, database or network.

Reading, freezing, serving, evidence and verdict are the product's own; only queue and storage are left out.
"""

import tempfile
from collections.abc import Callable, Container
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway import profiles
from headway.serving import local_access
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec, Place
from scheduler_core.spec.job import Message, ProgressMessage, RunJob
from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import HeadwayError, InputError, Problem
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.sequential import Further, further
from scheduler_core.workload.plan import ArrivalPlan


class PlayError(HeadwayError):
    """No run succeeded, so there is nothing to judge."""


@dataclass(frozen=True)
class Step:
    """Where a play stands: run ``number`` of ``total``, and its requests ended so far."""

    number: int
    total: int
    place: Place
    done: int
    requests: int
    at: str = ""

    def words(self) -> str:
        """Which run it is: arm, and load where there are several."""
        return self.place.arm + self.at


@dataclass
class Played:
    """What a play found. ``plans`` and ``points`` are by load; without a sweep the only load is None."""

    experiment: ExperimentSpec
    policies: dict[str, PolicySpec]
    plans: dict[float | None, ArrivalPlan]
    profile: Profile | None
    group_profiles: dict[str, Profile]
    notes: list[str]
    points: dict[float | None, list[RunSummary]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    verdict: Verdict | None = None

    @property
    def runs(self) -> list[RunSummary]:
        """Every run that succeeded."""
        return [run for runs in self.points.values() for run in runs]

    @property
    def plan(self) -> ArrivalPlan:
        """The plan, at the lowest load of a sweep."""
        return next(iter(self.plans.values()))

    def as_json(self) -> dict[str, Any]:
        """Plain data, as ``headway play --json`` prints it."""
        return {
            "experiment": self.experiment.canonical(),
            "plan_digest": self.plan.digest,
            "points": [{"load": load, "runs": [run.run for run in runs]} for load, runs in self.points.items() if load],
            "profile": None if self.profile is None else self.profile.canonical(),
            "notes": self.notes,
            "runs": [run.canonical() for run in self.runs],
            "failures": self.failures,
            "verdict": None if self.verdict is None else self.verdict.canonical(),
        }


def read_plan(spec: WorkloadSpec, base: Path) -> ArrivalPlan:
    """The frozen plan of a workload; a trace file's relative path is taken from ``base``."""
    from scheduler_core.workload.freeze import freeze
    from scheduler_core.workload.traces.reader import read_trace

    if spec.trace is None:
        return freeze(spec)
    if spec.trace.file is None:
        raise InputError(
            [Problem("workload.trace.dataset", "a dataset lives on a server; write file: PATH to play it here")]
        )
    path = (base / Path(spec.trace.file).expanduser()).resolve()
    if not path.is_file():
        raise InputError([Problem("workload.trace.file", f"there is no file {path}")])
    return freeze(spec, trace=read_trace(path, spec.trace))


def play(spec: ExperimentSpec, *, base: Path, on_step: Callable[[Step], None], evidence: Path | None = None) -> Played:
    """Play every run of ``spec`` in its order and judge them.

    Args:
        spec: The experiment.
        base: Folder from which a trace file's relative path is taken.
        on_step: Told whenever a run starts or requests end.
        evidence: Folder for records, tables and summaries; absent: they are dropped at the end.

    Raises:
        InputError: the workload or profile cannot be had.
        PlayError: no run succeeded.
    """
    plans = {load: read_plan(spec.workload_at(load), base) for load in spec.loads}
    profile, groups, notes = _profiles(spec)
    said = [*(note for plan in plans.values() for note in plan.notes), *without_objectives(spec), *notes]
    policies = resolve_arms(spec, profile if spec.target.modelled else None)
    played = Played(spec, policies, plans, profile, groups, list(dict.fromkeys(said)))
    with ExitStack() as stack:
        folder = evidence or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-play-")))
        folder.mkdir(parents=True, exist_ok=True)
        for load, plan in plans.items():
            plan.write(folder / _plan_name(load))
        done = 0
        more: Further | None = Further(spec.first_pairs(), frozenset(spec.arms))
        while more:
            _repeats(played, range(done, more.pairs), more.arms, folder, on_step)
            played.verdict = _decide(played)
            done, more = more.pairs, further(spec.goal.looks, more.pairs, played.verdict)
    return played


def without_objectives(spec: ExperimentSpec) -> list[str]:
    """Of a sweep: tiers that bound no load, since each of their finished requests meets its objectives."""
    if spec.sweep is None:
        return []
    free = [
        name for name, tier in spec.workload.tiers.items() if (tier.ttft_ms, tier.tpot_ms, tier.e2e_ms) == (None,) * 3
    ]
    return [
        f"tier {name} has no objectives, so each of its finished requests meets them; "
        f"set workload.tiers.{name}.ttft_ms to see a capacity"
        for name in free
    ]


def _plan_name(load: float | None) -> str:
    return "plan.jsonl.gz" if load is None else f"plan-{load:g}.jsonl.gz"


def _repeats(
    played: Played, repeats: range, arms: Container[str], folder: Path, on_step: Callable[[Step], None]
) -> None:
    """Play the runs of ``repeats`` that ``arms`` have in them, in turn."""
    spec = played.experiment
    before = repeats.start * len(spec.arms) * len(spec.loads)
    runs = spec.runs(repeats)
    for number, place in enumerate(runs, start=before + 1):
        if place.arm in arms:
            requests = len(played.plans[place.load].requests)
            step = Step(number, before + len(runs), place, 0, requests, spec.at_words(place.load))
            _run(played, step, folder, on_step)
    if not played.runs:
        raise PlayError(f"no run succeeded; the first: {played.failures[0]['reason']}")


def _profiles(spec: ExperimentSpec) -> tuple[Profile | None, dict[str, Profile], list[str]]:
    """What a modelled target runs on, by group where a group has its own, and a note on each; for kernels the profile
    to set their runs beside, where this machine has one.
    """
    modelled = spec.target.modelled
    if modelled is None:
        return profiles.beside(spec.target.torch), {}, []
    notes = []

    def choose(name: str, where: str, parallel: Parallel | None) -> Profile:
        profile, origin = profiles.choose(name, where, parallel)
        notes.append(f"profile {profile.name} ({origin}): {profile.model} on {profile.device}")
        return profile

    return *modelled.profiles(choose), notes


def _run(played: Played, where: Step, folder: Path, on_step: Callable[[Step], None]) -> None:
    from gpu_runner.run.compose import execute

    def emit(message: Message) -> None:
        if isinstance(message, ProgressMessage):
            on_step(replace(where, done=message.done, requests=message.total))

    on_step(where)
    job = _job(played, where, folder)
    result = execute(job, emit, lambda: False)
    place = where.place
    if result.outcome == "succeeded" and result.summary is not None:
        played.points.setdefault(place.load, []).append(parse(RunSummary, result.summary))
        played.folders[job.run] = Path(job.workdir)
    else:
        played.failures.append({**place._asdict(), "reason": result.reason})


def _job(played: Played, where: Step, folder: Path) -> RunJob:
    spec, place = played.experiment, where.place
    at = "" if place.load is None else f"{place.load:g}-"
    return RunJob(
        run=f"{place.arm}-{at}{place.repeat + 1}",
        arm=place.arm,
        repeat=place.repeat,
        plan_file=str(folder / _plan_name(place.load)),
        policy=played.policies[place.arm],
        target=spec.target,
        profile=played.profile,
        group_profiles=played.group_profiles,
        access=None if spec.target.server is None else local_access(spec.target.server, place.arm),
        fork=spec.fork_job(played.policies),
        events=spec.events,
        tiers=spec.workload.tiers,
        warmup_share=spec.workload.warmup_share,
        workdir=str(folder / f"run-{where.number:03d}"),
        noise_seed=spec.noise_seed(place),
        wall_limit_s=spec.run_limit_s,
    )


def _decide(played: Played) -> Verdict:
    from scheduler_core.verdict.decide import decide
    from scheduler_core.verdict.isolation import decide_isolation
    from scheduler_core.verdict.load_sweep import decide_sweep
    from scheduler_core.verdict.outputs import read_outputs

    points = {load or 0.0: runs for load, runs in played.points.items()}
    if played.experiment.sweep is not None:
        return decide_sweep(played.experiment, points)
    if played.experiment.isolation is not None:
        return decide_isolation(played.experiment, points)
    return decide(
        played.experiment, played.runs, outputs=lambda run: read_outputs(played.folders[run] / "outputs.parquet")
    )
