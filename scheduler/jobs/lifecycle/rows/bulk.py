"""Statements for many jobs, in chunks that any database takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import BigIntegerField, Exists, OuterRef, QuerySet
from django.db.models.functions import Coalesce

from scheduler.facts.jobs import JobState
from scheduler.models import Job, JobInput

CHUNK = 500


def chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(ids), CHUNK):
        yield ids[at : at + CHUNK]


def update(ids: Sequence[int], **values: Any) -> None:
    """Set these columns of these jobs."""
    for chunk in chunks(ids):
        Job.objects.filter(pk__in=chunk).update(**values)


def forget_environments(ids: Sequence[int]) -> None:
    """Of ended jobs. Members of an array share one, which goes when the last of them has ended.

    Two last members may end at the same time on two hosts, unseen by each other; then it goes with
    the input of the array (job_files.forget).
    """
    open_members = Job.objects.filter(array=OuterRef("pk")).exclude(state=JobState.FINISHED.value)
    for chunk in chunks(ids):
        ended = Job.objects.filter(pk__in=chunk, has_environment=True)
        sharers = ended.annotate(
            first=Coalesce("array", "pk", output_field=BigIntegerField())
        ).values("first")
        inputs = JobInput.objects.filter(~Exists(open_members), pk__in=sharers)
        inputs.update(environment={})


def locked(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """These jobs in order; no other transaction changes them until the caller's ends."""
    return jobs.order_by("id").select_for_update(of=("self",))
