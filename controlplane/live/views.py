"""Polling and back-fill over HTTP: the same messages as the socket, and reduced series for charts."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBadRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.live import series, snapshots
from controlplane.runs import selectors as runs


def _whole(request: HttpRequest, name: str, default: int, most: int) -> int:
    """A query parameter as a whole number from 0 to ``most``; ``ValueError`` says what would be right."""
    text = request.GET.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def _seconds(request: HttpRequest, name: str) -> float | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number of seconds") from None


@never_cache
@login_required
@require_GET
def run(request: HttpRequest, run_id: str) -> HttpResponseBase:
    """The next message of a run after ``after`` of ``attempt``."""
    try:
        attempt, after = _whole(request, "attempt", 0, 2**31 - 1), _whole(request, "after", 0, 2**31 - 1)
    except ValueError as error:
        return HttpResponseBadRequest(str(error), content_type="text/plain")
    message = snapshots.run_message(request.user, run_id, attempt=attempt or None, after=after)
    if message is None:
        raise Http404
    return JsonResponse(message)


@never_cache
@login_required
@require_GET
def experiment(request: HttpRequest, experiment_id: str) -> HttpResponseBase:
    """The present message of an experiment."""
    message = snapshots.experiment_message(request.user, experiment_id)
    if message is None:
        raise Http404
    return JsonResponse(message)


@never_cache
@login_required
@require_GET
def run_series(request: HttpRequest, run_id: str) -> HttpResponseBase:
    """Series of an attempt between ``from`` and ``to`` (seconds), reduced for a chart ``width`` pixels wide."""
    found = get_object_or_404(runs.visible_to(request.user), pk=run_id)
    try:
        attempt = _whole(request, "attempt", found.attempt, 2**31 - 1)
        width = max(1, _whole(request, "width", series.DEFAULT_WIDTH, series.MAX_WIDTH))
        start_s, end_s = _seconds(request, "from"), _seconds(request, "to")
        keys = tuple(key for key in request.GET.get("keys", "").split(",") if key) or series.KEYS
        if unknown := sorted({key for key in keys if not series.known(key)}):
            raise ValueError(f"unknown series {', '.join(unknown)}; known: {', '.join(series.KEYS)}")
    except ValueError as error:
        return HttpResponseBadRequest(str(error), content_type="text/plain")
    answer = series.reduce(series.iter_samples(found, attempt, start_s, end_s), keys, width)
    return JsonResponse({"run": run_id, "attempt": attempt, "width": width, **answer})
