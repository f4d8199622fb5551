"""A form for any policy, made of its thresholds; what is set as below it is no change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms

from monitor import policies
from monitor.policy.layers import Setting
from monitor.policy.thresholds import Threshold, number

BACK = "back:"


@dataclass(frozen=True, slots=True)
class Line:
    """One threshold on the page: its setting, its field, and the box that takes it back."""

    setting: Setting
    field: forms.BoundField
    back: forms.BoundField | None


class PolicyForm(forms.Form):
    """`changes` after it was found valid: what operators want otherwise than what is below."""

    def __init__(
        self, name: str, settings: Sequence[Setting], data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(data)
        self._name = name
        self._settings = settings
        self.changes: dict[str, Any] = {}
        for setting in settings:
            threshold = setting.threshold
            self.fields[threshold.name] = _field(threshold, setting.value)
            if setting.changed_here:
                self.fields[BACK + threshold.name] = forms.BooleanField(required=False)

    def lines(self) -> Iterator[Line]:
        for setting in self._settings:
            name = setting.threshold.name
            back = self[BACK + name] if BACK + name in self.fields else None
            yield Line(setting, self[name], back)

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
        for name, why in policies.problems(self._name, self.changes).items():
            self.add_error(name, _sentence(why))
        return cleaned


def _sentence(why: str) -> str:
    """`is 120: it must be …` beside the field that holds the 120."""
    told = why.partition(": ")[2] or why
    told = told.rstrip(".") + "."
    return told[0].upper() + told[1:]


def _field(threshold: Threshold, value: Any) -> forms.Field:
    common: dict[str, Any] = {
        "label": threshold.label,
        "required": not threshold.optional and threshold.kind not in (bool, str, tuple),
        "initial": _shown(threshold, value),
    }
    if threshold.choices and threshold.kind is tuple:
        ticks = [(choice, choice) for choice in threshold.choices]
        common["initial"] = threshold.plain(value)
        return forms.MultipleChoiceField(
            choices=ticks, widget=forms.CheckboxSelectMultiple, **common
        )
    if threshold.choices:
        choices = [(choice, choice) for choice in threshold.choices]
        if threshold.optional:
            choices = [("", "no limit"), *choices]
        return forms.TypedChoiceField(choices=choices, empty_value=None, **common)
    if threshold.kind is bool:
        return forms.BooleanField(**common)
    if threshold.kind is tuple:
        return ListField(threshold.item, **common)
    if threshold.kind is str:
        return forms.CharField(empty_value=None if threshold.optional else "", **common)
    whole = threshold.kind is int
    field: forms.Field = forms.IntegerField(**common) if whole else forms.FloatField(**common)
    field.widget.attrs |= _limits(threshold)
    return field


def _limits(threshold: Threshold) -> dict[str, str]:
    limits = {"min": threshold.least, "max": threshold.most}
    step = {} if threshold.kind is int else {"step": "any"}
    return {name: number(value) for name, value in limits.items() if value is not None} | step


def _shown(threshold: Threshold, value: Any) -> Any:
    if value is None or threshold.kind is bool:
        return value
    if threshold.kind is tuple:
        return "\n".join(number(v) for v in value)
    return number(threshold.plain(value))


class ListField(forms.CharField):
    """Names or numbers, one a line or separated by commas."""

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
