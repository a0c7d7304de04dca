"""All policies by name: the built-in ones and those of installed packages.

A package adds policies with an entry point in the group ``headway.policies`` that names a `Manifest`.
"""

import difflib
from functools import cache
from importlib.metadata import entry_points

from scheduler_core.policies.deployments import DEPLOYMENTS
from scheduler_core.policies.manifests import (
    AS_SERVED,
    FASTSERVE,
    NANO,
    RESERVE_MAX,
    SARATHI,
    SGLANG,
    STATIC,
    VLLM_V1,
    VTC,
    Manifest,
)
from scheduler_core.types.errors import InputError, Problem

GROUP = "headway.policies"

BUILT_IN = (STATIC, VLLM_V1, SARATHI, SGLANG, FASTSERVE, VTC, NANO, RESERVE_MAX, *DEPLOYMENTS)


@cache
def _installed() -> dict[str, Manifest]:
    found = {manifest.name: manifest for manifest in BUILT_IN}
    for entry in entry_points(group=GROUP):
        manifest = entry.load()
        if not isinstance(manifest, Manifest):
            raise InputError([Problem(entry.value, f"entry point {entry.name!r} names no policy manifest")])
        if manifest.name in found:
            raise InputError([Problem(entry.value, f"a policy named {manifest.name!r} exists already")])
        found[manifest.name] = manifest
    return found


def manifests() -> dict[str, Manifest]:
    """All policies by name: the built-in ones, then those of installed packages."""
    return dict(_installed())


def manifest_of(name: str) -> Manifest:
    """The policy called ``name``; `InputError` suggests the nearest name."""
    known = {**_installed(), AS_SERVED.name: AS_SERVED}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise InputError([Problem("policy", f"no policy is called {name!r}; {hint}")])
    return known[name]
