"""The report by tag, for REST and the page. Tags of jobs are visible to all users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import F, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from reports.periods.facts import Period
from reports.render.engines import csv_file
from reports.tags.policy import TaggedAttempt, TagUse, sums
from scheduler.models import Attempt, Job

LONGEST_NAME, LONGEST_USER = 40, 150
MOST_VALUES = 1000
CSV_COLUMNS = (
    "value",
    "jobs",
    "users",
    "gpu_hours_held",
    "gpu_hours_used",
    "efficiency",
    "coverage",
)


def report(tag: str, period: Period, user: str, now: datetime) -> dict[str, Any]:
    """The answer of GET /api/reports/tags/. user: "" = all."""
    attempts = tagged_attempts(tag, period.since, period.until, user)
    uses = sums(attempts, period.since, period.until, now)
    return {
        "tag": tag,
        "from": period.since,
        "to": period.until,
        "total": len(uses),
        "values": [_value(use) for use in uses[:MOST_VALUES]],
    }


def _value(use: TagUse) -> dict[str, Any]:
    return {
        "value": use.value,
        "jobs": len(use.jobs),
        "users": len(use.users),
        "gpu_hours_held": use.held_s / 3600,
        "gpu_hours_used": use.used_s / 3600 if use.known_s else None,
        "efficiency": use.efficiency,
        "coverage": use.coverage,
    }


def as_csv(answer: dict[str, Any]) -> bytes:
    """The values of a report; the column of the tag has the heading "value"."""
    return csv_file.table(CSV_COLUMNS, answer["values"])


# The attempts of jobs that have a tag.

PIECE = 2000
# Names of tags are those of so many newest jobs.
NEWEST_JOBS, MOST_NAMES = 5000, 50


def tag_names() -> list[str]:
    """Names of tags in use, the most frequent first."""
    newest = Job.objects.order_by("-pk").values_list("tags", flat=True)[:NEWEST_JOBS]
    counts = Counter(name for tags in newest for name in tags)
    return [name for name, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:MOST_NAMES]]


def tagged_attempts(
    tag: str, since: datetime, until: datetime, user: str = ""
) -> Iterator[TaggedAttempt]:
    """Those that overlap the period; of one user, or of all."""
    rows = Attempt.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=since), placed_at__lt=until, job__tags__has_key=tag
    )
    if user:
        rows = rows.filter(job__owner__username=user)
    rows = rows.annotate(
        value=KeyTextTransform(tag, "job__tags"), began_at=Coalesce("started_at", "placed_at")
    )
    columns = (
        "value", "job__owner__username", "job_id", "gpu_uuids", "began_at", "ended_at", "use__sm_s",
    )  # fmt: skip
    for value, owner, job, uuids, began_at, ended_at, sm_s in (
        rows.order_by(F("pk")).values_list(*columns).iterator(PIECE)
    ):
        yield TaggedAttempt(
            value=value or "",
            owner=owner,
            job=job,
            gpus=len(uuids),
            began_at=began_at,
            ended_at=ended_at,
            sm_s=sm_s,
        )
