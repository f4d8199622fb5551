"""The first pages of a user: a first job for each user, a checklist for operators."""

from __future__ import annotations

import os
import pwd
from datetime import datetime
from pathlib import Path
from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from msgspec import Struct

from gpucoord_site.documentation import library
from gpucoord_site.models import WelcomeHidden
from monitor.facts.accounts import LocalAccounts
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Channel
from monitor.owners import rows
from scheduler.facts.language_models import OWNER
from scheduler.jobs.pages import detail as job_page
from scheduler.jobs.pages import forms
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.serialise import JobLine
from scheduler.models import Job, Quota
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit

# The first job of a user: the line that submits it, and the job once it has arrived.


NAME = "first-job"
SHOWN_LINES = 12


class FirstJob(Struct, frozen=True):
    """The newest job of a user. sentence: why it waits or how it ended. output: its last lines."""

    line: JobLine
    sentence: str
    output: str

    @property
    def has_ended(self) -> bool:
        return not self.line.is_open


def line() -> str:
    """The line for a terminal."""
    return forms.example().line(f"--name {NAME}")


def terminal_account(user: User) -> str:
    """The OS account that logs this user in at a terminal of the server; "" if none does."""
    rule = settings.CONFIG.local_rule.accounts
    account = rows.name_of(user) or ""
    # With OWN, the commands of other accounts are refused.
    is_refused = rule is LocalAccounts.OWN and _uid_of(account) != os.geteuid()
    if rule is LocalAccounts.NONE or is_refused or _uid_of(account) is None:
        return ""
    return account


def newest(user: User) -> FirstJob | None:
    """None: the user has submitted no job. Items of batches do not count."""
    job = job_views.jobs().filter(owner=user, batch_items=None).order_by("-pk").first()
    if job is None:
        return None
    line = job_views.lines([job])[0]
    log = job_page.shown_log(job, Path(settings.DATA)) if job.started_at else None
    output = "\n".join(log.text.splitlines()[-SHOWN_LINES:]) if log else ""
    return FirstJob(line, job_page.sentence(line), output)


def submit_first_job(user: User, now: datetime) -> Job:
    """Submit the same job from the page. Raises UnableToSubmit."""
    example = forms.example()
    fields = {"command": example.command, "gpus": example.gpus, "name": NAME}
    return intake.submit(fields, user, now)


def _uid_of(account: str) -> int | None:
    """None: this host has no such account."""
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        return None


@require_safe
def start(request: HttpRequest) -> HttpResponse:
    """The page after a login: what is to do first, or the dashboard."""
    user = _user(request)
    if _has_hidden(user):
        return redirect("dashboard")
    if user.is_staff:
        is_complete = is_set_up(setup_steps(user))
        return redirect("dashboard" if is_complete else "setup")
    return redirect("dashboard" if Job.objects.filter(owner=user).exists() else "welcome")


@require_safe
def welcome(request: HttpRequest) -> HttpResponse:
    """The line that submits a first job, and the job as soon as it has arrived."""
    user = _user(request)
    context = {
        "command": forms.example().command,
        "terminal_line": line(),
        "account": terminal_account(user),
        "job": newest(user),
    }
    return render(request, "welcome/first_job.html", context)


@require_POST
def submit(request: HttpRequest) -> HttpResponse:
    """Submit the first job from the page."""
    try:
        submit_first_job(_user(request), timezone.now())
    except UnableToSubmit as error:
        for refusal in error.refusals:
            messages.error(request, refusal.text)
    return redirect("welcome")


@require_safe
def setup(request: HttpRequest) -> HttpResponse:
    """The checklist of operators."""
    user = _user(request)
    if not user.is_staff:
        raise PermissionDenied
    steps = setup_steps(user)
    context = {"steps": steps, "done": done_count(steps), "is_hidden": _has_hidden(user)}
    return render(request, "welcome/setup.html", context)


@require_POST
def hide(request: HttpRequest) -> HttpResponse:
    """Open the dashboard after each later login of this user."""
    WelcomeHidden.objects.get_or_create(user=_user(request), defaults={"hidden_at": timezone.now()})
    return redirect("dashboard")


def progress(request: HttpRequest) -> str:
    """The state of the checklist for the dashboard of an operator, such as "3 of 6".

    "" for other users, and once it is complete or hidden.
    """
    if not request.user.is_staff or _has_hidden(_user(request)):
        return ""
    steps = setup_steps(_user(request))
    return "" if is_set_up(steps) else f"{done_count(steps)} of {len(steps)}"


def _has_hidden(user: User) -> bool:
    return WelcomeHidden.objects.filter(user=user).exists()


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)


# The steps that set up a server. Each is done when a fact says so; none is ticked by hand.


class SetupStep(Struct, frozen=True):
    """One step. fact: the state of the server. is_done None: unknown.

    url: the page for it, "" if this user may not open it. verb: the label of the link.
    """

    title: str
    fact: str
    is_done: bool | None
    url: str
    verb: str


def setup_steps(user: User) -> list[SetupStep]:
    """All steps in the order in which an operator takes them."""
    return [_gpus(), _people(user), _quota(user), _channel(user), _backup(), _first_job()]


def done_count(steps: list[SetupStep]) -> int:
    """How many steps are done."""
    return sum(step.is_done is True for step in steps)


def is_set_up(steps: list[SetupStep]) -> bool:
    """Whether no step is known to be missing."""
    return not any(step.is_done is False for step in steps)


def _gpus() -> SetupStep:
    hosts = snapshots.newest_all()
    count = sum(len(snapshot.gpus) for snapshot in hosts)
    where = hosts[0].host.name if len(hosts) == 1 else f"{len(hosts)} hosts"
    if not hosts:
        fact = "The sampler has written no reading yet."
    elif not count:
        fact = f"No GPU on {where}. The page Status and `gpucoord check` name the reason."
    else:
        fact = f"{_counted(count, 'GPU')} on {where}."
    return SetupStep("GPUs found", fact, count > 0 if hosts else None, reverse("status"), "Status")


def _people(user: User) -> SetupStep:
    count = User.objects.filter(is_active=True).exclude(Q(pk=user.pk) | Q(username=OWNER)).count()
    fact = f"{_counted(count, 'user')} besides you." if count else "You are the only user."
    url = reverse("people-add") if user.is_superuser else ""
    return SetupStep("People added", fact, count > 0, url, "Add people")


def _quota(user: User) -> SetupStep:
    count = Quota.objects.count()
    fact = f"{_counted(count, 'quota')}." if count else "All users have equal shares and no limit."
    may_change = user.has_perm("scheduler.change_quota")
    url = reverse("people") if may_change else ""
    return SetupStep("Quota set", fact, count > 0, url, "Set a quota")


def _channel(user: User) -> SetupStep:
    """A message that arrived proves a channel: a test from its page is enough."""
    channels = list(Channel.objects.filter(owner=None, enabled=True).order_by("name"))
    works = [c for c in channels if c.worked_at is not None and c.failing_since is None]
    if works:
        fact = f"{works[0].name} has delivered a message."
    elif channels:
        fact = f"{channels[0].name} has delivered no message. Its page sends a test."
    else:
        fact = "No alert channel: faults and incidents show on the pages only."
    if channels:
        may, page = "monitor.change_channel", "admin:monitor_channel_changelist"
    else:
        may, page = "monitor.add_channel", "admin:monitor_channel_add"
    url = reverse(page) if user.has_perm(may) else ""
    verb = "Alert channels" if channels else "Add a channel"
    return SetupStep("Alert channel tested", fact, bool(works), url, verb)


def _backup() -> SetupStep:
    is_on = is_timer_on()
    if is_on is None:
        fact = "Unknown: systemd does not run here. Run `gpucoord backup` every day in another way."
    elif is_on:
        fact = "A timer of systemd makes a backup every day."
    else:
        fact = "No timer of systemd makes backups of the database and the secret key."
    url = library.url_of("operators/backup")
    return SetupStep("Backup timer on", fact, is_on, url, "How to enable it")


def _first_job() -> SetupStep:
    ran = Job.objects.exclude(started_at=None).exists()
    fact = "A job has run." if ran else "No job has run yet."
    return SetupStep("First job run", fact, ran, reverse("welcome"), "Run a first job")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


# Whether systemd makes the daily backup.

ROOT = Path("/")
ENABLED = "etc/systemd/system/timers.target.wants"


def is_timer_on(root: Path | None = None) -> bool | None:
    """Whether a timer `gpucoord-backup*.timer` is enabled. None: systemd does not run here."""
    root = ROOT if root is None else root
    if not (root / "run/systemd/system").is_dir():
        return None
    return any((root / ENABLED).glob("gpucoord-backup*.timer"))
