"""References to saved specs: ``workload: {use: wkv_...}`` and ``arms: {name: {use: plv_...}}`` in an experiment.

An experiment may name what is already saved instead of repeating it. `substitute` replaces every reference by the
saved spec before the experiment is parsed, so an `ExperimentSpec` is always complete in itself and means the same
after its sources were edited.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from scheduler_core.spec.base import Spec
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError, Problem

Lookup = Callable[[str], dict[str, Any] | None]


class Saved(Spec):
    """A saved spec, by id."""

    use: str = Field(description="Id of a saved workload version (wkv_...) or policy version (plv_...).")


def substitute(data: object, *, workload: Lookup, policy: Lookup) -> tuple[object, dict[str, str]]:
    """``data`` with each reference replaced, and which id was used where (``workload``, ``arms.<name>``).

    The look-ups return a saved spec, or None for an id that does not exist or may not be seen; the resulting
    `InputError` does not tell the two apart.
    """
    if not isinstance(data, Mapping):
        return data, {}
    filled, used, problems = dict(data), dict[str, str](), list[Problem]()

    def fill(where: str, value: object, lookup: Lookup) -> object:
        if not isinstance(value, Mapping) or "use" not in value:
            return value
        try:
            used[where] = parse(Saved, value).use
        except InputError as error:
            problems.extend(Problem(f"{where}.{item.where}", f"{item.message} (beside use)") for item in error.problems)
            return value
        found = lookup(used[where])
        if found is None:
            problems.append(Problem(f"{where}.use", f"there is no saved version {used[where]!r} here"))
        return found

    filled["workload"] = fill("workload", data.get("workload"), workload)
    if filled["workload"] is None:
        del filled["workload"]
    if isinstance(data.get("arms"), Mapping):
        filled["arms"] = {name: fill(f"arms.{name}", arm, policy) for name, arm in data["arms"].items()}
    if problems:
        raise InputError(problems)
    return filled, used
