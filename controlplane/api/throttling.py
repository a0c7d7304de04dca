"""Rate limits per person: generous for reading, tighter for changing."""

import logging
from typing import TYPE_CHECKING

from django.conf import settings
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import UserRateThrottle

if TYPE_CHECKING:  # rest_framework.views itself loads this module, named in the settings
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)


class _Limit(UserRateThrottle):
    """Counts in the cache; while that cannot be reached requests pass, because reading state must not depend on it."""

    def get_rate(self) -> str:
        return str(settings.API_RATES[str(self.scope)])

    def allow_request(self, request: Request, view: "APIView") -> bool:
        try:
            return super().allow_request(request, view)
        except Exception:
            logger.warning("rate limit: the cache cannot be reached", exc_info=True)
            return True


class ReadLimit(_Limit):
    """All requests of a person, or of an address without one."""

    scope = "all"


class ChangeLimit(_Limit):
    """Requests that change something."""

    scope = "change"

    def allow_request(self, request: Request, view: "APIView") -> bool:
        return request.method in SAFE_METHODS or super().allow_request(request, view)
