"""Lists whose whole state is in the URL: search, filters, page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict

PAGE_ROWS = 50
MAX_PAGE = 10_000

ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True)
class Filter:
    """A filter: URL parameter, label, choices, and for each value the condition it stands for."""

    name: str
    label: str
    conditions: dict[str, tuple[str, Q]]
    chosen: str = ""

    @property
    def choices(self) -> list[tuple[str, str]]:
        """Values with their labels."""
        return [(value, label) for value, (label, _) in self.conditions.items()]


@dataclass(frozen=True)
class Chip:
    """An active filter in words, and the URL without it."""

    text: str
    href: str


@dataclass
class Listing(Generic[ModelT]):
    """One page of rows."""

    rows: Sequence[ModelT]
    search: str
    filters: list[Filter]
    chips: list[Chip] = field(default_factory=list)
    earlier: str = ""
    later: str = ""
    clear: str = "?"


def equals(name: str, label: str, lookup: str, choices: Iterable[tuple[str, Any]]) -> Filter:
    """A filter on a field's value."""
    return Filter(name, label, {value: (str(text), Q(**{lookup: value})) for value, text in choices})


def listing(
    request: HttpRequest, queryset: QuerySet[ModelT], *, search: Sequence[str], filters: Sequence[Filter]
) -> Listing[ModelT]:
    """The page of ``queryset`` that the URL asks for; values that mean nothing are ignored."""
    params = request.GET
    text = params.get("q", "").strip()[:100]
    if text:
        found = Q()
        for lookup in search:
            found |= Q(**{f"{lookup}__icontains": text})
        queryset = queryset.filter(found)
    chosen = []
    for item in filters:
        value = params.get(item.name, "")
        value = value if value in item.conditions else ""
        chosen.append(Filter(item.name, item.label, item.conditions, value))
        if value:
            queryset = queryset.filter(item.conditions[value][1])
    page = _page(params)
    start = (page - 1) * PAGE_ROWS
    rows = list(queryset[start : start + PAGE_ROWS + 1])
    answer = Listing(rows[:PAGE_ROWS], text, chosen, chips=_chips(params, text, chosen))
    answer.later = _href(params, page="" if page == 2 else str(page - 1)) if page > 1 else ""
    answer.earlier = _href(params, page=str(page + 1)) if len(rows) > PAGE_ROWS else ""
    return answer


def _page(params: QueryDict) -> int:
    text = params.get("page", "1")
    return min(max(1, int(text)), MAX_PAGE) if text.isdecimal() and len(text) < 7 else 1


def _chips(params: QueryDict, text: str, filters: Sequence[Filter]) -> list[Chip]:
    chips = [Chip(f"“{text}”", _href(params, q="", page=""))] if text else []
    for item in filters:
        if item.chosen:
            words = f"{item.label}: {item.conditions[item.chosen][0]}"
            chips.append(Chip(words, _href(params, page="", **{item.name: ""})))
    return chips


def _href(params: QueryDict, **changes: str) -> str:
    changed = params.copy()
    for name, value in changes.items():
        if value:
            changed[name] = value
        else:
            changed.pop(name, None)
    return f"?{changed.urlencode()}"
