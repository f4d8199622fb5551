"""REST: incidents, and what people do about them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router, Schema
from ninja.errors import HttpError
from pydantic import Field

from monitor import incident_actions as actions
from monitor.models import Incident
from monitor.pages import incident_page
from monitor.pages.incident_page import Wanted
from monitor.policy.privacy import Viewer

router = Router()


class IncidentBody(Schema):
    """null = not known, or not a matter of this rule."""

    id: int
    rule: str
    severity: str = Field(description="info: nobody waits. warning: others do. error: for long.")
    text: str
    host: str
    gpu_uuid: str | None
    user: str | None = Field(description="null = the owner is not known.")
    program: str | None
    pid: int | None
    job: str | None
    job_owner: str | None
    since: datetime
    opened_at: datetime
    last_seen_at: datetime
    closed_at: datetime | None
    lasts_s: float
    peak_pct: float | None
    mean_pct: float | None
    expected_pct: float | None = Field(description="What those who wait leave of the machine.")
    measured_pct: float | None = Field(description="The person's share of the machine.")
    coverage: float | None = Field(description="0 to 1: of how much of the time the use is known.")
    memory_bytes: int | None
    waited_jobs: int
    waited_s: float = Field(description="How long others waited meanwhile, together.")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    explanation: str | None = Field(description="Only for its owner and for operators.")
    snoozed_until: datetime | None


class Incidents(Schema):
    incidents: list[IncidentBody]


class ExplanationBody(Schema):
    explanation: str = Field("", max_length=actions.LONGEST_TEXT)


class SnoozeBody(Schema):
    hours: float = Field(ge=0, le=24 * 365, description="0 ends it.")


class ExemptionBody(Schema):
    scope: Literal["user", "program", "container"] = "user"
    until: datetime | None = Field(None, description="null: for good.")
    all_rules: bool = False
    reason: str = Field("", max_length=actions.LONGEST_TEXT)


class ReasonBody(Schema):
    reason: str = Field("", max_length=actions.LONGEST_TEXT)


@router.get("", response=Incidents, summary="List incidents", url_name="incidents")
def list_incidents(
    request: HttpRequest,
    state: Annotated[str, Query(description="open, closed or all.")] = "open",
    rule: Annotated[str, Query(description="Only of this rule, such as sustained.")] = "",
    person: Annotated[str, Query(description="Only of this person.")] = "",
    gpu: Annotated[str, Query(description="Only on the GPU with this UUID.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Who takes more than is theirs: open ones the worst first, others the newest first."""
    asked = {"state": state, "rule": rule, "person": person, "gpu": gpu}
    found = incident_page.matching(Wanted.from_query(asked), timezone.now())
    viewer = _viewer(request)
    return {"incidents": [_body(incident, viewer) for incident in found[:limit]]}


@router.get("{int:pk}/", response=IncidentBody, summary="Show an incident", url_name="incident")
def show(request: HttpRequest, pk: int) -> dict[str, Any]:
    return _body(get_object_or_404(Incident, pk=pk), _viewer(request))


@router.post(
    "{int:pk}/acknowledge/", response=IncidentBody, summary="Explain one", url_name="incident-ack"
)
def acknowledge(request: HttpRequest, pk: int, body: ExplanationBody) -> dict[str, Any]:
    """The owner, or an operator: say that one knows of it, and why it is so."""
    row, viewer = get_object_or_404(Incident, pk=pk), _viewer(request)
    if not actions.may_open(row, viewer):
        raise HttpError(403, "Only its owner and operators may do this.")
    actions.acknowledge(row, body.explanation, viewer.username, timezone.now())
    return _body(row, viewer)


@router.post(
    "{int:pk}/snooze/", response=IncidentBody, summary="Snooze one", url_name="incident-snooze"
)
def snooze(request: HttpRequest, pk: int, body: SnoozeBody) -> dict[str, Any]:
    """Operators: nobody is told of it for so long, and it counts as no hog."""
    row, viewer = _operated(request, pk)
    actions.snooze(row, body.hours, viewer.username, timezone.now())
    return _body(row, viewer)


@router.post(
    "{int:pk}/close/", response=IncidentBody, summary="Close one", url_name="incident-close"
)
def close(request: HttpRequest, pk: int, body: ReasonBody) -> dict[str, Any]:
    """Operators: it does not open again before it has stopped."""
    row, viewer = _operated(request, pk)
    actions.close(row, viewer.username, timezone.now(), body.reason)
    return _body(row, viewer)


@router.post(
    "{int:pk}/exempt/", response=IncidentBody, summary="Exempt someone", url_name="incident-exempt"
)
def exempt(request: HttpRequest, pk: int, body: ExemptionBody) -> dict[str, Any]:
    """Operators: spare the incident's person, program or container; what that covers is closed."""
    row, viewer = _operated(request, pk)
    now = timezone.now()
    if body.scope not in actions.scopes(row):
        raise HttpError(422, f"This incident names no {body.scope}.")
    if body.until is not None and (body.until.tzinfo is None or body.until <= now):
        raise HttpError(422, "until: a time to come, with its zone, such as 2027-01-31T12:00Z.")
    actions.exempt(
        row,
        body.scope,
        body.until,
        viewer.username,
        now,
        reason=body.reason,
        all_rules=body.all_rules,
    )
    return _body(row, viewer)


def _operated(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    viewer = _viewer(request)
    if not viewer.operator:
        raise HttpError(403, "Only operators may do this.")
    return get_object_or_404(Incident, pk=pk), viewer


def _viewer(request: HttpRequest) -> Viewer:
    user = request.auth  # type: ignore[attr-defined]
    return Viewer(user.get_username(), user.is_staff)


def _body(row: Incident, viewer: Viewer) -> dict[str, Any]:
    known = {name: getattr(row, name, None) for name in IncidentBody.model_fields}
    # What is not known stands as an empty text in the row.
    texts = ("user", "program", "job_owner", "acknowledged_by", "explanation")
    known |= {name: known[name] or None for name in texts}
    if not actions.may_open(row, viewer):
        known["explanation"] = None
    return known | {
        "gpu_uuid": row.gpu_id,
        "job": row.job_ref or None,
        "since": row.since_at,
        "lasts_s": row.lasts.total_seconds(),
    }
