"""What the forms offer from the database and the installation."""

from controlplane.access import Person
from controlplane.endpoints.selectors import visible_to as endpoints_visible_to
from controlplane.fleet import selectors as fleet
from controlplane.policies import selectors as policies
from controlplane.ui.specform.building import Setting
from controlplane.ui.specform.shapes import Choices
from controlplane.workloads import selectors as workloads
from scheduler_core.policies.manifests import AS_SERVED
from scheduler_core.policies.registry import manifests
from scheduler_core.spec import roofline
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.server import Deployment, ServerTarget
from scheduler_core.spec.target import ModelledTarget
from scheduler_core.spec.topology import InstanceGroup
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.workload.profiles import profile_names

MOST = 200


def workload_setting(user: Person) -> Setting:
    """Choices of a workload form: imported traces and bundled profiles."""
    datasets = [(item.pk, item.name) for item in workloads.datasets_visible_to(user)[:MOST]]
    profiles = [(name, name) for name in profile_names()]
    return Setting(choices={(Trace, "dataset"): tuple(datasets), (WorkloadSpec, "profile"): tuple(profiles)})


def policy_setting() -> Setting:
    """Choices of a policy form: the presets, with what each takes."""
    known = manifests()
    presets = tuple((name, f"{item.title} ({name})") for name, item in known.items())
    field = (PolicySpec, "policy")
    return Setting(choices={field: presets}, refreshing=frozenset({field}), presets=known)


def experiment_setting(user: Person) -> Setting:
    """Choices of an experiment form: all of the above, saved versions and profiles."""
    setting = workload_setting(user)
    policy = policy_setting()
    profiles = [
        (name, name) for name in dict.fromkeys(fleet.profiles_visible_to(user).values_list("name", flat=True)[:MOST])
    ]
    profiles += [(name, f"{name} (public specification)") for name in roofline.names()]
    served = tuple((item.name, f"{item.title} ({item.name})") for item in (AS_SERVED,))
    endpoints = [(name, name) for name in endpoints_visible_to(user).values_list("name", flat=True)[:MOST]]
    setting.choices |= {
        (PolicySpec, "policy"): (*policy.choices[PolicySpec, "policy"], *served),
        (ServerTarget, "endpoint"): (("", "none"), *endpoints),
        (Deployment, "endpoint"): (("", "none"), *endpoints),
        (ModelledTarget, "profile"): (("auto", "the newest"), *profiles),
        (InstanceGroup, "profile"): (("", "that of the target"), *profiles),
    }
    setting.refreshing, setting.presets = policy.refreshing, {**policy.presets, AS_SERVED.name: AS_SERVED}
    setting.saved = {WorkloadSpec: _saved_workloads(user), PolicySpec: _saved_policies(user)}
    return setting


def _saved_workloads(user: Person) -> Choices:
    rows = workloads.versions_visible_to(user).filter(workload__archived_at=None).order_by("workload__name", "-number")
    return tuple((row.pk, str(row)) for row in rows[:MOST])


def _saved_policies(user: Person) -> Choices:
    rows = policies.versions_visible_to(user).filter(policy__archived_at=None).order_by("policy__name", "-number")
    return tuple((row.pk, str(row)) for row in rows[:MOST])
