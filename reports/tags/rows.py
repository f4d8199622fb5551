"""Rows: the attempts of jobs that have a tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from django.db.models import F, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from reports.tags.policy import TaggedAttempt
from scheduler.models import Attempt, Job

PIECE = 2000
# Names of tags are those of so many newest jobs.
NEWEST_JOBS, MOST_NAMES = 5000, 50


def names() -> list[str]:
    """Names of tags in use, the most frequent first."""
    newest = Job.objects.order_by("-pk").values_list("tags", flat=True)[:NEWEST_JOBS]
    counts = Counter(name for tags in newest for name in tags)
    return [name for name, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:MOST_NAMES]]


def attempts(tag: str, since: datetime, until: datetime, user: str = "") -> Iterator[TaggedAttempt]:
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
