"""Reads of experiments."""

from django.db.models import Count, Q, QuerySet

from controlplane.access import Person, visible
from controlplane.experiments.models import Experiment
from controlplane.runs.lifecycle import TERMINAL_STATES, State
from controlplane.runs.models import Run
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse


def visible_to(user: Person) -> QuerySet[Experiment]:
    """Experiments that ``user`` may see, newest first, with owner, plan and the numbers of runs in total and ended.

    Annotates ``run_count``, ``ended_count`` and ``failed_count``.
    """
    runs = "arms__arm_runs"
    bad = (State.FAILED, State.LOST)
    annotated = Experiment.objects.select_related("owner", "plan", "workload_version__workload").annotate(
        run_count=Count(runs),
        ended_count=Count(runs, filter=Q(**{f"{runs}__run__state__in": TERMINAL_STATES})),
        failed_count=Count(runs, filter=Q(**{f"{runs}__run__state__in": bad})),
    )
    # Said again, because a query that counts loses the model's own order.
    return visible(annotated.order_by("-created_at", "id"), user)


def spec_of(experiment: Experiment) -> ExperimentSpec:
    """The spec as submitted, arms in their order: a database may return the keys of JSON in another (jsonb does)."""
    arms = experiment.spec["arms"]
    names = experiment.arms.order_by("position").values_list("name", flat=True)
    return parse(ExperimentSpec, {**experiment.spec, "arms": {name: arms[name] for name in names}})


def runs_of(experiment: Experiment) -> QuerySet[Run]:
    """Runs of an experiment in the order they are taken, each with its arm."""
    runs = Run.objects.filter(arm_run__arm__experiment=experiment)
    return runs.select_related("arm_run__arm").order_by("place")


def summaries_by_arm(experiment: Experiment) -> dict[str, list[RunSummary]]:
    """Summaries of the runs that have one, under their arm and, where there are several loads, its load."""
    arms: dict[str, list[RunSummary]] = {}
    for run in sorted(runs_of(experiment), key=lambda run: (run.arm_run.arm.position, run.arm_run.load or 0.0)):
        if run.summary:
            arms.setdefault(run.arm_run.label(experiment.spec), []).append(parse(RunSummary, run.summary))
    return arms


def unsettled() -> QuerySet[Experiment]:
    """Experiments whose status may have to follow their runs: undecided, or with a run that was retried."""
    undecided = Q(status__in=(Experiment.Status.QUEUED, Experiment.Status.RUNNING))
    ended = [state.value for state in TERMINAL_STATES]
    moving = Experiment.objects.filter(arms__arm_runs__run__in=Run.objects.exclude(state__in=ended))
    return Experiment.objects.filter(undecided | Q(pk__in=moving.values("pk")))
