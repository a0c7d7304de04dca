"""Keyset pages: 50 rows by default, 200 at most; a page costs the same at the end of a list as at its start."""

from typing import Any

from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from scheduler_core.types.errors import InputError, Problem

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


def limit_of(request: Request, *, default: int = DEFAULT_LIMIT, maximum: int = MAX_LIMIT) -> int:
    """The ``limit`` asked for; `InputError` when it is no whole number within bounds."""
    return number_of(request, "limit", default=default, low=1, high=maximum)


def number_of(request: Request, name: str, *, default: int, low: int, high: int) -> int:
    """A whole number of the query string, within bounds."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit()) or len(given) > 18 or not low <= int(given) <= high:
        raise InputError([Problem(name, f"give a whole number from {low} to {high}")])
    return int(given)


class Keyset(CursorPagination):
    """Newest first; ``next`` and ``previous`` are whole URLs, absent at the ends."""

    page_size = DEFAULT_LIMIT
    max_page_size = MAX_LIMIT
    page_size_query_param = "limit"
    ordering = "-created_at"

    def get_page_size(self, request: Request) -> int:
        return limit_of(request)

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        described: dict[str, Any] = super().get_paginated_response_schema(schema)
        for name in ("next", "previous"):
            described["properties"][name] = {"type": ["string", "null"], "format": "uri"}
        return described
