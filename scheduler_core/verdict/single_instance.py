"""A single instance first (R23): what several instances gain is accepted only beside a record of one."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.topology import Topology
from scheduler_core.verdict.decision import Ruling
from scheduler_core.verdict.schema import SUBMIT, Decision, NextStep

SINGLE = "single instance"
RULE = "R23"


def instances(run: RunSummary) -> int:
    """Instances that served a run; one where it had no pools."""
    return sum(pool.instances for pool in run.pools.values()) or 1


def single_records(runs: Iterable[RunSummary], plans: Iterable[str]) -> list[RunSummary]:
    """Runs that are a record of one instance on one of the arrival plans: complete, audited and not void."""
    known = set(plans)
    return [
        run
        for run in runs
        if run.complete and run.audit.passed and not run.void and run.plan_digest in known and instances(run) == 1
    ]


def held_back(ruling: Ruling, compared: Sequence[RunSummary], runs: Iterable[RunSummary]) -> Ruling:
    """``ruling``, but no accept of a gain of several instances while ``runs`` hold no record of a single one.

    ``compared`` are the runs of both arms, ``runs`` all of the experiment.
    """
    least = min(compared, key=instances, default=None)
    if ruling.decision is not Decision.ACCEPT or least is None or instances(least) == 1:
        return ruling
    if single_records(runs, (run.plan_digest for run in compared)):
        return ruling
    return Ruling(
        Decision.TUNE,
        f"{RULE}: {ruling.reason}, but there is no record of a single instance on this plan (run {least.run} of "
        f"{least.arm} is the smallest, {instances(least)} instances); add an arm that holds one",
        (RULE,),
    )


def one_instance(policy: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """``policy`` on one instance: the first group's, with nothing else that concerns pools."""
    hold = {name: int(not place) for place, name in enumerate(topology.groups)}
    return {**copy.deepcopy(dict(policy)), "pools": {"layout": "replicas", "hold": hold}}


def lacks_single(spec: ExperimentSpec) -> bool:
    """Whether every arm is played on several instances."""
    topology = spec.target.topology
    if topology is None:
        return False
    return all(topology.holding(policy.pools.hold).instances > 1 for policy in spec.arms.values())


def with_single_instance(spec: ExperimentSpec) -> dict[str, Any]:
    """The experiment as a form in which one more arm plays the baseline's policy on a single instance, if none did."""
    form = spec.canonical()
    if lacks_single(spec):
        assert spec.target.topology is not None  # or nothing would be lacking
        form["arms"][SINGLE] = one_instance(form["arms"][spec.baseline], spec.target.topology)
    return form


def single_arm_first(spec: ExperimentSpec | None, ruling: Ruling) -> NextStep | None:
    """The experiment that holds the missing record; None where ``ruling`` was not held back or nothing can be added."""
    if spec is None or RULE not in ruling.deciding or not lacks_single(spec):
        return None
    return NextStep(
        title="the same arms and one more, on a single instance",
        because=f"{RULE}: what several instances gain is accepted beside a record of one, on the same plan",
        experiment=with_single_instance(spec),
        command=SUBMIT,
    )
