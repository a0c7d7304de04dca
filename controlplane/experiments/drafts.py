"""An experiment as submitted, read, with every reference and default resolved; nothing is written here."""

from dataclasses import dataclass
from typing import Any

from controlplane.accounts.models import User
from controlplane.endpoints.services import require_endpoints
from controlplane.fleet.services import device_kind_of, profile_beside, resolve_profile
from controlplane.policies.models import PolicyVersion
from controlplane.policies.selectors import versions_visible_to as policy_versions
from controlplane.workloads.models import WorkloadVersion
from controlplane.workloads.selectors import versions_visible_to as workload_versions
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec, Place
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.saved import substitute
from scheduler_core.spec.target import Profile


@dataclass(frozen=True)
class Draft:
    """A readable experiment: its complete spec, resolved policies by arm, profile, queue, and where parts came from."""

    spec: ExperimentSpec
    policies: dict[str, PolicySpec]
    profile: Profile | None
    group_profiles: dict[str, Profile]
    device_kind: str
    workload_version: WorkloadVersion | None
    policy_versions: dict[str, PolicyVersion]

    def job(self, place: Place) -> dict[str, Any]:
        """`scheduler_core.spec.job.RunJob` of one run, without run, attempt and paths."""
        fork = self.spec.fork_job(self.policies)
        return {
            "arm": place.arm,
            "repeat": place.repeat,
            "policy": self.policies[place.arm].canonical(),
            "target": self.spec.target.canonical(),
            "profile": None if self.profile is None else self.profile.canonical(),
            "group_profiles": {group: profile.canonical() for group, profile in self.group_profiles.items()},
            "fork": None if fork is None else fork.canonical(),
            "events": None if self.spec.events is None else self.spec.events.canonical(),
            "tiers": {name: tier.canonical() for name, tier in self.spec.workload.tiers.items()},
            "warmup_share": self.spec.workload.warmup_share,
            "noise_seed": self.spec.noise_seed(place),
            "wall_limit_s": self.spec.run_limit_s,
        }


def read_draft(data: object, *, user: User) -> Draft:
    """Read ``data``; `InputError` lists what is wrong in spec, references, policies and profile."""
    workloads: dict[str, WorkloadVersion] = {}
    policies: dict[str, PolicyVersion] = {}

    def saved_workload(version_id: str) -> dict[str, Any] | None:
        found = workload_versions(user).filter(pk=version_id).first()
        if found is None:
            return None
        workloads[version_id] = found
        return dict(found.spec)

    def saved_policy(version_id: str) -> dict[str, Any] | None:
        found = policy_versions(user).filter(pk=version_id).first()
        if found is None:
            return None
        policies[version_id] = found
        return dict(found.spec)

    filled, used = substitute(data, workload=saved_workload, policy=saved_policy)
    spec = parse(ExperimentSpec, filled)
    if spec.target.server is not None:
        require_endpoints(spec.target.server.places())
    modelled = spec.target.modelled
    profile, groups = (None, {}) if modelled is None else modelled.profiles(resolve_profile)
    return Draft(
        spec=spec,
        policies=resolve_arms(spec, profile),
        profile=profile if spec.target.torch is None else profile_beside(spec.target.torch),
        group_profiles=groups,
        device_kind=device_kind_of(spec.target),
        workload_version=workloads.get(used.get("workload", "")),
        policy_versions={name: policies[used[f"arms.{name}"]] for name in spec.arms if f"arms.{name}" in used},
    )
