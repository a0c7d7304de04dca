"""Writes of experiments. They read finished runs; runs know nothing of experiments."""

import logging
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.access import require_change, require_person
from controlplane.accounts.models import User
from controlplane.errors import ConflictError
from controlplane.experiments.deciding import conclude
from controlplane.experiments.drafts import Draft, read_draft
from controlplane.experiments.looking import look_further, run_title
from controlplane.experiments.models import Arm, ArmRun, Experiment
from controlplane.experiments.selectors import runs_of
from controlplane.fleet.selectors import missing_worker
from controlplane.live.groups import announce_experiment
from controlplane.runs.lifecycle import TERMINAL_STATES, WAITING_STATES
from controlplane.runs.models import Run
from controlplane.runs.services import next_place, queue_run, request_cancel
from controlplane.runs.services.changes import storable
from controlplane.runs.services.queueing import check_quota
from controlplane.workloads.models import ArrivalPlan
from controlplane.workloads.services import freeze
from scheduler_core.types.errors import InputError, Problem

log = logging.getLogger(__name__)


def submit_experiment(*, owner: User, data: object, cloned_from: Experiment | None = None) -> Experiment:
    """Freeze the workload and queue every run, interleaved; the experiment with its arms, or nothing at all.

    ``data`` is an experiment spec in which the workload and arms may be references to saved versions
    (`scheduler_core.spec.saved`). `InputError` lists every problem; `QuotaError` when too many runs would wait.
    """
    require_person(owner)
    draft = read_draft(data, user=owner)
    plans = _freeze(draft, owner)  # stored by digest, so repeating or abandoning them is harmless
    with transaction.atomic():
        check_quota(owner=owner, wanted=len(draft.spec.runs()))
        experiment = Experiment.objects.create(
            owner=owner,
            name=draft.spec.name,
            spec=draft.spec.canonical(),
            digest=draft.spec.digest(),
            workload_version=draft.workload_version,
            plan=next(iter(plans.values())),
            cloned_from=cloned_from,
        )
        arms = _create_arms(experiment, draft)
        _queue_runs(experiment, draft, arms, plans)
    return experiment


def check_experiment(*, data: object, user: User) -> dict[str, Any]:
    """A dry run of `submit_experiment`: everything is checked and frozen, no experiment or run is created."""
    require_person(user)
    draft = read_draft(data, user=user)
    plans = _freeze(draft, user)
    plan = next(iter(plans.values()))
    return {
        "name": draft.spec.name,
        "spec": draft.spec.canonical(),
        "digest": draft.spec.digest(),
        "plan": {
            "digest": plan.digest,
            "requests": plan.requests,
            "prompt_tokens": plan.prompt_tokens,
            "output_tokens": plan.output_tokens,
            "span_s": plan.span_s,
            "preview": plan.preview,
        },
        "device_kind": draft.device_kind,
        "baseline": draft.spec.baseline,
        "arms": {name: policy.canonical() for name, policy in draft.policies.items()},
        "warnings": [warning for warning in [missing_worker(draft.device_kind)] if warning],
        "runs": [place._asdict() for place in draft.spec.runs()],
    }


def _freeze(draft: Draft, user: User) -> dict[float | None, ArrivalPlan]:
    """The draft's plans by load, in rising order; problems are named as fields of the experiment."""
    try:
        plans = {load: freeze(spec=draft.spec.workload_at(load), user=user) for load in draft.spec.loads}
    except InputError as error:
        problems = [Problem(f"workload.{item.where}".rstrip("."), item.message) for item in error.problems]
        raise InputError(problems) from None
    limit_s, span_s = draft.spec.run_limit_s, max(plan.span_s for plan in plans.values())
    if draft.spec.target.modelled is None and span_s > limit_s:
        message = f"is {limit_s:g}, but the last request arrives only after {span_s:.0f} s; raise one, or the rate"
        raise InputError([Problem("run_limit_s", message)])
    return plans


def _create_arms(experiment: Experiment, draft: Draft) -> dict[str, Arm]:
    return {
        name: Arm.objects.create(
            experiment=experiment,
            name=name,
            position=position,
            is_baseline=name == draft.spec.baseline,
            policy=policy.canonical(),
            policy_version=draft.policy_versions.get(name),
        )
        for position, (name, policy) in enumerate(draft.policies.items())
    }


def _queue_runs(
    experiment: Experiment, draft: Draft, arms: dict[str, Arm], plans: dict[float | None, ArrivalPlan]
) -> None:
    queue_place = next_place()
    for order, place in enumerate(draft.spec.runs()):
        plan = plans[place.load]
        run = queue_run(
            owner=experiment.owner,
            title=run_title(draft.spec, place),
            job=draft.job(place),
            device_kind=draft.device_kind,
            plan=plan,
            place=queue_place + order,
            total=plan.requests,
        )
        ArmRun.objects.create(arm=arms[place.arm], repeat=place.repeat, load=place.load, run=run)


def cancel_experiment(*, experiment: Experiment, user: User) -> Experiment:
    """Cancel every run that has not ended. `ConflictError` when all have."""
    require_change(user, experiment)
    open_runs = Run.objects.filter(arm_run__arm__experiment=experiment).exclude(state__in=TERMINAL_STATES)
    if not open_runs.exists():
        raise ConflictError("every run of this experiment has already ended")
    Experiment.objects.filter(pk=experiment.pk, cancel_requested_at=None).update(cancel_requested_at=timezone.now())
    # Last in the queue first, so that no run of the experiment starts while the others are being cancelled.
    for run in open_runs.order_by("-place"):
        try:
            request_cancel(run=run, user=user, reason=f"experiment cancelled by {user.get_username()}")
        except ConflictError:
            log.info("%s ended before it could be cancelled", run.pk)
    advance(experiment.pk)
    experiment.refresh_from_db()
    return experiment


def advance(experiment_id: str) -> None:
    """Bring an experiment's status in line with its runs: queued, running (again, after a retry), or decided."""
    states = set(Run.objects.filter(arm_run__arm__experiment_id=experiment_id).values_list("state", flat=True))
    if states <= set(TERMINAL_STATES):
        decide_if_finished(experiment_id)
        return
    status = Experiment.Status.QUEUED if states <= set(WAITING_STATES) else Experiment.Status.RUNNING
    differing = Experiment.objects.filter(pk=experiment_id).exclude(status=status)
    if differing.update(status=status, decided_at=None, reason=""):
        announce_experiment(experiment_id)


def decide_if_finished(experiment_id: str) -> Experiment | None:
    """Set the verdict when all runs have ended and none is set yet; the experiment then, else None.

    A verdict is computed from the summaries of finished runs alone. Several callers may race: one update wins. Where
    the goal declares looks and the next one can change the answer, its runs are queued instead.
    """
    experiment = Experiment.objects.get(pk=experiment_id)
    undecided = (Experiment.Status.QUEUED, Experiment.Status.RUNNING)
    runs = list(runs_of(experiment))
    if experiment.status not in undecided or any(run.state not in TERMINAL_STATES for run in runs):
        return None
    changes = conclude(experiment, runs)
    if look_further(experiment, runs, changes):
        announce_experiment(experiment_id)
        return None
    changes |= {"decided_at": timezone.now()}
    if not Experiment.objects.filter(pk=experiment_id, status__in=undecided).update(**changes):
        return None
    announce_experiment(experiment_id)
    experiment.refresh_from_db()
    return experiment


def decide_again(*, experiment: Experiment, user: User) -> Experiment:
    """Compute the end of an ended experiment anew from its runs. `ConflictError` while runs are open."""
    require_change(user, experiment)
    if Run.objects.filter(arm_run__arm__experiment=experiment).exclude(state__in=TERMINAL_STATES).exists():
        raise ConflictError("some of its runs have not ended")
    Experiment.objects.filter(pk=experiment.pk).update(status=Experiment.Status.RUNNING, decided_at=None, reason="")
    decide_if_finished(experiment.pk)
    experiment.refresh_from_db()
    return experiment


def set_archived(*, experiment: Experiment, user: User, archived: bool) -> Experiment:
    """Hide from, or bring back to, lists. `ConflictError` for one that is still running."""
    require_change(user, experiment)
    if archived and experiment.status in (Experiment.Status.QUEUED, Experiment.Status.RUNNING):
        raise ConflictError("cancel the experiment first, or wait for its end")
    experiment.archived_at = timezone.now() if archived else None
    experiment.save(update_fields=["archived_at"])
    return experiment


def set_notes(*, experiment: Experiment, user: User, notes: str) -> Experiment:
    """Replace the notes, at most 10,000 characters of plain text."""
    require_change(user, experiment)
    experiment.notes = storable(notes[:10_000])
    experiment.save(update_fields=["notes"])
    return experiment


def clone_spec(experiment: Experiment) -> dict[str, Any]:
    """The experiment as it would be submitted again, with references where saved versions were used."""
    spec: dict[str, Any] = dict(experiment.spec)
    if experiment.workload_version_id:
        spec["workload"] = {"use": experiment.workload_version_id}
    links = dict(experiment.arms.exclude(policy_version=None).values_list("name", "policy_version_id"))
    spec["arms"] = {name: {"use": links[name]} if name in links else arm for name, arm in spec["arms"].items()}
    return spec
