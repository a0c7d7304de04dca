"""Names and stored specs, the same for services, pages and admin."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError, Problem

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def parse_name(value: Any, where: str = "name") -> str:
    """``value`` as a usable name; `InputError` at ``where`` else."""
    try:
        return _NAME.validate_python(value)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError([Problem(where, message)]) from None


def brief(model: type[Spec], stored: dict[str, Any]) -> dict[str, Any]:
    """A stored spec without what are defaults anyway, as a person would have written it.

    One that is no valid ``model`` any more is given as it was stored.
    """
    try:
        read = parse(model, stored)
    except InputError:
        return dict(stored)
    return read.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
