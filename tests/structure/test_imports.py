"""Imports point one way, and some things are imported nowhere."""

import graphlib
import sys

import pytest

from tests.structure.sources import Source, imports, sources, under

CORE = "scheduler_core"
# Part of the core -> the other parts it may import.
CORE_PARTS: dict[str, tuple[str, ...]] = {
    "files": (),
    "compiled": (),
    "types": (),
    "spec": ("files", "types"),
    "request": ("types",),
    "kv": ("types", "request"),
    "sched": ("types", "request", "kv"),
    "policies": ("types", "spec", "request", "kv", "sched"),
    "cluster": ("types", "spec", "request", "sched", "policies"),
    "drive": ("types", "spec", "request", "kv", "sched", "cluster"),
    "sim": ("types", "spec", "request", "kv", "sched", "policies", "cluster", "drive"),
    "workload": ("files", "types", "spec"),
    "evidence": ("files", "types", "spec"),
    "verdict": ("types", "spec", "evidence"),
    "fidelity": ("types", "spec", "request", "kv", "sched", "drive", "sim", "evidence"),
    "testing": (
        "types",
        "spec",
        "request",
        "kv",
        "sched",
        "policies",
        "cluster",
        "drive",
        "sim",
        "workload",
        "evidence",
    ),
}
# Package -> the project's packages it may import besides itself.
PACKAGES: dict[str, tuple[str, ...]] = {
    "scheduler_core": (),
    "gpu_runner.engine": ("scheduler_core.types", "scheduler_core.drive.ports"),
    "gpu_runner": ("scheduler_core",),
    "controlplane": (
        "scheduler_core.types",
        "scheduler_core.spec",
        "scheduler_core.policies.manifests",
        "scheduler_core.policies.registry",
        "scheduler_core.policies.resolving",
        "scheduler_core.workload",
        "scheduler_core.evidence",
        "scheduler_core.verdict",
    ),
    "headway": ("scheduler_core", "gpu_runner.run", "gpu_runner.search"),
    "installer": (),
    "bench": ("scheduler_core", "gpu_runner", "headway", "controlplane"),
}
OWN = tuple(name for name in PACKAGES if "." not in name)
# Package -> modules that must not be imported in it, and where in it they may be all the same.
FORBIDDEN: dict[str, dict[str, tuple[str, ...]]] = {
    "scheduler_core": {
        "django": (),
        "torch": (),
        "time": (),
        "threading": (),
        "multiprocessing": (),
        "concurrent": (),
        "asyncio": (),
        "subprocess": (),
        "socket": (),
        "secrets": (),
        "uuid": (),
        "random": (),
        "datetime": ("scheduler_core.workload",),
        "numpy": ("scheduler_core.evidence", "scheduler_core.verdict"),
        "scipy": ("scheduler_core.evidence", "scheduler_core.verdict"),
        "pyarrow": ("scheduler_core.evidence", "scheduler_core.verdict"),
        "pandas": (),
    },
    "gpu_runner": {"django": (), "celery": ()},
    "controlplane": {"torch": (), "pickle": ()},
    "headway": {"django": (), "celery": (), "torch": ()},
}


def _home(module: str) -> str:
    """The most particular entry of `PACKAGES` that a module lies in."""
    return max((name for name in PACKAGES if under(module, name)), key=len)


def _named(source: Source) -> list[str]:
    return [name for name in imports(source) if any(under(name, own) for own in OWN)]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    allowed = (package, *PACKAGES[package])
    wrong = []
    for source in sources():
        if _home(source.module) != package:
            continue
        for name in _named(source):
            # `from a.b import c` names both a.b and a.b.c: an allowed c inside makes a.b itself fine.
            if not any(under(name, good) or under(good, name) for good in allowed):
                wrong.append(f"{source.shown} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_core_s_parts_import_one_way() -> None:
    wrong = []
    for source in sources():
        parts = source.module.split(".")
        if parts[0] != CORE or len(parts) < 2 or parts[1] not in CORE_PARTS:
            continue
        for name in imports(source):
            target = name.split(".")
            if target[0] == CORE and len(target) > 1 and target[1] not in (parts[1], *CORE_PARTS[parts[1]]):
                wrong.append(f"{source.shown} imports {name}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_every_part_of_the_core_has_a_rule() -> None:
    parts = {source.module.split(".")[1] for source in sources() if source.module.startswith(f"{CORE}.")}
    assert parts <= set(CORE_PARTS)


@pytest.mark.parametrize(("package", "module"), [(p, m) for p, rules in FORBIDDEN.items() for m in rules])
def test_forbidden_modules(package: str, module: str) -> None:
    exempt = FORBIDDEN[package][module]
    wrong = [
        source.shown
        for source in sources()
        if under(source.module, package)
        and not any(under(source.module, place) for place in exempt)
        and any(under(name, module) for name in imports(source))
    ]
    assert not wrong, f"{module} is imported in {', '.join(wrong)}"


def test_no_import_cycles() -> None:
    """Between modules, over what runs at import."""
    known = {source.module for source in sources()}
    graph: dict[str, set[str]] = {}
    for source in sources():
        targets = {name for name in imports(source, at_start_only=True) if name in known}
        # Importing a.b.c runs a and a.b first, but a package's own members may import one another freely.
        graph[source.module] = {name for name in targets if not under(source.module, name)}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError and names the cycle


def test_the_installer_needs_nothing_installed() -> None:
    wrong = []
    for source in sources():
        if not under(source.module, "installer"):
            continue
        for name in imports(source):
            top = name.split(".")[0]
            if top != "installer" and top not in sys.stdlib_module_names:
                wrong.append(f"{source.shown} imports {name}")
    assert not wrong, "\n".join(wrong)
