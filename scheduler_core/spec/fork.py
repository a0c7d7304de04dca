"""Forks: runs that share their beginning, so that what differs afterwards comes from one changed rule."""

from typing import Any

from pydantic import Field

from scheduler_core.spec.base import PositiveFloat, Spec
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.types.errors import InputError, Problem

# State that lives across the moment belongs to these; another pool or preset could not take it over as it is.
_FIXED_SECTIONS = ("pools", "execution")
_FREE_CACHE = ("watermark", "admit")


class ForkSpec(Spec):
    """Every arm plays the baseline's policy up to a moment, then its own; figures count requests due from there on."""

    at_s: PositiveFloat = Field(
        le=10**9, description="The moment, in seconds of the run. Until then all arms are one and the same run."
    )


class ForkJob(Spec):
    """The shared beginning of a run: ``policy`` (resolved) is in force until ``at_s``."""

    at_s: PositiveFloat
    policy: PolicySpec


def check_fork(trunk: PolicySpec, branch: PolicySpec) -> None:
    """Refuse a branch that could not take over the state of the trunk; both are resolved.

    Raises:
        InputError: names each setting that would have to change with requests and blocks in place.
    """
    if trunk.policy != branch.policy:
        message = f"is {branch.policy!r}, but the run until the fork is {trunk.policy!r}; a fork changes settings"
        raise InputError([Problem("policy", message)])
    problems = [
        Problem(f"{section}.{key}", f"cannot change from {old!r} to {new!r} in the middle of a run")
        for section in SECTIONS
        for key, old, new in _changed(trunk, branch, section)
        if section in _FIXED_SECTIONS or (section == "cache" and key not in _FREE_CACHE)
    ]
    if problems:
        raise InputError(problems)


def _changed(trunk: PolicySpec, branch: PolicySpec, section: str) -> list[tuple[str, Any, Any]]:
    old, new = getattr(trunk, section).canonical(), getattr(branch, section).canonical()
    return [(key, old[key], new[key]) for key in old if old[key] != new[key]]
