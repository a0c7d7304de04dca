"""Whether a policy is what the server really runs: every setting that can be read back is compared."""

from typing import Any

from gpu_runner.server.adapters.flags import KNOBS, settings_of
from gpu_runner.server.adapters.known import Found
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError, Problem


def check_effect(policy: PolicySpec, found: Found) -> list[str]:
    """Sentences about what was confirmed and what could not be.

    Raises:
        InputError: the server says another value than the policy: nothing may be credited to it.
    """
    knobs = KNOBS[found.kind].knobs if found.kind in KNOBS else {}
    stated = {name: value for name, value in settings_of(policy).items() if name in knobs or name in found.settings}
    wrong = [
        Problem(name, f"the policy says {value!r}, the server says {found.settings[name]!r}; it did not take effect")
        for name, value in stated.items()
        if name in found.settings and not _same(found.settings[name], value)
    ]
    if wrong:
        raise InputError(wrong)
    confirmed = [f"{name} {value}" for name, value in stated.items() if name in found.settings]
    unread = [name for name in stated if name not in found.settings]
    notes = []
    if confirmed:
        notes.append(f"read back from the server: {', '.join(confirmed)}")
    if unread:
        notes.append(f"not confirmed, the server does not show it: {', '.join(unread)}")
    return notes


def _same(one: Any, other: Any) -> bool:
    return str(one).lower() == str(other).lower()
