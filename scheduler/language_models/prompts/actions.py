"""Send a prompt, after checks of the model, the quota and the queue; cancel one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.contrib.auth.models import User

from monitor.thresholds import rows as thresholds
from scheduler.facts.prompts import NewPrompt
from scheduler.language_models.prompts import rows
from scheduler.language_models.prompts.policy import (
    MIB,
    WAITING_MIB,
    PromptPolicy,
    over_quota,
    size_of,
)
from scheduler.limits.quotas import rows as quota_rows
from scheduler.models import ModelService, Prompt


class UnknownModel(LookupError):
    """There is no such model; the text names those that there are."""


class NotAllowed(ValueError):
    """The quota does not allow the prompt's priority; the text says which it allows."""


class TooMany(Exception):
    """The user has too many prompts, waiting or today; the text has the figures."""


class TooLarge(ValueError):
    """The prompt alone is larger than all waiting prompts of a user may be."""


def send(new: NewPrompt, owner: User, now: datetime) -> Prompt:
    """Queue a prompt. Raises UnknownModel, NotAllowed, TooLarge or TooMany."""
    model = check(new, owner, now)
    return rows.create(replace(new, model=model), owner, now)


def check(new: NewPrompt, owner: User, now: datetime) -> str:
    """The name of the service that the prompt is for. Raises as `send` does."""
    model = ModelService.names().find(new.model)
    if model is None:
        names = ModelService.objects.order_by("name").values_list("name", flat=True)
        known = ", ".join(names) or "none yet"
        raise UnknownModel(f"There is no model {new.model[:100]!r}. Models: {known}.")
    quota = quota_rows.of_person(owner)
    if quota.priority is not None and new.priority > quota.priority:
        raise NotAllowed(f"Your quota allows priorities up to {quota.priority}.")
    policy = thresholds.current(PromptPolicy)
    waiting, most = rows.waiting_of(owner), policy.waiting
    if waiting >= most:
        raise TooMany(f"You have {waiting} waiting prompts; {most} is the most. Try again later.")
    if not owner.is_staff:
        _check_size(size_of(new), owner, WAITING_MIB)
    if reason := over_quota(quota, rows.used_today(owner.get_username(), now)):
        raise TooMany(reason)
    return model


def _check_size(size: int, owner: User, most_mib: float) -> None:
    """Raises TooLarge or TooMany."""
    if size > most_mib * MIB:
        text = f"This prompt has {size / MIB:.1f} MiB; all waiting prompts of a user may have"
        raise TooLarge(f"{text} {most_mib:g} MiB.")
    held = rows.waiting_bytes(owner)
    if held + size > most_mib * MIB:
        text = f"Your waiting prompts have {held / MIB:.1f} MiB, and this one {size / MIB:.1f} MiB;"
        raise TooMany(f"{text} {most_mib:g} MiB is the most. Try again later.")


def cancel(prompt: Prompt, by: User, now: datetime) -> bool:
    """False: it had ended already."""
    return rows.cancel(prompt, by.get_username(), now)
