"""Forms of signing in and of the account page."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from controlplane.accounts import throttle


class SignInForm(AuthenticationForm):
    """Name and password; after too many failures the password is not even looked at."""

    def clean(self) -> dict[str, Any]:
        username = self.cleaned_data.get("username") or ""
        address = _address(self.request)
        if throttle.is_blocked(username, address):
            minutes = throttle.WINDOW_S // 60
            raise ValidationError(f"Too many failed attempts. Try again in {minutes} minutes.", code="blocked")
        try:
            values = super().clean()
        except ValidationError:
            throttle.note_failure(username, address)
            raise
        throttle.forget_failures(username, address)
        return dict(values)


def _address(request: Any) -> str:
    """The peer's address; forwarded headers are not trusted, anyone can write them."""
    return "" if request is None else str(request.META.get("REMOTE_ADDR", ""))


class TokenForm(forms.Form):
    """What a person says about a new API token."""

    name = forms.CharField(max_length=100, help_text="Where it is used, such as “release pipeline”.")
    read_only = forms.BooleanField(required=False, label="Read only", help_text="May look, may not change anything.")
    days = forms.IntegerField(
        min_value=1, max_value=366, initial=90, label="Days", help_text="The token ends by itself after this many days."
    )
