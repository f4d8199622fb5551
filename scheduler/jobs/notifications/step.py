"""Change the notification settings of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.readings import Snapshot
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.senders import NetworkLimits, problem_of, service_of
from monitor.incidents.alerts.steps import encrypt
from monitor.models import Channel
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import NoticeKind
from scheduler.jobs.notifications import rows
from scheduler.jobs.notifications.policy import (
    MOST_PER_HOUR,
    SOON,
    Letter,
    NotificationPolicy,
    letters,
)
from scheduler.jobs.notifications.rows import Recipient
from scheduler.models import NotificationSettings

# Part of the controller: writes messages to users about their own jobs.


HOUR = timedelta(hours=1)
SOON_EVERY = timedelta(minutes=1)


class JobNotifications:
    """A Part. Each notice is sent once; the stored messages and a cursor are its memory."""

    name = "notifications"

    def __init__(self, host: str, queue: Callable[[str], None]) -> None:
        self._isolation = ItemIsolation(host, self.name)
        self._queue = queue

    def judge(self, snapshot: Snapshot | None, now: datetime) -> int:
        """Returns how many messages were written."""
        policy = thresholds.current(NotificationPolicy)
        notices = rows.new_notices()
        if not policy.enabled:
            return 0
        if periodic_tasks.due("starts_soon", SOON_EVERY, now):
            notices += rows.starting_soon(now, SOON)
        if not notices:
            return 0
        made = letters(notices, thresholds.current(AlertPolicy).address)
        recipients, mail = rows.recipients(letter.owner for letter in made), rows.mail_channel()

        def write(letter: Letter) -> int:
            return _write(letter, recipients, mail, now)

        written = self._isolation.each(made, lambda letter: letter.about, write, now)
        done = {letter.about for letter, _ in written}
        if failed := [letter for letter in made if letter.about not in done]:
            rows.look_again(notice for letter in failed for notice in letter.notices)
        count = sum(number for _, number in written)
        if count:
            self._queue(steps.TASK)
        return count


def _write(
    letter: Letter,
    recipients: Mapping[str, Recipient],
    mail: Channel | None,
    now: datetime,
) -> int:
    to = recipients.get(letter.owner)
    if to is None or rows.sent_since(letter.owner, now - HOUR) >= MOST_PER_HOUR:
        return 0
    return rows.store(letter, to, mail, now)


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
