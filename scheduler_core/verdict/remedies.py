"""What a finding tries next where no single knob of the candidate answers it: cause or coincidence?

Each names a knob, its direction and the evidence, and is an experiment that parses; None where the arms leave nothing
to turn that way.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.layers import Difference, difference
from scheduler_core.verdict.next_steps import experiment_form, one_layer_at_a_time
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.schema import SUBMIT, NextStep

OVERLAPS = ("execution.overlap", "execution.dual_batch", "pools.move")
"""Parameters by which work of one kind runs beside another."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The arm a finding is about, both arms' resolved policies, and the figures it cites."""

    question: Question
    arm: str
    policy: Mapping[str, Any]
    baseline: Mapping[str, Any]
    evidence: str

    @property
    def change(self) -> Difference:
        """What differs between the arms."""
        return difference(self.baseline, self.policy)


Remedy = Callable[[Asked], NextStep | None]


def fewer_devices(asked: Asked) -> NextStep | None:
    """Half the devices that share each layer: fewer take part in each collective, and each computes more."""
    return _target_knob(asked, "tensor", "fewer devices take part in each collective, and each computes more")


def fewer_expert_places(asked: Asked) -> NextStep | None:
    """Half the places that experts are spread over: each has more experts, so that a hot one weighs less."""
    return _target_knob(asked, "expert", "each place has more experts, so that a hot one weighs less and fewer wait")


def without_overlap(asked: Asked) -> NextStep | None:
    """Beside the candidate the same without its overlap; where that is the baseline, both arms in smaller steps."""
    changed = [name for name in OVERLAPS if name in asked.change.parameters]
    if not changed:
        return _smaller_steps_of_all(asked)
    form = experiment_form(asked.question)
    if form is None:
        return None
    arm = copy.deepcopy(form["arms"][asked.arm])
    for name in changed:
        section, key = name.split(".")
        arm[section][key] = asked.change.parameters[name][0]
    if arm == form["arms"][asked.question.baseline] or asked.change.sections == ["execution"]:
        return _smaller_steps_of_all(asked)
    form["arms"][f"{asked.arm[:40]} without overlap"] = arm
    back = ", ".join(f"{name} back to {asked.change.parameters[name][0] or 'its default'}" for name in changed)
    why = "what the overlap itself is worth is the difference between the two"
    return _step(f"beside {asked.arm}, the same with {back}", why, asked, form)


def tell_the_cause(asked: Asked) -> NextStep | None:
    """Several layers one at a time; one number half way back; else the baseline against itself, for what is noise."""
    several = one_layer_at_a_time(asked.question, asked.change, asked.arm)
    if several is not None:
        layers = ", ".join(asked.change.sections)
        why = f"one of {layers} makes the difference"
        return several.model_copy(update={"because": f"{why}; evidence: {asked.evidence}"})
    return _half_way(asked) or _baseline_again(asked)


def _half_way(asked: Asked) -> NextStep | None:
    """The one changed number turned half way back: a difference that it makes shrinks with it."""
    if len(asked.change.parameters) != 1:
        return None
    ((name, (old, new)),) = asked.change.parameters.items()
    form = experiment_form(asked.question)
    if form is None or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)):
        return None
    middle = (old + new) / 2
    middle = round(middle) if isinstance(new, int) else middle
    if middle in (old, new):
        return None
    section, key = name.split(".")
    arm = copy.deepcopy(form["arms"][asked.arm])
    arm[section][key] = middle
    form["arms"][f"{asked.arm[:50]} half way"] = arm
    word = "raise" if middle > new else "lower"
    why = f"if {name} makes the difference, about half of it is left"
    return _step(f"beside {asked.arm}, {word} {name} from {new:g} half way back to {middle:g}", why, asked, form)


def _baseline_again(asked: Asked) -> NextStep | None:
    form = experiment_form(asked.question)
    if form is None:
        return None
    form["arms"]["baseline again"] = copy.deepcopy(form["arms"][asked.question.baseline])
    changed = ", ".join(asked.change.parameters) or "nothing"
    why = f"a difference as large with {changed} set back to the baseline's would be noise"
    return _step(f"a second arm with {changed} as in {asked.question.baseline}", why, asked, form)


def _smaller_steps_of_all(asked: Asked) -> NextStep | None:
    """Both arms with half the batch: what is hidden is then a larger part of each step, if it ever counts."""
    form = experiment_form(asked.question)
    if form is None:
        return None
    for section, key in (("batch", "token_budget"), ("batch", "size")):
        values: list[Any] = [(policy.get(section) or {}).get(key) for policy in (asked.baseline, asked.policy)]
        if not all(isinstance(value, int) and value > 1 for value in values):
            continue
        arms = (asked.question.baseline, asked.arm)
        form["arms"] = {name: form["arms"][name] for name in arms}
        for name, value in zip(arms, values, strict=True):
            form["arms"][name][section][key] = value // 2
        shown = " and ".join(dict.fromkeys(f"{value} to {value // 2}" for value in values))
        why = "host work and communication are then a larger part of each step: overlap gains there, or nowhere"
        return _step(f"lower {section}.{key} of both arms from {shown}", why, asked, form)
    return None


def _target_knob(asked: Asked, name: str, why: str) -> NextStep | None:
    """The same arms with half of ``target.modelled.parallel.NAME``."""
    form = experiment_form(asked.question)
    modelled = (form or {}).get("target", {}).get("modelled")
    if form is None or modelled is None:
        return None
    parallel = dict(modelled.get("parallel") or {})
    named = re.fullmatch(r"(.+@.+?)x(\d+)", modelled.get("profile") or "")
    if not parallel and named:  # the profile's name says how many devices there are
        modelled["profile"], parallel = named[1], {"tensor": int(named[2])}
    count = parallel.get(name, 1)
    if count < 2 or count % 2:
        return None
    parallel[name] = count // 2
    places = parallel.get("tensor", 1) * parallel.get("data", 1)
    parallel["expert"] = min(parallel.get("expert", 1), places)  # experts are spread over these devices
    modelled["parallel"] = parallel
    title = f"lower target.modelled.parallel.{name} from {count} to {count // 2}"
    return _step(title, why, asked, form)


def _step(title: str, why: str, asked: Asked, form: dict[str, Any]) -> NextStep | None:
    try:
        parse(ExperimentSpec, form)
    except InputError:
        return None  # a step that cannot be run is no step
    return NextStep(title=title, because=f"{why}; evidence: {asked.evidence}", experiment=form, command=SUBMIT)
