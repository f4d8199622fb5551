"""Admin: form fields for values with units, and forms that know who saves."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

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


class FormsOfUser(admin.ModelAdmin):  # type: ignore[type-arg]
    """Its forms have the user who saves as `person`."""

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kw)
        # A class of this request alone: Django makes a new one each time.
        form.person = request.user
        return form
