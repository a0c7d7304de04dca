"""Reading names and specs the one way, for services."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from scheduler_core.spec.base import Name
from scheduler_core.types.errors import InputError, Problem

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def parse_name(value: Any, where: str = "name") -> str:
    """``value`` as a usable name; `InputError` at ``where`` else."""
    try:
        return _NAME.validate_python(value)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError([Problem(where, message)]) from None
