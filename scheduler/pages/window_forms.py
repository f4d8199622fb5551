"""The form to ask for an agreed time."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.contrib.auth.models import Group, User

from monitor.models import Gpu
from scheduler import windows
from scheduler.models import TimeWindow
from scheduler.policy.calendar import DAYS, coming, current

DAY_CHOICES = [(str(number), name) for number, name in enumerate(DAYS)]
MOST_OPEN = 20
LONGEST_REASON = 1000


class WindowForm(forms.ModelForm):  # type: ignore[type-arg]
    """Who asks may ask for themselves and for their groups; operators for everybody."""

    holder = forms.ChoiceField(label="For")
    days = forms.MultipleChoiceField(choices=DAY_CHOICES, widget=forms.CheckboxSelectMultiple)
    gpus = forms.MultipleChoiceField(
        label="GPUs", required=False, widget=forms.CheckboxSelectMultiple
    )
    zone = forms.CharField(label="Time zone")
    kept = forms.ChoiceField(
        label="What it means",
        choices=[("yes", "the GPUs are kept for me then"), ("no", "I use the GPUs only then")],
        widget=forms.RadioSelect,
        initial="yes",
    )

    reason = forms.CharField(
        label="What for",
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.Textarea({"rows": 2}),
    )

    class Meta:
        model = TimeWindow
        fields = ("start", "end", "share_pct", "first_day", "last_day", "reason")
        widgets = {
            "start": forms.TimeInput({"type": "time"}, format="%H:%M"),
            "end": forms.TimeInput({"type": "time"}, format="%H:%M"),
            "first_day": forms.DateInput({"type": "date"}),
            "last_day": forms.DateInput({"type": "date"}),
            "share_pct": forms.NumberInput({"min": 1, "max": 100, "step": 1}),
        }
        labels = {
            "start": "From",
            "end": "To",
            "share_pct": "Share of each GPU (%)",
            "first_day": "First day",
            "last_day": "Last day",
        }

    HINTS = {
        "gpus": "None chosen: all of them.",
        "end": "Not after the start: on the next day.",
        "first_day": "Left empty: from now on.",
        "last_day": "Left empty: until it is withdrawn.",
        "reason": "Who decides reads it.",
    }

    def __init__(self, *args: Any, person: User, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._person = person
        self._now = now
        self.fields["holder"].choices = self._holders()  # type: ignore[attr-defined]
        self.fields["gpus"].choices = [  # type: ignore[attr-defined]
            (gpu.uuid, f"GPU {gpu.index}{_of(gpu)}") for gpu in _gpus()
        ]
        self.fields["zone"].initial = settings.TIME_ZONE
        for name, hint in self.HINTS.items():
            self.fields[name].help_text = hint

    def _holders(self) -> list[tuple[str, str]]:
        person = self._person
        groups = Group.objects.all() if person.is_staff else person.groups.all()
        people = User.objects.filter(is_active=True) if person.is_staff else [person]
        me = (f"user:{person.pk}", "me")
        others = [(f"user:{user.pk}", user.username) for user in people if user.pk != person.pk]
        return [me, *((f"group:{g.pk}", f"the group {g.name}") for g in groups), *others]

    def clean_zone(self) -> str:
        zone: str = self.cleaned_data["zone"].strip()
        if zone not in available_timezones():
            raise forms.ValidationError("Write a time zone such as Europe/Berlin or UTC.")
        return zone

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        first, last = found.get("first_day"), found.get("last_day")
        if first and last and last < first:
            self.add_error("last_day", "It must not be before the first day.")
        if windows.open_requests(self._person) >= MOST_OPEN:
            raise forms.ValidationError(
                f"You have asked for {MOST_OPEN} windows that nobody has decided on yet; "
                "withdraw one first."
            )
        return found

    def _post_clean(self) -> None:
        """Only now the row is there to be asked when it comes."""
        super()._post_clean()  # type: ignore[misc]
        if not self.errors:
            window = windows.fact(self.asked())
            if coming(window, self._now) is None and current(window, self._now) is None:
                self.add_error("last_day", "Until then the time never comes.")

    def mistakes(self) -> str:
        """All that is wrong, in one text."""
        told = {name: " ".join(str(e) for e in found) for name, found in self.errors.items()}
        return " ".join(f"{name}: {text}" for name, text in told.items())

    def asked(self) -> TimeWindow:
        """The row, not saved yet; of a valid form."""
        row: TimeWindow = self.save(commit=False)
        kind, _, key = self.cleaned_data["holder"].partition(":")
        row.user = User.objects.get(pk=key) if kind == "user" else None
        row.group = Group.objects.get(pk=key) if kind == "group" else None
        row.days = sorted(int(day) for day in self.cleaned_data["days"])
        row.gpu_uuids = self.cleaned_data["gpus"]
        row.zone = self.cleaned_data["zone"]
        row.kept = self.cleaned_data["kept"] == "yes"
        return row


def _gpus() -> list[Gpu]:
    return list(Gpu.objects.order_by("host", "index"))


def _of(gpu: Gpu) -> str:
    """The host too, where there are several."""
    several = Gpu.objects.values("host").distinct().count() > 1
    return f" on {gpu.host}" if several else ""
