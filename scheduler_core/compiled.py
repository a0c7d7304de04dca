"""Machine code of the core's hot modules, compiled from these very sources: never stale, never needed.

It lies in the environment, in a folder named by the sources and the interpreter (``headway compile`` puts it there).
Where it does, importing one of `MODULES` loads it from there; where it does not, or any source differs, they are
interpreted. It is the same program either way and decides the same.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PLACE = Path(sys.prefix) / "machine-code"

SWITCH = "HEADWAY_PURE"
"""Environment variable that, set to 1, has everything interpreted."""

_OF = {
    "types": ("arrival", "plan", "shape"),
    "request": ("lifecycle", "live", "progress", "spec"),
    "kv": ("digest", "extents", "ledger", "prefix_hash"),
    "sched": (
        "admission",
        "aging",
        "cohort",
        "commit",
        "counted_memory",
        "extent_memory",
        "fused",
        "instance",
        "laws",
        "lines",
        "memory",
        "moving",
        "plan",
        "planner",
        "policy",
        "quotas",
        "recorded",
        "room",
        "samples",
        "stalls",
        "state",
        "state_view",
        "stopping",
        "undisturbed",
        "waiting",
        "world",
    ),
    "policies": ("parts",),
    "cluster": (
        "cluster",
        "departures",
        "disposition",
        "effects",
        "handoff",
        "leases",
        "links",
        "load",
        "members",
        "prefixes",
        "router",
        "rules",
        "transfer",
    ),
    "sim": ("arrivals", "cost", "ends", "fastforward", "fleet", "lane", "rows", "world"),
}

_READ = ("drive", "spec")
"""Parts whose classes and functions compiled modules use without being compiled themselves."""

MODULES = tuple(f"scheduler_core.{part}.{name}" for part, names in _OF.items() for name in names)
"""What is compiled."""


def source_of(module: str, root: Path = ROOT) -> Path:
    """The file of one of `MODULES` in the checkout ``root``."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


def folder(root: Path = ROOT) -> Path:
    """Where machine code of the sources as they are now lies, once it is made.

    Its name depends on every source of the parts that hold `MODULES` or that they use, as what one means may be written
    in another.
    """
    digest = hashlib.sha256("\n".join(MODULES).encode())
    for part in (*_OF, *_READ):
        for path in sorted((root / "scheduler_core" / part).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return PLACE / f"{digest.hexdigest()[:16]}{EXTENSION_SUFFIXES[0]}"


def files_in(made: Path) -> dict[str, Path]:
    """Module to file, of what lies in a `folder`."""
    suffix = EXTENSION_SUFFIXES[0]
    found = made.rglob(f"*{suffix}")
    return {".".join(path.relative_to(made).parts).removesuffix(suffix): path for path in found}


class Finder(MetaPathFinder):
    """Finds compiled modules by name, before anybody looks for their sources."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where ``fullname`` lies; None where that is not known here."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def use() -> None:
    """From now on imports of `MODULES` load machine code, where there is some of these sources."""
    if os.environ.get(SWITCH) == "1" or not PLACE.is_dir():
        return
    files = files_in(folder())
    if files:
        sys.meta_path.insert(0, Finder(files))


def used() -> bool:
    """Whether this process loads machine code."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
