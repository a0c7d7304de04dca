"""Signing in and out, one-time links, and a person's own account page."""

from datetime import timedelta

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import NON_FIELD_ERRORS
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render, resolve_url
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts import selectors, services, throttle
from controlplane.accounts.forms import SignInForm, TokenForm
from controlplane.accounts.models import User

_BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignIn(LoginView):
    """Sign in with name and password; guessing is slowed down."""

    template_name = "accounts/login.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        if form.has_error(NON_FIELD_ERRORS, code="blocked"):
            response.status_code = 429
            response["Retry-After"] = str(throttle.WINDOW_S)
        return response


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Ask on GET, sign in on POST: a browser that fetches the link ahead of the click must not use it up."""
    if request.method == "POST":
        user = services.redeem_sign_in_link(secret)
        if user is not None:
            login(request, user, backend=_BACKEND)
            return redirect(_next_path(request))
    else:
        user = selectors.user_of_link(secret)
    # No stricter Referrer-Policy than the site's same-origin: under no-referrer browsers post "Origin: null".
    return render(request, "accounts/sign_in_link.html", {"person": user}, status=200 if user else 410)


def _next_path(request: HttpRequest) -> str:
    """Where ``next`` leads if that is on this site, else the first page."""
    wanted = request.GET.get("next", "")
    if url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        return wanted
    return resolve_url("home")


@never_cache
@login_required
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """A person's tokens; a new one is shown once, in the answer to the form that made it."""
    assert isinstance(request.user, User)
    form = TokenForm(request.POST or None)
    issued = None
    if request.method == "POST" and form.is_valid():
        issued = services.create_token(
            user=request.user,
            name=form.cleaned_data["name"],
            read_only=form.cleaned_data["read_only"],
            expires_at=timezone.now() + timedelta(days=form.cleaned_data["days"]),
        )
        form = TokenForm()
    context = {"form": form, "issued": issued, "tokens": selectors.tokens_of(request.user), "now": timezone.now()}
    return render(request, "accounts/account.html", context)


@login_required
@require_POST
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke one of one's own tokens."""
    assert isinstance(request.user, User)
    token = get_object_or_404(selectors.tokens_of(request.user), pk=pk)
    services.revoke_token(token=token)
    messages.success(request, f"Token “{token.name}” no longer works.")
    return redirect("account")
