"""What a request may do at all; who may change which object is `controlplane.access`."""

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.access import may_see
from controlplane.accounts.models import ApiToken

if TYPE_CHECKING:  # rest_framework.views itself loads this module, named in the settings
    from rest_framework.views import APIView


class SignedIn(BasePermission):
    """An active account."""

    message = "Sign in, or send an API token."

    def has_permission(self, request: Request, view: "APIView") -> bool:
        return may_see(request.user)


class TokenMayWrite(BasePermission):
    """A read-only token only looks, whatever the verb's name is."""

    message = "This token is read-only."
    code = "read_only_token"

    def has_permission(self, request: Request, view: "APIView") -> bool:
        read_only = isinstance(request.auth, ApiToken) and request.auth.read_only
        return not read_only or request.method in SAFE_METHODS
