"""Change the notification settings of a user."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import User
from django.db import transaction

from monitor.incidents.alerts.rows import encrypt
from monitor.incidents.alerts.senders import NetworkLimits, problem_of, service_of
from monitor.models import Channel
from scheduler.facts.notices import NoticeKind
from scheduler.jobs.notifications import rows
from scheduler.models import NotificationSettings

# Services that are reached over the network by an address alone. Others act on the server itself.
OWN_SERVICES = (
    "discord", "form", "forms", "gchat", "gotify", "gotifys", "json", "jsons", "matrix", "matrixs",
    "mmost", "mmosts", "msteams", "ntfy", "ntfys", "pover", "rocket", "rockets", "slack", "tgram",
    "workflows", "xml", "xmls", "zulip",
)  # fmt: skip
NO_SERVICE = (
    "Write an address of one of these services: discord, slack, msteams, workflows, mmost, rocket, "
    "matrix, gchat, zulip, tgram, ntfy, gotify, pover, or json, form or xml for a webhook, such as "
    "jsons://example.org/hook. It may name no file of this server, such as a template."
)
LOCAL_HOST = (
    "The host of the address is local to this server. Write one that is reached by network."
)


class InvalidService(ValueError):
    """The address of a user's own service cannot be used; the text says why."""


@transaction.atomic
def save(
    user: User,
    kinds: Iterable[NoticeKind],
    *,
    by_mail: bool,
    address: str | None,
    by_browser: bool = False,
) -> NotificationSettings:
    """Store the settings. address: of the user's own service; None = unchanged, "" = remove it.

    Raises InvalidService.
    """
    row = rows.settings_of(user)
    row.kinds, row.by_mail = [kind.value for kind in kinds], by_mail
    row.by_browser = by_browser
    if not by_browser:
        rows.forget_browser_notices(user)
    if address is not None:
        row.channel = _own_channel(user, row.channel, address.strip())
    row.save()
    return row


@transaction.atomic
def save_crash_guard(user: User, *, enabled: bool, failures: int, seconds: int) -> None:
    """Store whether further jobs of a program are held after so many quick failures."""
    row = rows.settings_of(user)
    row.pause_on_quick_failure = enabled
    row.quick_failures, row.quick_failure_s = failures, seconds
    row.save()


def _own_channel(user: User, channel: Channel | None, address: str) -> Channel | None:
    if not address:
        if channel is not None:
            channel.delete()
        return None
    scheme = address.partition("://")[0].lower()
    service = service_of(address) if scheme in OWN_SERVICES else None
    if service is None:
        raise InvalidService(NO_SERVICE)
    if problem_of(address, NetworkLimits()):
        raise InvalidService(LOCAL_HOST)
    channel = channel or Channel(name=f"notifications of {user.username}"[:60], owner=user)
    channel.service, channel.encrypted_address = service.name, encrypt(address)
    channel.failing_since, channel.problem = None, ""
    channel.save()
    return channel
