"""Group-sequential experiments: the next pairs are queued only while they can change the answer."""

from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.experiments.models import ArmRun, Experiment
from controlplane.experiments.selectors import spec_of
from controlplane.runs.models import Run
from controlplane.runs.services import next_place, queue_run
from scheduler_core.spec.experiment import ExperimentSpec, Place
from scheduler_core.spec.parse import parse
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.sequential import further


def run_title(spec: ExperimentSpec, place: Place) -> str:
    """What a run is called; with looks declared the number of repeats is not known beforehand."""
    of = "" if spec.goal.looks else f" of {spec.repeats}"
    return f"{spec.name}: {place.arm}{spec.at_words(place.load)}, repeat {place.repeat + 1}{of}"


def look_further(experiment: Experiment, runs: Iterable[Run], end: dict[str, Any]) -> bool:
    """Queue the runs of the next declared look when they can change the answer; whether there is more to come.

    ``end`` is what the experiment would end with after ``runs``, all of them ended; its verdict is kept as that of the
    look that was reached. Of several callers one queues the runs.
    """
    if end["status"] != Experiment.Status.DECIDED:
        return False
    spec = spec_of(experiment)
    made = 1 + max(run.job["repeat"] for run in runs)  # of what the verdict saw, not of what others queued since
    more = further(spec.goal.looks, made, parse(Verdict, end["verdict"]))
    if more is None:
        return False
    wanted = [place for place in spec.runs(range(made, more.pairs)) if place.arm in more.arms]
    try:
        with transaction.atomic():
            _queue(experiment, spec, wanted)
            fields = {"status": Experiment.Status.RUNNING, "verdict": end["verdict"], "reason": ""}
            Experiment.objects.filter(pk=experiment.pk).update(**fields)
    except IntegrityError:  # another process queued the same repeats at that moment
        return True
    return True


def _queue(experiment: Experiment, spec: ExperimentSpec, runs: Iterable[Place]) -> None:
    """Queue further repeats: the job of the arm's first run with another repeat, so that nothing else can differ."""
    firsts = {
        row.arm.name: row
        for row in ArmRun.objects.filter(arm__experiment=experiment, repeat=0).select_related("arm", "run__plan")
    }
    queue_place = next_place()
    for order, place in enumerate(runs):
        first: Run = firsts[place.arm].run
        run = queue_run(
            owner=experiment.owner,
            title=run_title(spec, place),
            job={**first.job, "repeat": place.repeat, "noise_seed": spec.noise_seed(place)},
            device_kind=first.device_kind,
            plan=first.plan,
            place=queue_place + order,
            total=first.total,
        )
        ArmRun.objects.create(arm=firsts[place.arm].arm, repeat=place.repeat, run=run)


def looks_in_words(experiment: Experiment, pairs: int) -> str:
    """Where a group-sequential experiment with ``pairs`` queued stands; empty without declared looks."""
    looks = spec_of(experiment).goal.looks
    if not looks:
        return ""
    declared = f"looks declared at {', '.join(str(look) for look in looks)} pairs"
    number = sum(look < pairs for look in looks) + 1
    at = f"look {min(number, len(looks))} of {len(looks)}, at {pairs} pairs"
    if experiment.status not in (Experiment.Status.QUEUED, Experiment.Status.RUNNING):
        return f"{declared}; the last was {at}"
    open_ = [item for item in (experiment.verdict or {}).get("comparisons", []) if item.get("next_look")]
    if not open_:
        return f"{declared}; the first is {at}"
    names = ", ".join(item["candidate"] for item in open_)
    return f"{declared}; {names} undecided at {open_[0]['pairs']} pairs, so the next is {at}"
