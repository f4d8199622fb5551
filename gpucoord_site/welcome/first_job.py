"""The first job of a user: the line that submits it, and the job once it has arrived."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User

from monitor.facts.accounts import LocalAccounts
from monitor.owners.accounts import rows
from scheduler.jobs.pages import detail as job_page
from scheduler.jobs.pages import forms
from scheduler.jobs.pages import lines as job_lines
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.lines import JobLine
from scheduler.models import Job
from scheduler.submission.intake import actions as intake

NAME = "first-job"
SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class FirstJob:
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
    line = job_lines.lines([job])[0]
    log = job_page.shown_log(job, Path(settings.DATA)) if job.started_at else None
    output = "\n".join(log.text.splitlines()[-SHOWN_LINES:]) if log else ""
    return FirstJob(line, job_page.sentence(line), output)


def submit(user: User, now: datetime) -> Job:
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
