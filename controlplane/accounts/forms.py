"""Forms of the account page."""

from django import forms


class TokenForm(forms.Form):
    """What a person says about a new API token."""

    name = forms.CharField(max_length=100, help_text="Where it is used, such as “release pipeline”.")
    read_only = forms.BooleanField(required=False, label="Read only", help_text="May look, may not change anything.")
    days = forms.IntegerField(
        min_value=1, max_value=366, initial=90, label="Days", help_text="The token ends by itself after this many days."
    )
