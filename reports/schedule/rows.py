"""Rows of stored reports: who may see them, and when they are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Prefetch, QuerySet

from monitor.models import Incident
from monitor.owners.identity.policy import Viewer
from reports.models import ReportSchedule, ReportSubscription, StoredFile, StoredReport

# Reports on request: so many in a day for each user.
MOST_A_DAY = 20


def visible_to(viewer: Viewer) -> QuerySet[StoredReport]:
    """The newest first. Operators see all, other users what was made for them."""
    rows = StoredReport.objects.order_by("-made_at", "-pk")
    return rows if viewer.operator else rows.filter(viewer=viewer.username)


@transaction.atomic
def store(row: StoredReport, files: Mapping[str, bytes]) -> StoredReport:
    """Save a new report with its files."""
    row.save(force_insert=True)
    StoredFile.objects.bulk_create(
        StoredFile(report=row, format=name, content=content, sha256=sha256(content).hexdigest())
        for name, content in files.items()
    )
    return row


def requested_since(username: str, since: datetime) -> int:
    rows = StoredReport.objects.filter(kind=StoredReport.Kind.REQUESTED, made_by=username)
    return rows.filter(made_at__gt=since).count()


def schedules(now: datetime) -> list[ReportSchedule]:
    """The enabled schedules that do not pause after a failure."""
    rows = ReportSchedule.objects.filter(enabled=True).exclude(retry_at__gt=now)
    return list(rows.order_by("pk"))


def subscriptions(now: datetime) -> list[ReportSubscription]:
    """The same of users with an active account."""
    rows = ReportSubscription.objects.filter(user__is_active=True).exclude(retry_at__gt=now)
    return list(rows.select_related("user").order_by("pk"))


def is_subscribed(user: User) -> bool:
    return ReportSubscription.objects.filter(user=user).exists()


def subscribe(user: User, now: datetime, *, on: bool) -> None:
    """The first report is of the week in which `now` is."""
    if on:
        ReportSubscription.objects.get_or_create(
            user=user, defaults={"since_at": now, "reported_until": now}
        )
    else:
        ReportSubscription.objects.filter(user=user).delete()


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
    return Prefetch("files", StoredFile.objects.defer("content").order_by("pk"))


def formats(row: StoredReport) -> list[str]:
    return sorted(file.format for file in row.files.all().defer("content"))
