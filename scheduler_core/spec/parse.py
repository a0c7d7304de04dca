"""Reading specs from user input: every problem at once, each with its field and what would be right."""

import difflib
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic_core import ErrorDetails

from scheduler_core.spec.base import Spec
from scheduler_core.types.errors import InputError, Problem

SpecT = TypeVar("SpecT", bound=Spec)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def parse(cls: type[SpecT], data: object) -> SpecT:
    """``data`` as a ``cls``; `InputError` lists every problem with its dotted path.

    An unknown key suggests the nearest right one.
    """
    if isinstance(data, cls):
        return data
    if unstorable := list(_unstorable(data, ())):
        raise InputError(unstorable)
    try:
        return cls.model_validate(data)
    except pydantic.ValidationError as error:
        raise InputError(_problems(cls, error)) from None


def _unstorable(data: object, path: tuple[str, ...]) -> Iterator[Problem]:
    """Texts with a character that no database or file can hold: NUL, or half of a surrogate pair."""
    if isinstance(data, str) and (found := _UNSTORABLE.search(data)):
        yield Problem(".".join(path), f"contains the character U+{ord(found[0]):04X}, which cannot be stored")
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _unstorable(key, path)
            yield from _unstorable(value, (*path, str(key)))
    elif isinstance(data, list | tuple):
        for place, value in enumerate(data):
            yield from _unstorable(value, (*path, str(place)))


def _problems(cls: type[Spec], error: pydantic.ValidationError) -> list[Problem]:
    """One problem a field: what each choice of a union wanted is said together."""
    wants: dict[str, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if item["type"] == "too_short" and any(
            depth < len(x["loc"]) and x["loc"][:depth] == item["loc"] for x in items
        ):
            continue  # a wrong member is not counted as one; its own problem says enough
        path, parent, own = _follow(cls, item["loc"])
        message = _message(item)
        if item["type"] == "extra_forbidden" and parent is not None:
            message = _unknown(path[-1], list(parent.model_fields))
        elif item["type"] == "value_error" and own is not None:
            # A rule over several fields starts with the name of the one to change.
            first = re.match(r"[a-z_]+", message)
            if first and first[0] in own.model_fields:
                path.append(first[0])
                message = message.removeprefix(f"{first[0]}: ")
        messages = wants.setdefault(".".join(path), [])
        if message not in messages:
            messages.append(message)
    return [Problem(where, ", or: ".join(messages)) for where, messages in wants.items()]


def _message(item: ErrorDetails) -> str:
    """Pydantic's words, or plainer ones where those speak of Python."""
    value = item["input"]
    if item["type"] == "string_type" and not isinstance(
        value, list | tuple | Mapping | NoneType
    ):  # YAML reads numbers, dates
        return f"is {str(value).lower()}, where a text is expected; put it in quotes"
    if item["type"] in ("model_type", "dict_type"):
        got = "nothing" if value is None else "a list" if isinstance(value, list | tuple) else repr(value)[:40]
        return f"keys and values are expected here, got {got}"
    return item["msg"].removeprefix("Value error, ")


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")


def _follow(
    cls: type[Spec], loc: tuple[int | str, ...]
) -> tuple[list[str], type[pydantic.BaseModel] | None, type[pydantic.BaseModel] | None]:
    """The dotted path a user knows for a location, the model that holds its last part, and the model it leads to.

    Pydantic's own marks (which choice of a union, key or value of a mapping) are left out.
    """
    path: list[str] = []
    here: Any = cls
    parent: type[pydantic.BaseModel] | None = None
    for part in loc:
        if part == "[key]":
            return path, parent, None
        if isinstance(here, type) and issubclass(here, pydantic.BaseModel):
            parent = here
            path.append(str(part))
            found = here.model_fields.get(str(part))
            here = _plain(found.annotation) if found else None
        elif get_origin(here) in (dict, list, tuple):
            path.append(str(part))
            inner = [item for item in get_args(here) if item is not Ellipsis]
            here = _plain(inner[-1])
        else:
            break
    own = here if isinstance(here, type) and issubclass(here, pydantic.BaseModel) else None
    return path, parent, own


def _plain(annotation: Any) -> Any:
    """An annotation without ``Annotated`` and without the None of ``X | None``."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        choices = [choice for choice in get_args(annotation) if choice is not NoneType]
        return _plain(choices[0]) if len(choices) == 1 else annotation
    return annotation
