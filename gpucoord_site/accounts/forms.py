"""Forms of a user's own account."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm

from monitor.facts.accounts import ALL_SCOPES, TokenScope, scopes_text

DAYS = (7, 30, 90, 365)
SUBMITTING = scopes_text({TokenScope.READ, TokenScope.SUBMIT})
SCOPES = [
    (scopes_text({TokenScope.READ}), "read"),
    (SUBMITTING, "read, submit jobs and change own jobs"),
    (scopes_text(ALL_SCOPES), "all my rights"),
]


class LoginForm(AuthenticationForm):
    """The password form of the login page."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": "The user name or the password is wrong. Both are case-sensitive."
    }


class OwnPasswordForm(PasswordChangeForm):
    """Changes the password; may revoke the tokens as well."""

    revoke_tokens = forms.BooleanField(required=False, label="Revoke my API tokens too")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The form is not the first thing on its page.
        self.fields["old_password"].widget.attrs.pop("autofocus", None)


class AgentForm(forms.Form):
    """A new agent with its token."""

    name = forms.CharField(max_length=40, label="Name of the agent")
    running_jobs = forms.IntegerField(
        min_value=1, max_value=100, initial=2, label="Running jobs at a time"
    )
    gpu_minutes = forms.IntegerField(
        min_value=0, max_value=1_000_000, initial=240, label="GPU-minutes a day"
    )
    days = forms.TypedChoiceField(
        coerce=int, choices=[(days, f"{days} days") for days in DAYS], initial=30, label="Valid for"
    )

    def clean_name(self) -> str:
        return _printable(self.cleaned_data["name"])


class TokenForm(forms.Form):
    """A new token. Every token expires."""

    name = forms.CharField(max_length=80, required=False, label="Name (optional)")
    days = forms.TypedChoiceField(
        coerce=int, choices=[(days, f"{days} days") for days in DAYS], initial=90, label="Valid for"
    )

    scopes = forms.ChoiceField(
        choices=SCOPES, initial=SUBMITTING, required=False, label="Rights of the token"
    )

    def clean_scopes(self) -> str:
        return self.cleaned_data["scopes"] or SUBMITTING

    def clean_name(self) -> str:
        return _printable(self.cleaned_data["name"])


def _printable(name: str) -> str:
    if not name.isprintable():
        raise forms.ValidationError("Use printable characters only.")
    return name
