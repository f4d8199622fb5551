"""Admin: form fields for values with units."""

from __future__ import annotations

from typing import Any

from django import forms

from scheduler.facts.units import parse_bytes, size


class Size(forms.CharField):
    """Bytes, as people write them: "80GiB"."""

    def prepare_value(self, value: Any) -> Any:
        return size(value) if isinstance(value, int) else value

    def to_python(self, value: Any) -> int | None:  # type: ignore[override]
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(super().has_changed(self.prepare_value(initial), data))
