"""Profiles for modelled targets in local play: calibrated on this machine, or the bundled reference."""

import json
import re
from pathlib import Path

from headway.config import cache_folder
from scheduler_core.files import write_json
from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile, profile_of
from scheduler_core.spec.target import Profile, TorchTarget
from scheduler_core.types.errors import InputError


def keep(profile: Profile) -> Path:
    """Keep a calibrated profile for later plays; the file."""
    folder = cache_folder() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', profile.name)}.json"
    write_json(path, profile.canonical())
    return path


def kept() -> list[Profile]:
    """Profiles calibrated on this machine, newest first; files that are none are passed over."""
    folder = cache_folder() / "profiles"
    paths = (
        sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True) if folder.is_dir() else []
    )
    found = []
    for path in paths:
        try:
            found.append(parse(Profile, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, InputError):
            continue
    return found


def choose(name: str, where: str = "target.modelled.profile", parallel: Parallel | None = None) -> tuple[Profile, str]:
    """The profile called ``name`` (``auto``: the newest calibrated here, else the bundled one) and where it is from.

    Raises:
        InputError: there is none of that name; the message lists those there are.
    """
    profile = choose_profile(name, kept(), where=where, parallel=parallel)
    if profile.kind != "measured":
        return profile, "bundled reference" if profile.kind == "reference" else profile.kind
    return profile, "calibrated on this machine"


def beside(target: TorchTarget | None) -> Profile | None:
    """The newest profile calibrated here that describes ``target``; None without."""
    return None if target is None else profile_of(target, kept())
