"""Forks of modelled runs: from a run and a changed policy to an experiment that compares from a moment on."""

from typing import Any

from controlplane.accounts.models import User
from controlplane.errors import ConflictError
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.runs.models import Run
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError, Problem


def why_not(run: Run) -> str:
    """Why ``run`` cannot be forked, in one sentence; empty when it can."""
    arm_run = getattr(run, "arm_run", None)
    if arm_run is None:
        return "only a run of an experiment can be forked"
    modelled = (run.job.get("target") or {}).get("modelled")
    if modelled is None:
        return "only a modelled run can be forked: kernels and servers never play a beginning twice"
    if modelled.get("topology") is not None:
        return "a run of a cluster cannot be forked yet"
    return "this run is itself a fork" if run.job.get("fork") else ""


def fork_run(*, owner: User, run: Run, at_s: float, policy: object) -> Experiment:
    """Queue an experiment that plays ``run``'s arm to ``at_s`` and from there both as it was and by ``policy``.

    `ConflictError` when the run cannot be forked; `InputError` names what is wrong in moment or policy.
    """
    reason = why_not(run)
    if reason:
        raise ConflictError(reason)
    place = run.arm_run
    original = place.arm.experiment
    data = parse(ExperimentSpec, original.spec).forked(place.arm.name, policy, at_s=at_s, load=place.load)
    try:
        return submit_experiment(owner=owner, data=data, cloned_from=original)
    except InputError as error:
        raise InputError([Problem(_named(item.where), item.message) for item in error.problems]) from None


def policy_of(run: Run) -> dict[str, Any]:
    """The policy that a fork of ``run`` starts from, as it was written."""
    return dict(parse(ExperimentSpec, run.arm_run.arm.experiment.spec).arms[run.arm_run.arm.name].canonical())


def _named(where: str) -> str:
    """A place in the forked experiment as the person who forks knows it."""
    return where.replace("arms.changed.", "policy.").replace("arms.changed", "policy").replace("fork.at_s", "at_s")
