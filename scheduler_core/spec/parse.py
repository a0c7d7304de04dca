"""Reading specs from user input: every problem at once, each with its field and what would be right."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic
import yaml

from scheduler_core.spec.base import Spec
from scheduler_core.types.errors import InputError, Problem

SpecT = TypeVar("SpecT", bound=Spec)


def parse(cls: type[SpecT], data: object) -> SpecT:
    """``data`` as a ``cls``; `InputError` lists every problem with its dotted path.

    An unknown key suggests the nearest right one.
    """
    if isinstance(data, cls):
        return data
    try:
        return cls.model_validate(data)
    except pydantic.ValidationError as error:
        raise InputError([_problem(cls, item) for item in error.errors(include_url=False)]) from None


def parse_yaml(cls: type[SpecT], text: str) -> SpecT:
    """A spec written as YAML or JSON text."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        raise InputError([Problem(where, f"not readable as YAML: {getattr(error, 'problem', error)}")]) from None
    if not isinstance(data, Mapping):
        raise InputError([Problem("", f"expected a mapping of keys and values, got {type(data).__name__}")])
    return parse(cls, data)


def _problem(cls: type[Spec], item: Any) -> Problem:
    path = [str(part) for part in item["loc"]]
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = _known_keys(cls, item["loc"][:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        message = "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
    return Problem(".".join(path), message)


def _known_keys(cls: type[Spec], loc: tuple[int | str, ...]) -> list[str]:
    """Field names of the model found by following ``loc`` from ``cls``."""
    here: Any = cls
    for part in loc:
        if isinstance(here, type) and issubclass(here, pydantic.BaseModel) and part in here.model_fields:
            here = _model_in(here.model_fields[str(part)].annotation)
    return list(here.model_fields) if isinstance(here, type) and issubclass(here, pydantic.BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The first model class inside an annotation such as ``dict[str, Tier] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
