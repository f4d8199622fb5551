"""Part of the controller: writes messages to users about their own jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from monitor.facts.readings import Snapshot
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.steps import outbox
from monitor.models import Channel
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.jobs.notifications import rows
from scheduler.jobs.notifications.policy import (
    MOST_PER_HOUR,
    SOON,
    Letter,
    NotificationPolicy,
    letters,
)
from scheduler.jobs.notifications.rows import Recipient

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
            self._queue(outbox.TASK)
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
