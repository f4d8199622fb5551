"""Pages: the list of policies in force, and the form of one policy for operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.catalogue import PROFILE_WORDS
from monitor.thresholds import rows
from monitor.thresholds.policy import Setting, Threshold, number

BACK = "back:"
LONGEST_SEARCH = 80


@require_safe
def rules(request: HttpRequest) -> HttpResponse:
    """All policies in force, or those that match `q`; first what differs from the defaults."""
    in_force = rows.ThresholdsInForce()
    wanted = request.GET.get("q", "").strip()[:LONGEST_SEARCH]
    topics = {
        topic: shown
        for topic, names in rows.by_topic().items()
        if (shown := [p for name in names if (p := _policy(name, in_force, wanted))["settings"]])
    }
    changed = [
        {"name": policy["name"], "title": policy["title"], "setting": setting}
        for policies in topics.values()
        for policy in policies
        for setting in policy["settings"]
        if not setting.is_shipped or setting.hosts
    ]
    profile = rows.profile()
    context = {
        "topics": topics,
        "changed": changed,
        "retired": rows.retired_values() if request.user.is_staff else [],
        "q": wanted,
        "profile": profile,
        "profile_words": PROFILE_WORDS[profile],
    }
    return render(request, "monitor/rules.html", context)


def _policy(name: str, in_force: rows.ThresholdsInForce, wanted: str) -> dict[str, Any]:
    """A policy of the page, with those of its settings that match."""
    title, about = rows.title(name), rows.about(name)
    words = wanted.lower().split()
    settings = [
        setting
        for setting in in_force.settings(name)
        if all(word in _searched(name, title, about, setting) for word in words)
    ]
    return {"name": name, "title": title, "about": about, "settings": settings}


def _searched(name: str, title: str, about: str, setting: Setting) -> str:
    threshold = setting.threshold
    parts = (name, title, about, threshold.name, threshold.label, threshold.help, setting.origin)
    return " ".join(parts).lower()


class ThresholdRow(Struct, frozen=True):
    """One threshold on the page: its setting, its form field, and the box that resets it."""

    setting: Setting
    field: forms.BoundField
    back: forms.BoundField | None


class PolicyForm(forms.Form):
    """`changes`, after validation: the values that operators set. host: for it alone."""

    def __init__(
        self,
        name: str,
        settings: Sequence[Setting],
        data: Mapping[str, Any] | None = None,
        host: str = "",
    ) -> None:
        super().__init__(data)
        self._name = name
        self._host = host
        self._settings = settings
        self.changes: dict[str, Any] = {}
        for setting in settings:
            threshold = setting.threshold
            self.fields[threshold.name] = _field(threshold, setting.value)
            if setting.changed_here:
                self.fields[BACK + threshold.name] = forms.BooleanField(required=False)

    def lines(self) -> Iterator[ThresholdRow]:
        for setting in self._settings:
            name = setting.threshold.name
            back = self[BACK + name] if BACK + name in self.fields else None
            yield ThresholdRow(setting, self[name], back)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for setting in self._settings:
            threshold = setting.threshold
            taken_back = cleaned.get(BACK + threshold.name)
            if threshold.name not in cleaned or taken_back:
                continue
            value = cleaned[threshold.name]
            if value != threshold.plain(setting.below):
                self.changes[threshold.name] = value
        for name, why in rows.problems(self._name, self.changes, self._host).items():
            self.add_error(name, _sentence(why))
        return cleaned


def _sentence(why: str) -> str:
    """`is 120: it must be …`, for the field with the value 120."""
    reason = why.partition(": ")[2] or why
    reason = reason.rstrip(".") + "."
    return reason[0].upper() + reason[1:]


def _field(threshold: Threshold, value: Any) -> forms.Field:
    kind, choices = threshold.kind, [(choice, choice) for choice in threshold.choices]
    optional = threshold.optional or threshold.is_list or kind in (bool, str)
    common: dict[str, Any] = {"label": threshold.label, "required": not optional}
    if threshold.is_list and choices:
        widget = forms.CheckboxSelectMultiple
        initial = threshold.plain(value)
        return forms.MultipleChoiceField(choices=choices, widget=widget, initial=initial, **common)
    common["initial"] = value if value is None or kind is bool else _shown(threshold.plain(value))
    if threshold.is_list:
        return ListField(kind, **common)
    if choices:
        unset = [("", "no limit")] if threshold.optional else []
        return forms.TypedChoiceField(choices=[*unset, *choices], empty_value=None, **common)
    if kind is bool:
        return forms.BooleanField(**common)
    if kind is str:
        return forms.CharField(empty_value=None if threshold.optional else "", **common)
    field: forms.Field = forms.IntegerField(**common) if kind is int else forms.FloatField(**common)
    limits = {"min": threshold.ge, "max": threshold.le}
    field.widget.attrs |= {name: number(v) for name, v in limits.items() if v is not None}
    field.widget.attrs |= {} if kind is int else {"step": "any"}
    return field


def _shown(value: Any) -> str:
    return "\n".join(number(v) for v in value) if isinstance(value, list) else number(value)


class ListField(forms.CharField):
    """Names or numbers, one per line or separated by commas."""

    widget = forms.Textarea

    def __init__(self, item: type, **common: Any) -> None:
        super().__init__(**common)
        self._item = item
        rows = len(str(common.get("initial") or "").splitlines())
        self.widget.attrs |= {"rows": str(min(max(rows + 1, 2), 8)), "cols": "40"}

    def clean(self, value: Any) -> Any:
        text = str(super().clean(value) or "").replace(",", "\n")
        parts = [part.strip() for part in text.splitlines() if part.strip()]
        try:
            return [self._item(part) for part in parts]
        except ValueError:
            raise forms.ValidationError("Each line must be a number.") from None
