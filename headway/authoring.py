"""A new policy as a package of its own: from a name to a folder that can be installed."""

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from scheduler_core.policies.registry import manifests
from scheduler_core.types.errors import InputError, Problem

_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{name}.py": "policy.py.txt",
    "test_{name}.py": "test_policy.py.txt",
}


def write_package(name: str, parent: Path) -> Path:
    """Write a package with a policy called ``name`` into a new folder of that name in ``parent``; returns the folder.

    Raises:
        InputError: the name is no module's, another policy has it, or the folder is there already.
    """
    _check(name)
    folder = parent / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError([Problem(str(folder), f"cannot be made: {error.strerror}")]) from None
    for target, source in _FILES.items():
        (folder / target.format(name=name)).write_text(rendered(source, name), encoding="utf-8")
    return folder


def rendered(source: str, name: str) -> str:
    """One text of the template for a policy called ``name``."""
    text = (files("headway.policytemplate") / source).read_text(encoding="utf-8")
    return Template(text).substitute(name=name, constant=name.upper())


def _check(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or keyword.iskeyword(name):
        message = f"{name!r} cannot name a module; use small letters, digits and _, beginning with a letter"
        raise InputError([Problem("NAME", message)])
    if name in manifests():
        raise InputError([Problem("NAME", f"a policy called {name!r} exists already")])
