"""The form to request a time window."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib.auth.models import Group, User
from django.core.exceptions import NON_FIELD_ERRORS
from django.http import QueryDict
from django.utils import timezone

from monitor.facts.input_rules import character_problem
from monitor.models import Gpu
from scheduler.facts.model_services import OWNER
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy import DAYS, coming, current, skipped_time
from scheduler.models import TimeWindow

DAY_CHOICES = [(str(number), name) for number, name in enumerate(DAYS)]
MOST_OPEN = 20
LONGEST_REASON = 1000
CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
SKIPPED = (
    "{at:%H:%M} does not exist on {day} {at:%B %Y} in {zone}: clocks go forward then. "
    "Choose another time or other days."
)


class WindowForm(forms.ModelForm):  # type: ignore[type-arg]
    """Users request for themselves and their groups; operators for all users."""

    holder = forms.ChoiceField(label="For")
    days = forms.MultipleChoiceField(choices=DAY_CHOICES, widget=forms.CheckboxSelectMultiple)
    gpus = forms.MultipleChoiceField(
        label="GPUs", required=False, widget=forms.CheckboxSelectMultiple
    )
    zone = forms.CharField(label="Time zone")
    kept = forms.ChoiceField(
        label="Type",
        choices=[
            ("yes", "exclusive: the GPUs are kept free for the holder"),
            ("no", "limit: the holder uses these GPUs only in this time"),
        ],
        widget=forms.RadioSelect,
        initial="yes",
    )

    reason = forms.CharField(
        label="Reason",
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
        "gpus": "Default: all GPUs.",
        "end": "If this is earlier than the start, the window ends on the next day.",
        "first_day": "Default: today.",
        "last_day": "Default: no end.",
        "reason": "Only you and the operators can read it.",
    }

    def __init__(self, *args: Any, person: User, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._person = person
        self._now = now
        models = _model_services()
        self.fields["holder"].choices = [  # type: ignore[attr-defined]
            (key, name) for key, name in self._holders() if key not in models
        ]
        if self.is_bound and self.data.get("holder") in models:
            self.fields["holder"].error_messages["invalid_choice"] = window_rows.OF_MODELS
        self.fields["gpus"].choices = [  # type: ignore[attr-defined]
            (gpu.uuid, f"GPU {gpu.index}{_of(gpu)}") for gpu in _gpus()
        ]
        self.fields["zone"].initial = timezone.get_current_timezone_name()
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

    def clean_share_pct(self) -> float:
        if not str(self.data.get("share_pct", "")).isascii():
            raise forms.ValidationError("Write the number in ASCII digits, such as 50.")
        share: float = self.cleaned_data["share_pct"]
        return share

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"]
        if problem := character_problem(reason, lines=True):
            raise forms.ValidationError(problem)
        return reason

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        first, last = cleaned.get("first_day"), cleaned.get("last_day")
        if first and last and last < first:
            self.add_error("last_day", "The last day must not be before the first day.")
        if window_rows.open_requests(self._person) >= MOST_OPEN:
            raise forms.ValidationError(
                f"You have {MOST_OPEN} pending requests. Withdraw one first."
            )
        return cleaned

    def _post_clean(self) -> None:
        """Check the dates here: the row exists only after the fields are cleaned."""
        super()._post_clean()  # type: ignore[misc]
        if not self.errors:
            window = window_rows.fact(self.window())
            if at := skipped_time(window, self._now):
                name = "start" if at.time() == window.start else "end"
                self.add_error(name, SKIPPED.format(at=at, day=at.day, zone=window.zone))
            elif coming(window, self._now) is None and current(window, self._now) is None:
                self.add_error("last_day", "The time window does not occur before this day.")

    def mistakes(self) -> list[tuple[str, str]]:
        """Errors by REST field: `group` is the holder, `window` the form as a whole."""
        names = {"holder": "group", NON_FIELD_ERRORS: "window"}
        return [
            (names.get(name, name), " ".join(map(str, errors)))
            for name, errors in self.errors.items()
        ]

    def store(self, now: datetime) -> TimeWindow:
        """Request the window of a valid form; that of an operator needs no approval.

        Raises UnableToApprove.
        """
        if window_rows.may_decide(self._person):
            return window_rows.add(self.window(), self._person, now)
        return window_rows.ask(self.window(), self._person, now)

    def window(self) -> TimeWindow:
        """The unsaved row of a valid form."""
        row: TimeWindow = self.save(commit=False)
        kind, _, key = self.cleaned_data["holder"].partition(":")
        row.user = User.objects.get(pk=key) if kind == "user" else None
        row.group = Group.objects.get(pk=key) if kind == "group" else None
        row.days = sorted(int(day) for day in self.cleaned_data["days"])
        row.gpu_uuids = self.cleaned_data["gpus"]
        row.zone = self.cleaned_data["zone"]
        row.kept = self.cleaned_data["kept"] == "yes"
        return row


def prefilled(query: QueryDict) -> dict[str, Any]:
    """Initial values from an address, such as a selection in the calendar. Others are ignored."""
    uuids = {gpu.uuid for gpu in _gpus()}
    chosen: dict[str, Any] = {
        "days": [day for day in query.getlist("days") if day in dict(DAY_CHOICES)],
        "gpus": [uuid for uuid in query.getlist("gpus") if uuid in uuids],
    }
    chosen |= {name: query.get(name, "") for name in ("start", "end")}
    chosen |= {name: "" for name in ("start", "end") if not CLOCK.fullmatch(chosen[name])}
    return {name: value for name, value in chosen.items() if value}


def _model_services() -> list[str]:
    """The key of the user that owns the jobs of model services; empty if there is none."""
    rows = User.objects.filter(username=OWNER)
    return [f"user:{pk}" for pk in rows.values_list("pk", flat=True)]


def _gpus() -> list[Gpu]:
    return list(Gpu.objects.order_by("host", "index"))


def _of(gpu: Gpu) -> str:
    """The host in words, if there are several hosts."""
    several = Gpu.objects.values("host").distinct().count() > 1
    return f" on {gpu.host}" if several else ""
