"""REST: waiting jobs that would start earlier if an incident ended."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from monitor.api import caller
from monitor.incidents.actions import may_see_details
from monitor.models import Incident
from monitor.owners.policy import Viewer
from scheduler.dispatch.steps.preview import earlier_starts

router = Router()


class EarlierJob(Schema):
    """A waiting job with its expected starts."""

    job: int
    name: str
    owner: str
    start: datetime = Field(description="Expected start if the incident ended now.")
    start_now: datetime | None = Field(description="Expected start as it is; null: not known.")


class WithoutIncident(Schema):
    jobs: list[EarlierJob] | None = Field(
        description="The first to start first. null: not known, because no process outside the"
        " queue causes the incident, or because another engine plans the jobs."
    )


@router.get(
    "{int:pk}/without/", response=WithoutIncident, summary="Show what would start without it"
)
def without(request: HttpRequest, pk: int) -> WithoutIncident:
    """For the owner and operators: jobs that would start earlier if the incident ended now."""
    row, user = get_object_or_404(Incident, pk=pk), caller(request)
    if not may_see_details(row, Viewer(user.get_username(), user.is_staff)):
        raise HttpError(403, "Only its owner and operators may see this.")
    starts = None if row.closed_at else earlier_starts(row, timezone.now())
    if starts is None:
        return WithoutIncident(jobs=None)
    return WithoutIncident(
        jobs=[
            EarlierJob(
                job=each.job.pk,
                name=each.job.name,
                owner=each.job.owner.username,
                start=each.start,
                start_now=each.before,
            )
            for each in starts
        ]
    )
