"""Writes of studies: each next experiment is submitted from the verdict, or the search result, before it."""

import json
import logging
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import require_change, require_person
from controlplane.accounts.models import User
from controlplane.errors import ConflictError, QuotaError
from controlplane.experiments.drafts import read_draft
from controlplane.experiments.models import Experiment
from controlplane.experiments.selectors import runs_of
from controlplane.experiments.services import cancel_experiment, submit_experiment
from controlplane.fleet.services import resolve_profile
from controlplane.runs.lifecycle import TERMINAL_STATES, State
from controlplane.runs.models import Run
from controlplane.runs.services import queue_run, request_cancel, retry_run
from controlplane.runs.services.queueing import check_quota
from controlplane.studies.models import Stage, Study
from controlplane.studies.selectors import (
    guided_spec,
    prediction_result,
    prediction_spec,
    results_of,
    search_result,
    search_spec,
    stages_of,
)
from controlplane.workloads.selectors import versions_visible_to
from controlplane.workloads.services import freeze
from scheduler_core.policies.resolving import playable, resolve, resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.saved import substitute
from scheduler_core.spec.studies import GuidedSpec, PredictionSpec, SearchSpec
from scheduler_core.spec.target import Profile
from scheduler_core.spec.variants import turned
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.guided import LAST, STAGES, Allows, next_stage, outcome
from scheduler_core.verdict.prediction import MEASURED, PREDICTED, PredictionResult, compare, modelled, write_down
from scheduler_core.verdict.prediction import STAGES as PREDICTION_STAGES
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.search import SearchResult, confirmation

log = logging.getLogger(__name__)

Status = Study.Status


def read_guided(data: object, *, user: User) -> GuidedSpec:
    """A guided plan as submitted; its workload may be a saved version. `InputError` lists what is wrong."""
    spec = parse(GuidedSpec, _filled(data, user))
    resolve(spec.start)
    return spec


def read_search(data: object, *, user: User) -> SearchSpec:
    """A search as submitted; its workload may be a saved version. `InputError` lists what is wrong."""
    spec = parse(SearchSpec, _filled(data, user))
    try:
        resolve(spec.base)
    except InputError as error:
        raise InputError([Problem(f"base.{item.where}", item.message) for item in error.problems]) from None
    problems = []
    for name, dimension in spec.space.items():
        value = dimension.grid()[0]
        try:
            resolve(turned(spec.base, {name: value}))
        except InputError as error:
            problems += [Problem(f"space.{name}", item.message) for item in error.problems]
    if problems and "policy" not in spec.space:  # another preset may take what the base does not
        raise InputError(problems)
    return spec


def read_prediction(data: object, *, user: User) -> PredictionSpec:
    """A prediction as submitted; its experiment may name saved versions. `InputError` lists what is wrong."""
    form = dict(data) if isinstance(data, dict) else {}
    try:
        draft = read_draft(form.get("experiment"), user=user)
        spec = parse(PredictionSpec, {**form, "experiment": draft.spec.canonical()})
    except InputError as error:
        raise InputError([_inside(item) for item in error.problems]) from None
    profile = resolve_profile(name=spec.profile, where="profile")
    try:
        resolve_arms(modelled(spec), profile)
    except InputError as error:
        raise InputError([_inside(item) for item in error.problems]) from None
    return spec


def _inside(problem: Problem) -> Problem:
    """A problem of an experiment, at its place in a prediction."""
    if problem.where.partition(".")[0] in ("experiment", "profile"):
        return problem
    return Problem(f"experiment.{problem.where}".rstrip("."), problem.message)


def _filled(data: object, user: User) -> object:
    def workload(version_id: str) -> dict[str, Any] | None:
        found = versions_visible_to(user).filter(pk=version_id).first()
        return dict(found.spec) if found is not None else None

    return substitute(data, workload=workload, policy=lambda version_id: None)[0]


def start_guided(*, owner: User, data: object) -> Study:
    """Begin a guided plan with the experiment of its first stage."""
    require_person(owner)
    spec = read_guided(data, user=owner)
    with transaction.atomic():
        study = Study.objects.create(owner=owner, kind=Study.Kind.GUIDED, name=spec.name, spec=spec.canonical())
        number, experiment = next_stage(spec, -1, None, allows=_allows(spec))
        _submit(study, number, experiment)
    return study


def start_search(*, owner: User, data: object) -> Study:
    """Queue the run that plays a search's policies on the modelled target."""
    require_person(owner)
    spec = read_search(data, user=owner)
    assert spec.target.modelled is not None  # the spec's own rule
    profile, groups = spec.target.modelled.profiles(resolve_profile)
    plan = freeze(spec=spec.workload, user=owner)
    check_quota(owner=owner, wanted=1)
    with transaction.atomic():
        run = queue_run(
            owner=owner,
            title=f"Search {spec.name}: {spec.method}, up to {spec.trials} policies",
            job={
                "spec": spec.canonical(),
                "profile": profile.canonical(),
                "group_profiles": {group: found.canonical() for group, found in groups.items()},
            },
            device_kind="cpu",
            plan=plan,
            kind=Run.Kind.SEARCH,
            total=spec.trials,
        )
        return Study.objects.create(owner=owner, kind=Study.Kind.SEARCH, name=spec.name, spec=spec.canonical(), run=run)


def start_prediction(*, owner: User, data: object) -> Study:
    """Begin a prediction: its sweep on the model, after which it is written down and the measurement submitted."""
    require_person(owner)
    spec = read_prediction(data, user=owner)
    with transaction.atomic():
        study = Study.objects.create(owner=owner, kind=Study.Kind.PREDICTION, name=spec.name, spec=spec.canonical())
        _submit(study, PREDICTED, modelled(spec))
    return study


def advance_study(study: Study) -> None:
    """Take a running study as far as its runs and experiments allow; several callers may race."""
    advance = {
        Study.Kind.GUIDED: _advance_guided,
        Study.Kind.SEARCH: _advance_search,
        Study.Kind.PREDICTION: _advance_prediction,
    }
    advance[Study.Kind(study.kind)](study)


def cancel_study(*, study: Study, user: User) -> Study:
    """Stop a study: its open run or experiment is cancelled, and no further one is made."""
    require_change(user, study)
    if study.status != Status.RUNNING:
        raise ConflictError(f"the study has already ended: {study.get_status_display().lower()}")
    _end(study, Status.CANCELLED, f"cancelled by {user.get_username()}")
    if study.run is not None and study.run.state not in TERMINAL_STATES:
        request_cancel(run=study.run, user=user)
    for stage in stages_of(study):
        if stage.experiment.status in (Experiment.Status.QUEUED, Experiment.Status.RUNNING):
            cancel_experiment(experiment=stage.experiment, user=user)
    study.refresh_from_db()
    return study


def resume_study(*, study: Study, user: User) -> Study:
    """Go on with a study that failed or was cancelled: what stopped it is made anew. `ConflictError` otherwise."""
    require_change(user, study)
    if study.status not in (Status.FAILED, Status.CANCELLED):
        raise ConflictError(f"only a study that failed or was cancelled can go on; this one is {study.status}")
    last = stages_of(study).last()
    with transaction.atomic():
        if last is None and study.run is not None and study.run.state != State.SUCCEEDED:
            retry_run(run=study.run, user=user)
        elif last is not None and last.experiment.status != Experiment.Status.DECIDED:
            last.experiment = submit_experiment(
                owner=study.owner, data=last.experiment.spec, cloned_from=last.experiment
            )
            last.save(update_fields=["experiment"])
        Study.objects.filter(pk=study.pk).update(status=Status.RUNNING, reason="", ended_at=None)
    study.refresh_from_db()
    advance_study(study)
    study.refresh_from_db()
    return study


def _advance_guided(study: Study) -> None:
    spec, last = guided_spec(study), stages_of(study).last()
    if last is None or _still_open(study, last.experiment):
        return
    result = results_of(study)[-1]
    if last.number == LAST:
        _end(study, Status.ENDED, f"{result.verdict.comparisons[0].headline}")
        return
    accepted = outcome(result.spec, result.verdict)
    try:
        number, experiment = next_stage(spec, last.number, accepted, allows=_allows(spec))
    except InputError:
        _end(study, Status.ENDED, "no stage found anything better than the reference")
        return
    _try_to_submit(study, number, experiment)


def _advance_search(study: Study) -> None:
    run = study.run
    assert run is not None  # every search has one
    confirmed = stages_of(study).last()
    if confirmed is not None:
        if not _still_open(study, confirmed.experiment):
            headlines = [item["headline"] for item in (confirmed.experiment.verdict or {})["comparisons"]]
            _end(study, Status.ENDED, "confirmed: " + "; ".join(headlines))
        return
    if run.state not in TERMINAL_STATES:
        return
    if run.state != State.SUCCEEDED:
        status = Status.CANCELLED if run.state == State.CANCELLED else Status.FAILED
        _end(study, status, f"the search run ended: {run.reason or run.state}")
        return
    result = search_result(study) or _adopt(study, run)
    if result is None:
        return
    experiment = confirmation(search_spec(study), result)
    if experiment is None:
        _end(study, Status.ENDED, result.sentence)
    else:
        _try_to_submit(study, 0, experiment)


def _advance_prediction(study: Study) -> None:
    """Write the prediction down before the measurement exists, then say what the measurement says of it."""
    last = stages_of(study).last()
    if last is None or _still_open(study, last.experiment):
        return
    verdict = results_of(study)[-1].verdict
    if last.number == PREDICTED:
        if prediction_result(study) is None:
            _write_down(study, last.experiment, verdict)
        _try_to_submit(study, MEASURED, prediction_spec(study).experiment)
        return
    written = prediction_result(study)
    assert written is not None  # the measurement is submitted after it
    outcome = compare(written.prediction, verdict)
    found = written.model_copy(update={"outcome": outcome})
    Study.objects.filter(pk=study.pk).update(result=found.canonical())
    _end(study, Status.ENDED, outcome.sentence)


def _write_down(study: Study, experiment: Experiment, verdict: Verdict) -> None:
    """Keep what the sweep on the model says, once: a prediction that is there is never replaced."""
    run = runs_of(experiment).first()
    assert run is not None  # a decided experiment has runs
    profile = parse(Profile, run.job["profile"])
    made = write_down(prediction_spec(study), profile, verdict, written_at=timezone.now().isoformat(timespec="seconds"))
    written = PredictionResult(prediction=made)
    if Study.objects.filter(pk=study.pk, result__isnull=True).update(result=written.canonical()):
        log.info("%s: predicted %s", study.pk, made.sentence)


def _adopt(study: Study, run: Run) -> SearchResult | None:
    """Keep what the search handed in as ``search.json``; None, and the study failed, where there is none."""
    artifact = run.artifacts.filter(attempt=run.attempt, name="search.json").first()
    if artifact is None:
        _end(study, Status.FAILED, "the search handed in no result")
        return None
    with artifact.file.open("rb") as stream:
        result = parse(SearchResult, json.load(stream))
    Study.objects.filter(pk=study.pk).update(result=result.canonical())
    return result


def _still_open(study: Study, experiment: Experiment) -> bool:
    """Whether there is nothing to go on from; a study whose experiment ended without a verdict ends with it."""
    if experiment.status in (Experiment.Status.QUEUED, Experiment.Status.RUNNING):
        return True
    if experiment.status == Experiment.Status.DECIDED:
        return False
    cancelled = experiment.status == Experiment.Status.CANCELLED
    reason = f"{experiment.name}: {experiment.reason or experiment.get_status_display().lower()}"
    _end(study, Status.CANCELLED if cancelled else Status.FAILED, reason)
    return True


def _try_to_submit(study: Study, number: int, experiment: ExperimentSpec) -> None:
    """Submit the next experiment; over quota it waits, and what cannot be submitted at all ends the study."""
    try:
        with transaction.atomic():
            _submit(study, number, experiment)
    except IntegrityError:
        return  # another process submitted it at that moment
    except QuotaError as error:
        Study.objects.filter(pk=study.pk).update(reason=f"waiting: {error}")
    except InputError as error:
        _end(study, Status.FAILED, f"{experiment.name} cannot be submitted: {error}")
    else:
        Study.objects.filter(pk=study.pk).update(reason="")


def _submit(study: Study, number: int, experiment: ExperimentSpec) -> None:
    made = submit_experiment(owner=study.owner, data=experiment.canonical())
    Stage.objects.create(study=study, number=number, experiment=made)


def _end(study: Study, status: Study.Status, reason: str) -> None:
    changes = {"status": status, "reason": reason, "ended_at": timezone.now()}
    Study.objects.filter(pk=study.pk, status=Status.RUNNING).update(**changes)


def _allows(spec: GuidedSpec) -> Allows:
    """Whether a policy can be played on the plan's target."""
    modelled = spec.target.modelled
    profile = None if modelled is None else modelled.profiles(resolve_profile)[0]
    return lambda policy: playable(policy, spec.target, profile)


def stage_title(study: Study, stage: Stage) -> str:
    """What a stage is called."""
    if study.kind == Study.Kind.SEARCH:
        return "confirmation"
    return STAGES[stage.number].name if study.kind == Study.Kind.GUIDED else PREDICTION_STAGES[stage.number]
