"""A policy with some parameters changed: what guided stages and searches try."""

import copy
from collections.abc import Mapping
from typing import Any

from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec


def turned(base: PolicySpec, change: Mapping[str, Any]) -> PolicySpec:
    """``base`` with dotted parameters set, such as ``batch.token_budget`` or ``pools.hold.GROUP``.

    ``policy`` names another preset. Another preset starts from its own defaults, so nothing of ``base`` is kept then.

    Raises:
        InputError: a parameter is unknown or a value does not fit it.
    """
    form = copy.deepcopy(base.canonical())
    if "policy" in change and change["policy"] != form["policy"]:
        form = {"policy": change["policy"]}
    for name, value in change.items():
        *sections, key = name.split(".")
        if sections:
            _inside(form, sections)[key] = value
    return parse(PolicySpec, form)


def _inside(form: dict[str, Any], sections: list[str]) -> dict[str, Any]:
    """The innermost of nested ``sections``, made where there is none."""
    for section in sections:
        if form.get(section) is None:
            form[section] = {}
        form = form[section]
    return form
