"""The form with which operators set the mode."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import forms

from scheduler.models import ModeState
from scheduler.policy.mode import Mode

AUTOMATIC = "automatic"
CHOICES = [
    (AUTOMATIC, "Automatic"),
    (Mode.COOPERATIVE.value, "Cooperative"),
    (Mode.DEFENSIVE.value, "Defensive"),
]
HOURS = [(1, "1 h"), (4, "4 h"), (12, "12 h"), (24, "1 day"), (168, "7 days")]


class ModeForm(forms.Form):
    """`hours` counts for what is not automatic."""

    host = forms.CharField(required=False, max_length=100, widget=forms.HiddenInput)
    mode = forms.ChoiceField(choices=CHOICES, label="Mode")
    hours = forms.TypedChoiceField(
        choices=HOURS, coerce=int, initial=4, label="For", required=False, empty_value="4"
    )

    def clean_host(self) -> str:
        host: str = self.cleaned_data["host"]
        if host and not ModeState.objects.filter(host=host).exists():
            raise forms.ValidationError("There is no such host.")
        return host

    def chosen(self) -> Mode | None:
        mode = self.cleaned_data["mode"]
        return None if mode == AUTOMATIC else Mode(mode)

    def until(self, now: datetime) -> datetime | None:
        if self.chosen() is None:
            return None
        return now + timedelta(hours=int(self.cleaned_data["hours"]))
