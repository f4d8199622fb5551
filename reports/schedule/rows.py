"""Rows of stored reports: who may see them, and when they are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Prefetch, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest

from monitor.models import Incident
from monitor.owners.policy import Viewer
from reports.models import ReportSchedule, ReportSubscription, StoredFile, StoredReport

# Reports on request: so many in a day for each user.
MOST_A_DAY = 20
# Files of a report that only its mail has: the HTML, and its chart as PNG.
MAIL = ("mail", "chart")


def visible_to(viewer: Viewer) -> QuerySet[StoredReport]:
    """The newest first. Operators see all, other users what was made for them."""
    rows = StoredReport.objects.order_by("-made_at", "-pk")
    return rows if viewer.operator else rows.filter(viewer=viewer.username)


@transaction.atomic
def store(row: StoredReport, files: Mapping[str, bytes]) -> StoredReport:
    """Save a new report with its files."""
    row.save(force_insert=True)
    add(row, files)
    return row


def add(row: StoredReport, files: Mapping[str, bytes]) -> None:
    StoredFile.objects.bulk_create(
        StoredFile(report=row, format=name, content=content, sha256=sha256(content).hexdigest())
        for name, content in files.items()
    )


def requested_since(username: str, since: datetime) -> int:
    rows = StoredReport.objects.filter(kind=StoredReport.Kind.REQUESTED, made_by=username)
    return rows.filter(made_at__gt=since).count()


def schedules(now: datetime) -> list[ReportSchedule]:
    """The enabled schedules that do not pause after a failure."""
    rows = ReportSchedule.objects.filter(enabled=True).exclude(retry_at__gt=now)
    return list(rows.order_by("pk"))


# An operator who sends a report again waits this long, as two may press the button at a time.
SENT_AGAIN_AFTER = timedelta(minutes=1)
_DONE = {"failures": 0, "retry_at": None, "problem": ""}


def note_reported(row: ReportSchedule | ReportSubscription, until: datetime, now: datetime) -> bool:
    """Note a report about the time until then. False: another process was faster."""
    open_rows = type(row)._default_manager.filter(pk=row.pk)
    open_rows = open_rows.filter(Q(reported_until=None) | Q(reported_until__lt=until))
    sent = {"sent_at": now} if isinstance(row, ReportSchedule) else {}
    return open_rows.update(reported_until=until, **_DONE, **sent) == 1


def note_sent(schedule: ReportSchedule, until: datetime, now: datetime) -> bool:
    """Note that an operator has sent a report. False: it was sent a moment ago."""
    rested = Q(sent_at=None) | Q(sent_at__lt=now - SENT_AGAIN_AFTER)
    rows = ReportSchedule.objects.filter(rested, pk=schedule.pk)
    last = Greatest(Coalesce("reported_until", until), until)
    return rows.update(sent_at=now, reported_until=last, **_DONE) == 1


def subscriptions(now: datetime, by_default: bool) -> list[ReportSubscription]:
    """The same of active users with a report of their own. by_default: also without a choice."""
    wanted = Q(is_on=True) | Q(is_on=None) if by_default else Q(is_on=True)
    rows = ReportSubscription.objects.filter(wanted, user__is_active=True)
    rows = rows.exclude(retry_at__gt=now)
    return list(rows.select_related("user").order_by("pk"))


def is_subscribed(user: User, by_default: bool) -> bool:
    chosen = ReportSubscription.objects.filter(user=user).values_list("is_on", flat=True).first()
    return by_default and bool(user.email) if chosen is None else chosen


def subscribe(user: User, now: datetime, *, on: bool) -> None:
    """The first report is of the week in which `now` is."""
    fresh = {"is_on": on, "since_at": now, "reported_until": now}
    row, is_new = ReportSubscription.objects.get_or_create(user=user, defaults=fresh)
    if not is_new and row.is_on != on:
        ReportSubscription.objects.filter(pk=row.pk).update(**fresh)


def subscribe_new_users(now: datetime) -> None:
    """The same, without a choice of theirs, for users who have none yet."""
    ReportSubscription.objects.bulk_create(
        (
            ReportSubscription(user=user, is_on=None, since_at=now, reported_until=now)
            for user in new_users()
        ),
        ignore_conflicts=True,
    )


def new_users() -> QuerySet[User]:
    """Active users with a mail address and without a row of subscription."""
    known = ReportSubscription.objects.values("user")
    return User.objects.filter(is_active=True).exclude(email="").exclude(pk__in=known)


def unfair_incidents(now: datetime, lasting: timedelta) -> list[Incident]:
    """Open incidents of unfair use that last for longer, without a report.

    Muted, explained and exempt ones are left out.
    """
    rows = Incident.objects.filter(
        closed_at__isnull=True, lead__isnull=True, over_at__isnull=True,
        since_at__lte=now - lasting,
    )  # fmt: skip
    rows = rows.exclude(snoozed_until__gt=now).exclude(exempt_until__gt=now)
    reported = StoredReport.objects.filter(incident__isnull=False).values("incident")
    unreported = rows.exclude(pk__in=reported).select_related("gpu").order_by("pk")
    return [incident for incident in unreported if incident.is_hog]


def has_old(now: datetime) -> bool:
    return StoredReport.objects.filter(keep_until__lte=now).exists()


def delete_old(now: datetime, most: int = 100) -> int:
    """Delete reports whose time is over, at most `most`; how many."""
    old = list(StoredReport.objects.filter(keep_until__lte=now).values_list("pk", flat=True)[:most])
    StoredReport.objects.filter(pk__in=old).delete()
    return len(old)


def keep_until(now: datetime, days: float) -> datetime:
    return now + timedelta(days=days)


def without_content() -> Prefetch[str]:
    """The files of reports in a list, without their bytes."""
    return Prefetch("files", documents(StoredFile.objects.order_by("pk")))


def formats(row: StoredReport) -> list[str]:
    return sorted(file.format for file in row.files.all() if file.format not in MAIL)


def documents(files: QuerySet[StoredFile]) -> QuerySet[StoredFile]:
    """Those of a report in its own formats, without their bytes."""
    return files.exclude(format__in=MAIL).defer("content")
