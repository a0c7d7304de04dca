"""Differences between two specs, as rows of dotted paths."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from django.http import HttpRequest

MISSING = object()


class Numbered(Protocol):
    """A version with its number."""

    number: int


VersionT = TypeVar("VersionT", bound=Numbered)


def other_version(request: HttpRequest, versions: list[VersionT], number: int) -> VersionT | None:
    """The version to compare ``number`` with: as ``?against=`` says, else the one before."""
    text = request.GET.get("against", "")
    wanted = int(text) if text.isdecimal() and len(text) < 7 else number - 1
    return next((item for item in versions if item.number == wanted and wanted != number), None)


@dataclass(frozen=True)
class Change:
    """A path whose value differs; an empty text means that it is not there."""

    path: str
    was: str
    now: str


def differences(was: Any, now: Any) -> list[Change]:
    """Where two plain values differ, in order of path."""
    old, new = dict(_leaves("", was)), dict(_leaves("", now))
    paths = sorted(old.keys() | new.keys())
    return [
        Change(path, _text(old.get(path, MISSING)), _text(new.get(path, MISSING)))
        for path in paths
        if old.get(path, MISSING) != new.get(path, MISSING)
    ]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}.{index}", item)
    elif value is not None:
        yield path, value


def _text(value: Any) -> str:
    if value is MISSING:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value)
