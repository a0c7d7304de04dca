"""How a server target is reached when it is played from here: its address, a key of the environment, a template."""

import os
from pathlib import Path

from headway import specfile
from headway.config import config_file
from scheduler_core.spec.launch import LaunchFile, LaunchTemplate
from scheduler_core.spec.parse import parse
from scheduler_core.spec.server import Access, ServerTarget
from scheduler_core.types.errors import InputError, Problem

KEY_VARIABLE = "HEADWAY_API_KEY"
LAUNCH_VARIABLE = "HEADWAY_LAUNCH_FILE"


def local_access(target: ServerTarget, arm: str) -> Access:
    """How ``arm`` of a server target is reached from this machine.

    Raises:
        InputError: the deployment is an endpoint, which a server keeps, or a template that this machine lacks.
    """
    where = f"target.server.arms.{arm}" if arm in target.arms else "target.server"
    deployment = target.deployment(arm)
    if deployment.endpoint is not None:
        problem = f"endpoint {deployment.endpoint!r} is kept by a server; write its url here, its key in {KEY_VARIABLE}"
        raise InputError([Problem(f"{where}.endpoint", problem)])
    key = os.environ.get(KEY_VARIABLE, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if deployment.launch is None:
        return Access(url=deployment.url, headers=headers)
    return Access(headers=headers, launch=_template(deployment.launch, f"{where}.launch"))


def _template(name: str, where: str) -> LaunchTemplate:
    path = Path(os.environ.get(LAUNCH_VARIABLE) or config_file().with_name("launch.yaml")).expanduser()
    if not path.is_file():
        problem = f"there are no launch templates here: no file {path} ({LAUNCH_VARIABLE} names another)"
        raise InputError([Problem(where, problem)])
    templates = parse(LaunchFile, specfile.read(path)).templates
    if name not in templates:
        known = ", ".join(templates) or "none"
        raise InputError([Problem(where, f"{path} has no template {name!r}; it has {known}")])
    return templates[name]
