"""Forms of operators about other users."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import User

from gpucoord_site.accounts.listing import ListedAccount
from monitor.owners.accounts.rows import os_accounts
from scheduler.models import Quota

# Links of more users do not fit a page on which an operator reads them.
MOST_ADDED = 100
# The limits of daily work; the admin has all of them.
LIMITS = ("share_pct", "gpu_minutes", "gpus", "jobs")
MOST_MINUTES, MOST_GPUS, MOST_JOBS = 1_000_000, 10_000, 1_000_000


class LimitsForm(forms.Form):
    """The limits of a quota. An empty field is no limit."""

    share_pct = forms.FloatField(min_value=0, max_value=100, required=False, label="Share (%)")
    gpu_minutes = forms.FloatField(
        min_value=0, max_value=MOST_MINUTES, required=False, label="GPU-minutes a day"
    )
    gpus = forms.IntegerField(
        min_value=0, max_value=MOST_GPUS, required=False, label="GPUs at a time"
    )
    jobs = forms.IntegerField(
        min_value=0, max_value=MOST_JOBS, required=False, label="Running jobs"
    )

    def limits(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in LIMITS}


class QuotaForm(LimitsForm):
    """The quota of one user."""

    share_is_limit = forms.BooleanField(
        required=False, label="Never more than the share, even if GPUs are free"
    )

    def limits(self) -> dict[str, Any]:
        return {**super().limits(), "share_is_limit": self.cleaned_data["share_is_limit"]}

    @classmethod
    def of(cls, user: User) -> QuotaForm:
        """Filled in with the user's own quota."""
        row = Quota.objects.filter(user=user).values(*LIMITS, "share_is_limit").first()
        # 30.0 is 30.
        plain = {n: f"{v:g}" if isinstance(v, float) else v for n, v in (row or {}).items()}
        return cls(initial=plain)


class NewPeopleForm(LimitsForm):
    """OS accounts of this server that get a user, with one preset for all of them."""

    accounts = forms.MultipleChoiceField(
        required=False, label="OS accounts", widget=forms.CheckboxSelectMultiple
    )
    others = forms.CharField(
        required=False,
        max_length=4000,
        label="Other names",
        help_text="Of accounts that the list does not show, such as those of a directory. "
        "Separate them by spaces.",
    )
    is_operator = forms.BooleanField(
        required=False,
        label="They are operators",
        help_text="Operators see and change the jobs of all users.",
    )
    field_order = ("accounts", "others", *LIMITS, "is_operator")

    def __init__(self, *args: Any, listed: Sequence[ListedAccount], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        free = [(each.name, each.label) for each in listed if not each.user]
        self.fields["accounts"].choices = free  # type: ignore[attr-defined]

    def clean_others(self) -> list[str]:
        return re.findall(r"[^\s,]+", self.cleaned_data["others"])

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors:
            return values
        names = self.names()
        if not names:
            raise forms.ValidationError("Select an account, or write a name.")
        if len(names) > MOST_ADDED:
            raise forms.ValidationError(f"Add at most {MOST_ADDED} users at a time.")
        return values

    def names(self) -> list[str]:
        """The chosen names, each once."""
        values = self.cleaned_data
        return list(dict.fromkeys([*values["accounts"], *values["others"]]))


class AccountForm(forms.Form):
    """The OS account of a user, and what the user may do."""

    account = forms.CharField(
        required=False,
        max_length=150,
        label="OS account",
        help_text="Jobs of the user run as this account. Empty: none.",
    )
    is_operator = forms.BooleanField(required=False, label="Operator")
    is_active = forms.BooleanField(
        required=False,
        label="May log in",
        help_text="Otherwise the tokens are revoked, and waiting jobs are held.",
    )

    def clean_account(self) -> str:
        name: str = self.cleaned_data["account"]
        if problem := os_accounts.name_problem(name):
            raise forms.ValidationError(problem)
        return name

    @classmethod
    def of(cls, user: User) -> AccountForm:
        account = os_accounts.name_of(user) or ""
        values = {"account": account, "is_operator": user.is_staff, "is_active": user.is_active}
        return cls(initial=values)
