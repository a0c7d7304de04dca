"""Content Security Policy of the pages, with the exceptions that foreign pages need."""

from csp.constants import SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.middleware import CSPMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

# The admin's theme evaluates Alpine expressions and writes style attributes.
_ADMIN = {"script-src": [SELF, UNSAFE_INLINE, UNSAFE_EVAL], "style-src": [SELF, UNSAFE_INLINE]}
_PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class PagePolicy(CSPMiddleware):
    """The strict policy everywhere, loosened for the admin alone, and a permissions policy."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Set both headers."""
        if request.path_info.startswith("/admin/") and not hasattr(response, "_csp_replace"):
            response._csp_replace = _ADMIN  # type: ignore[attr-defined]
        if isinstance(response, HttpResponse):
            response.headers.setdefault("Permissions-Policy", _PERMISSIONS)
        return super().process_response(request, response)
