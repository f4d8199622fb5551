"""The OS accounts of jobs, and the files of gpucoord that jobs must not open."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from functools import cache
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User

from scheduler.execution.steps.specs import account_of_jobs
from scheduler.facts.jobs import Refusal
from scheduler.intake.policy.accounts import AccountRule, account_rule
from scheduler.runner import accounts
from scheduler.runner.confine import landlock


def refusals(owner: User) -> list[Refusal]:
    """Refusals when this server has no account for the user's jobs.

    Call outside a transaction: looking up an account can be slow.
    """
    try:
        account_of_jobs(owner, settings.CONFIG.run_as)
    except accounts.MissingAccount as error:
        return [Refusal(field="owner", text=str(error))]
    return []


def current_rule() -> AccountRule:
    """The accounts that jobs of this server run as, for the status page."""
    name = str(os.geteuid())
    with suppress(KeyError):
        name = pwd.getpwuid(os.geteuid()).pw_name
    return account_rule(
        is_root=os.geteuid() == 0,
        run_as=settings.CONFIG.run_as,
        service_account=name,
        open_because=open_because(),
    )


def closed_paths() -> tuple[Path, ...]:
    """The files of gpucoord that the kernel closes to jobs of the same account."""
    return () if open_because() else paths()


def open_because() -> str:
    """Why jobs of gpucoord's own account can open its files. "" = they can't."""
    if not settings.CONFIG.close_data:
        return "close_data = false"
    return _problem(tuple(map(str, paths())))


def paths() -> tuple[Path, ...]:
    """The files of gpucoord that hold secrets or decide about jobs."""
    candidates = [Path(settings.DATA), *settings.SECRET_FILES]
    if settings.CONFIG.checkpoints is not None:
        candidates.append(settings.CONFIG.checkpoints)
    return tuple(path for path in candidates if path.exists())


@cache
def _problem(closed: tuple[str, ...]) -> str:
    """Cached, because the result depends only on the kernel and the folders."""
    return "" if os.geteuid() == 0 else landlock.problem(closed)
