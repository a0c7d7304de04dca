"""Who is asking: an API token, or else the browser's session."""

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.accounts import selectors, services
from controlplane.accounts.models import ApiToken, User

KEYWORD = "Bearer"


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer hw_...``.

    A request that carries any Authorization header stands or falls with it: a cookie beside it is ignored, so no
    page of another site can borrow a session by adding a header.
    """

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        header = get_authorization_header(request)
        if not header:
            return None
        try:
            scheme, secret = header.decode("ascii").split()
        except ValueError:
            raise AuthenticationFailed("Write: Authorization: Bearer hw_...") from None
        if scheme.lower() != KEYWORD.lower():
            raise AuthenticationFailed(f"Authorization scheme {scheme[:20]!r} is not known here; use {KEYWORD}.")
        token = selectors.token_by_secret(secret)
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked.")
        services.note_token_use(token)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return f'{KEYWORD} realm="headway"'


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI document names it."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API token, made on the account page."}
