"""Pages of operators about users: all of them, new ones, and one with quota and tokens.

Only superusers add users and change accounts, as in the admin: a user's jobs run as the account.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import PurePath
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from msgspec import Struct

from gpucoord_site.accounts import people
from monitor.facts.accounts import AccountRanges
from monitor.journal.rows import audit
from monitor.models import ApiToken, OsAccount
from monitor.owners import rows as os_accounts
from monitor.owners.probes.credentials import account_ranges
from monitor.pages.requests import InvalidInput
from monitor.usage.pages.content import window as history_window
from monitor.usage.rows import processes
from scheduler.facts.language_models import OWNER
from scheduler.limits.quotas import pages as quota_pages
from scheduler.limits.quotas import rows as quotas
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


MOST_SHOWN = 500
LONGEST_SEARCH = 150
View = Callable[..., HttpResponse]


def _only_for(right: str) -> Callable[[View], View]:
    """Decorates a view for users with this attribute."""

    def decorated(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not getattr(request.user, right):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        return checked

    return decorated


for_operators = _only_for("is_staff")
for_superusers = _only_for("is_superuser")


@require_safe
@for_operators
def all_people(request: HttpRequest) -> HttpResponse:
    """All users, or those whose name or account has the text of `q`."""
    text = request.GET.get("q", "")[:LONGEST_SEARCH].strip()
    rows = User.objects.select_related("os_account").order_by("username")
    if text and "\0" not in text:
        rows = rows.filter(Q(username__icontains=text) | Q(os_account__name__icontains=text))
    shown = list(rows[: MOST_SHOWN + 1])
    own = {quota.user_id: quota for quota in Quota.objects.exclude(user=None)}
    context = {
        "people": [(user, own.get(user.pk)) for user in shown[:MOST_SHOWN]],
        "more": len(shown) > MOST_SHOWN,
        "models_owner": OWNER,
        "most": MOST_SHOWN,
        "q": text,
    }
    return render(request, "people/people.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@for_superusers
def add(request: HttpRequest) -> HttpResponse:
    """Add users for OS accounts of this server. The answer has the invitations, this once."""
    listed, now = accounts(account_ranges()), timezone.now()
    posted = request.POST if request.method == "POST" else None
    form = NewPeopleForm(posted, listed=listed)
    if request.method == "POST" and form.is_valid():
        try:
            invited = people.add_all(
                form.names(),
                form.limits(),
                is_operator=form.cleaned_data["is_operator"],
                by=_by(request),
                now=now,
            )
        except InvalidInput as error:
            for _, text in error.errors:
                form.add_error(None, text)
        else:
            return _invitations(request, invited)
    context = {
        "form": form,
        "taken": [each for each in listed if each.user],
        "are_all_shown": len(listed) < MOST_LISTED,
    }
    return render(request, "people/add.html", context, status=422 if form.errors else 200)


@require_safe
@for_operators
def person(request: HttpRequest, pk: int) -> HttpResponse:
    return _page(request, _user(pk))


@require_POST
@for_superusers
def change_account(request: HttpRequest, pk: int) -> HttpResponse:
    """Change the OS account of a user, and whether the user is an operator and may log in."""
    user, form, now = _user(pk), AccountForm(request.POST), timezone.now()
    if not form.is_valid():
        return _page(request, user, account=form)
    values = form.cleaned_data
    # An administrator who locks out or demotes themselves could not undo it.
    is_fixed = user.is_superuser
    if not os_accounts.change(user, values["account"], by=_by(request), now=now):
        form.add_error("account", f"{values['account']} is the OS account of another user.")
        return _page(request, user, account=form)
    if not is_fixed:
        is_operator, is_active = values["is_operator"], values["is_active"]
        people.set_access(
            user, is_operator=is_operator, is_active=is_active, by=_by(request), now=now
        )
    messages.success(request, "Saved.")
    return redirect("people-person", user.pk)


@require_POST
@for_operators
def change_quota(request: HttpRequest, pk: int) -> HttpResponse:
    """Change the user's own quota, with the permission to change quotas."""
    if not may_change_quotas(request):
        raise PermissionDenied
    user, form = _user(pk), QuotaForm(request.POST)
    if form.is_valid():
        try:
            quotas.set_limits(user, form.limits(), by=_by(request), now=timezone.now())
        except ValidationError as error:
            for text in error.messages:
                form.add_error(None, text)
        else:
            messages.success(request, f"The quota of {user.get_username()} is saved.")
            return redirect("people-person", user.pk)
    return _page(request, user, quota=form)


@require_POST
@for_superusers
def invite(request: HttpRequest, pk: int) -> HttpResponse:
    """A new link with which the user sets a password."""
    user = _user(pk)
    try:
        invitation = people.invite(user, by=_by(request), now=timezone.now())
    except InvalidInput as error:
        messages.error(request, " ".join(text for _, text in error.errors))
        return redirect("people-person", user.pk)
    return _invitations(request, [people.Invited(user, invitation)])


@require_POST
@for_superusers
def revoke_token(request: HttpRequest, pk: int, token: int) -> HttpResponse:
    """Revoke a token of the user."""
    user, now = _user(pk), timezone.now()
    row = ApiToken.objects.filter(pk=token, user=user).first() if token < 2**63 else None
    if row is None:
        raise Http404
    row.delete()
    name, by = user.get_username(), _by(request)
    text = f"{by} revoked the token {row.prefix}… of {name}"
    audit.note("TOKEN_REVOKED", text, by=by, now=now, subject=f"user {name}")
    messages.success(request, f"The token {row.prefix}… is revoked.")
    return redirect("people-person", user.pk)


def may_change_quotas(request: HttpRequest) -> bool:
    user = cast("User", request.user)
    return user.is_staff and user.has_perm("scheduler.change_quota")


def _page(
    request: HttpRequest,
    user: User,
    *,
    account: AccountForm | None = None,
    quota: QuotaForm | None = None,
) -> HttpResponse:
    now = timezone.now()
    may_manage = cast("User", request.user).is_superuser
    context = {
        "shown_user": user,
        "models_owner": OWNER,
        "name": user.get_username(),
        "account": os_accounts.name_of(user),
        "account_form": account or AccountForm.of(user),
        "quota_form": quota or QuotaForm.of(user),
        "limits": LIMITS,
        "has_quota": Quota.objects.filter(user=user).exists(),
        "tokens": list(user.api_tokens.order_by("-created_at")) if may_manage else [],
        "may_manage": may_manage,
        "may_change_quotas": may_change_quotas(request),
        "own": quota_pages.own_of(user.get_username(), now),
        "usage": _usage(user, now),
    }
    status = 422 if account or quota else 200
    return render(request, "people/person.html", context, status=status)


def _usage(user: User, now: datetime) -> processes.UsageTotals:
    """The GPU use of the last 7 days."""
    week = history_window({"range": "7d"}, now)
    return processes.total(processes.by_gpu(user.get_username(), week))


def _invitations(request: HttpRequest, invited: list[people.Invited]) -> HttpResponse:
    lines = [(each.user, people.invitation_url(each.invitation, request)) for each in invited]
    context = {"lines": lines, "expires_at": invited[0].invitation.expires_at}
    return render(request, "people/invitations.html", context)


def _user(pk: int) -> User:
    if pk >= 2**63:
        raise Http404
    return get_object_or_404(User, pk=pk)


def _by(request: HttpRequest) -> str:
    return request.user.get_username()


# The list of users

# A directory that lists more accounts is searched by name instead.
MOST_LISTED = 500
NO_SHELLS = frozenset(("false", "nologin", "sync", "halt", "shutdown"))


class ListedAccount(Struct, frozen=True):
    """An OS account. full_name: from its comment field. user: its user, "" if it has none."""

    name: str
    full_name: str
    user: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.full_name})" if self.full_name else self.name


def accounts(ranges: AccountRanges) -> list[ListedAccount]:
    """The accounts with a shell and a uid of a person, by name; at most MOST_LISTED.

    Directories may not list their accounts.
    """
    users = dict(OsAccount.objects.values_list("name", "user__username"))
    entries = {entry.pw_name: entry for entry in pwd.getpwall() if _is_person(entry, ranges)}
    return [
        ListedAccount(name, entries[name].pw_gecos.split(",")[0].strip(), users.get(name, ""))
        for name in sorted(entries)[:MOST_LISTED]
    ]


def _is_person(entry: pwd.struct_passwd, ranges: AccountRanges) -> bool:
    has_shell = PurePath(entry.pw_shell).name not in NO_SHELLS
    return has_shell and ranges.is_person(entry.pw_uid)
