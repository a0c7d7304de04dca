"""Buttons that change something: POST only, refusals become messages, and the person lands where it shows."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from controlplane.errors import BrokerDownError, ConflictError, QuotaError
from scheduler_core.types.errors import InputError

REFUSALS = (ConflictError, QuotaError, BrokerDownError, InputError)


def act(request: HttpRequest, do: Callable[[], Any], *, done: str, then: str) -> HttpResponse:
    """Call a service and go to the page ``then`` with what happened as a message. ``PermissionDenied`` passes on."""
    try:
        do()
    except REFUSALS as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)
    return redirect(then)
