"""Messages to users about their jobs: settings, rows, and the part of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, QuerySet
from msgspec import Struct

from monitor.facts.readings import Snapshot
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.senders import NetworkLimits, problem_of, service_of
from monitor.incidents.alerts.steps import encrypt
from monitor.models import Channel, Event, Message
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.database import MARK, PreparedQuery, compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobNotice, JobState, NoticeKind
from scheduler.jobs.notifications.policy import (
    EVENT_KINDS,
    MOST_PER_HOUR,
    SOON,
    Letter,
    NotificationPolicy,
    chosen,
    kinds_of,
    letters,
)
from scheduler.models import BrowserNotice, Job, NotificationCursor, NotificationSettings

ABOUT = "job:"
AT_ONCE = 500
# Rows of other hosts may be committed later than ones with higher numbers.
OVERLAP = 50
MOST_WAITING = 500
# Messages to the open pages of a user: rows, and how many an answer has.
BROWSER_KEPT, MOST_KEPT, MOST_SHOWN = timedelta(days=1), 1000, 20
NO_MAIL = "No operator has set up a mail channel to owners yet."
NO_ADDRESS = "Your account has no e-mail address."


def settings_of(user: User) -> NotificationSettings:
    """The stored settings, or unsaved defaults: no notifications."""
    notices = NotificationSettings.objects.filter(user=user).select_related("channel").first()
    return notices or NotificationSettings(user=user)


def mail_channel() -> Channel | None:
    """The channel by which mails to users go: an enabled one to owners that works, if possible."""
    rows = Channel.objects.filter(enabled=True, to_owners=True, owner=None)
    return rows.order_by(F("failing_since").asc(nulls_first=True), "id").first()


def mail_problem(user: User) -> str:
    """Why mails do not reach the user; "" = they do."""
    if mail_channel() is None:
        return NO_MAIL
    return "" if user.email else NO_ADDRESS


def new_notices() -> list[JobNotice]:
    """Changes of jobs since the last call, for owners who want to be told.

    The position is stored; call it in the transaction that stores the messages.
    """
    newest = next(iter(_newest_event()), 0)
    cursor = next(iter(_cursor()), None) or _first_cursor(newest)
    events = _EVENTS_AFTER.rows(cursor.seen_event - OVERLAP)
    if _unseen(events, cursor):
        cursor = _locked_cursor()
    unseen = _unseen(events, cursor)
    _remember(cursor, events, events[-1].pk if len(events) == AT_ONCE else newest)
    jobs = Job.objects.select_related("owner").in_bulk(
        {int(event.job_ref) for event in unseen if event.job_ref.isdigit()}
    )
    wanted = _wanted(jobs.values())
    notices = (_notice(event, jobs, wanted) for event in unseen)
    return [notice for notice in notices if notice is not None]


def _first_cursor(newest: int) -> NotificationCursor:
    """Events from before the first look are not told."""
    return NotificationCursor.objects.get_or_create(pk=1, defaults={"seen_event": newest})[0]


def _locked_cursor() -> NotificationCursor:
    """Other hosts look too; each event is told by one of them."""
    return NotificationCursor.objects.select_for_update().get(pk=1)


def _unseen(events: Iterable[Event], cursor: NotificationCursor) -> list[Event]:
    if cursor.seen is None:
        return [event for event in events if event.pk > cursor.seen_event]
    seen = set(cursor.seen)
    return [event for event in events if event.pk not in seen]


def _remember(cursor: NotificationCursor, events: Iterable[Event], newest_read: int) -> None:
    """Store what was looked at, if that has changed."""
    reached = max(newest_read, cursor.seen_event)
    numbers = {*(cursor.seen or ()), *(event.pk for event in events)}
    seen = sorted(number for number in numbers if number > reached - OVERLAP)
    if (reached, seen) != (cursor.seen_event, cursor.seen):
        NotificationCursor.objects.filter(pk=1).update(seen_event=reached, seen=seen)


def look_again(notices: Iterable[JobNotice]) -> None:
    """The messages about these could not be written; the next looks try it again."""
    cursor, notices = _locked_cursor(), list(notices)
    events = {notice.event for notice in notices}
    jobs = {notice.job_id for notice in notices if not notice.event}
    cursor.seen = [number for number in cursor.seen or () if number not in events]
    cursor.soon = [number for number in cursor.soon if number not in jobs]
    cursor.save(update_fields=["seen", "soon"])


@compiled_once
def _newest_event() -> QuerySet[Any, int]:
    return Event.objects.order_by("-pk").values_list("pk", flat=True)[:1]


@compiled_once
def _cursor() -> QuerySet[NotificationCursor]:
    return NotificationCursor.objects.filter(pk=1)


_EVENTS_AFTER: PreparedQuery[int, Event] = PreparedQuery(
    lambda number: Event.objects.filter(pk__gt=number, kind__in=EVENT_KINDS).order_by("pk")[
        :AT_ONCE
    ],
    MARK,
)


def _wanted(jobs: Iterable[Job]) -> dict[int, set[str]]:
    """By job: the kinds that its owner wants to be told of."""
    jobs = list(jobs)
    rows = NotificationSettings.objects.in_bulk({job.owner_id for job in jobs})
    return {
        job.pk: {*job.notify, *(rows[job.owner_id].kinds if job.owner_id in rows else ())}
        for job in jobs
    }


def _notice(
    event: Event, jobs: Mapping[int, Job], wanted: Mapping[int, set[str]]
) -> JobNotice | None:
    job = jobs.get(int(event.job_ref)) if event.job_ref.isdigit() else None
    if job is None:
        return None
    kinds = kinds_of(event.kind, job.outcome, job.cancelled_by, job.owner.username)
    kind = chosen(kinds, wanted[job.pk])
    if kind is None:
        return None
    return JobNotice(
        kind=kind, job_id=job.pk, name=job.name, owner=job.owner.username, text=event.text,
        event=event.pk,
    )  # fmt: skip


def starting_soon(now: datetime, within: timedelta) -> list[JobNotice]:
    """Waiting jobs that are expected to start within this time, for owners who want to be told."""
    rows = Job.objects.filter(
        state=JobState.QUEUED.value,
        predicted_start_at__gt=now,
        predicted_start_at__lte=now + within,
    )
    jobs = list(rows.select_related("owner").order_by("predicted_start_at")[:MOST_WAITING])
    wanted = _wanted(jobs)
    announced = _announced_soon(
        [job.pk for job in jobs if NoticeKind.STARTS_SOON in wanted[job.pk]]
    )
    return [
        JobNotice(
            kind=NoticeKind.STARTS_SOON, job_id=job.pk, name=job.name, owner=job.owner.username,
            text=f"Job {job.pk} ({job.name}) is expected to start within"
            f" {within.total_seconds() / 60:.0f} minutes.",
        )
        for job in jobs
        if NoticeKind.STARTS_SOON in wanted[job.pk] and job.pk not in announced
    ]  # fmt: skip


def _announced_soon(jobs: list[int]) -> set[int]:
    """Those of which the owner knew already; all of these are stored as known."""
    cursor = next(iter(_cursor()), None)
    if cursor is None or not (jobs or cursor.soon):
        return set()
    announced = set(_locked_cursor().soon)
    waiting = Job.objects.filter(pk__in=announced, state=JobState.QUEUED.value)
    soon = sorted({*waiting.values_list("pk", flat=True), *jobs})[-MOST_WAITING:]
    if soon != cursor.soon:
        NotificationCursor.objects.filter(pk=1).update(soon=soon)
    return announced


class Recipient(Struct, frozen=True):
    """Where messages to a user go; mail_address "" = none."""

    user: User
    mail_address: str
    own_channel: Channel | None
    by_browser: bool


def recipients_of(usernames: Iterable[str]) -> dict[str, Recipient]:
    users = {user.username: user for user in User.objects.filter(username__in=set(usernames))}
    rows = NotificationSettings.objects.select_related("channel").in_bulk(
        [user.pk for user in users.values()]
    )
    notices = {}
    for name, user in users.items():
        row = rows.get(user.pk)
        mail = user.email if row is None or row.by_mail else ""
        own = row.channel if row is not None else None
        own = own if own is not None and own.enabled else None
        notices[name] = Recipient(user, mail, own, row is not None and row.by_browser)
    return notices


def sent_since(owner: str, since: datetime) -> int:
    """How many messages about jobs were written to the user."""
    rows = Message.objects.filter(person=owner, rule="", created_at__gt=since)
    sent = rows.filter(about__startswith=ABOUT).values_list("about")
    shown = BrowserNotice.objects.filter(user__username=owner, created_at__gt=since)
    return sent.union(shown.values_list("about")).count()


def store(letter: Letter, to: Recipient, mail: Channel | None, now: datetime) -> int:
    """Put a message on its way through each of the user's ways; returns how many that were.

    A message that was stored before is not stored again.
    """
    ways = [(to.own_channel, "")] if to.own_channel else []
    if mail is not None and to.mail_address:
        ways.append((mail, to.mail_address))
    rows = [
        Message(
            channel=channel, about=letter.about[:60], severity="info", person=letter.owner,
            receiver=receiver, title=letter.title[:200], text=letter.text, created_at=now,
            due_at=now, attachment=letter.attachment,
        )
        for channel, receiver in ways
    ]  # fmt: skip
    Message.objects.bulk_create(rows, ignore_conflicts=True)
    # Reports are files, which notifications of a browser cannot have.
    by_browser = to.by_browser and letter.about.startswith(ABOUT)
    if by_browser:
        _store_for_browser(letter, to.user, now)
    return len(rows) + by_browser


def _store_for_browser(letter: Letter, user: User, now: datetime) -> None:
    row = BrowserNotice(
        user=user, about=letter.about[:60], title=letter.title[:200], text=letter.text,
        created_at=now,
    )  # fmt: skip
    BrowserNotice.objects.bulk_create([row], ignore_conflicts=True)
    own = BrowserNotice.objects.filter(user=user)
    own.filter(created_at__lt=now - BROWSER_KEPT).delete()
    rest = own.order_by("-pk").values_list("pk", flat=True)[MOST_KEPT : MOST_KEPT + 1]
    own.filter(pk__lte=next(iter(rest), 0)).delete()


def forget_browser_notices(user: User) -> None:
    BrowserNotice.objects.filter(user=user).delete()


def browser_notices(user: User, after: int) -> list[BrowserNotice]:
    """The newest messages to the user's open pages with a higher number, the oldest first."""
    newer = BrowserNotice.objects.filter(user=user, pk__gt=after)
    return list(newer.order_by("-pk")[:MOST_SHOWN])[::-1]


def newest_browser_notice(user: User) -> int:
    """Its number; 0 = there is none."""
    rows = BrowserNotice.objects.filter(user=user).order_by("-pk")
    return next(iter(rows.values_list("pk", flat=True)[:1]), 0)


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
        notices = new_notices()
        if not policy.enabled:
            return 0
        if periodic_tasks.due("starts_soon", SOON_EVERY, now):
            notices += starting_soon(now, SOON)
        if not notices:
            return 0
        made = letters(notices, thresholds.current(AlertPolicy).address)
        recipients, mail = recipients_of(letter.owner for letter in made), mail_channel()

        def write(letter: Letter) -> int:
            return _write(letter, recipients, mail, now)

        written = self._isolation.each(made, lambda letter: letter.about, write, now)
        done = {letter.about for letter, _ in written}
        if failed := [letter for letter in made if letter.about not in done]:
            look_again(notice for letter in failed for notice in letter.notices)
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
    if to is None or sent_since(letter.owner, now - HOUR) >= MOST_PER_HOUR:
        return 0
    return store(letter, to, mail, now)


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
    row = settings_of(user)
    row.kinds, row.by_mail = [kind.value for kind in kinds], by_mail
    row.by_browser = by_browser
    if not by_browser:
        forget_browser_notices(user)
    if address is not None:
        row.channel = _own_channel(user, row.channel, address.strip())
    row.save()
    return row


@transaction.atomic
def save_crash_guard(user: User, *, enabled: bool, failures: int, seconds: int) -> None:
    """Store whether further jobs of a program are held after so many quick failures."""
    row = settings_of(user)
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
