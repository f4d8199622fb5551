"""REST: incidents, and the responses of users and operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router, Schema
from ninja.errors import HttpError
from pydantic import Field

from monitor.api import InvalidInput, Moment, PlainLines, RequestBody
from monitor.incidents import actions
from monitor.incidents.alerts.steps import owner_warnings
from monitor.incidents.pages import listing as incident_listing
from monitor.incidents.pages.listing import IncidentFilters
from monitor.models import Incident
from monitor.owners.identity.policy import Viewer

router = Router()


class FacetBody(Schema):
    """One rule on one GPU."""

    id: int
    rule: str
    gpu_uuid: str | None
    text: str
    severity: str
    since: datetime
    closed_at: datetime | None


class IncidentBody(Schema):
    """null = not known, or not a matter of this rule."""

    id: int
    rule: str
    severity: str = Field(description="info: no job waits. warning: others wait. error: for long.")
    text: str
    host: str
    gpu_uuid: str | None
    user: str | None = Field(description="null = the owner is not known.")
    program: str | None
    pid: int | None
    start_ticks: int | None = Field(
        description="Start of the process in clock ticks since the boot; with the pid, it names it."
    )
    job: str | None
    job_owner: str | None
    since: datetime
    opened_at: datetime
    last_seen_at: datetime
    closed_at: datetime | None
    lasts_s: float
    peak_pct: float | None
    mean_pct: float | None
    expected_pct: float | None = Field(
        description="Fair share: the entitlement, or the target share if that is more."
    )
    measured_pct: float | None = Field(description="Share of the machine that the user takes.")
    coverage: float | None = Field(
        description="Part of the time for which the usage is known, 0 to 1."
    )
    memory_bytes: int | None
    waited_jobs: int
    waited_s: float = Field(description="Total waiting time of other users meanwhile.")
    is_hog: bool = Field(
        description="Above the own share while others waited, or memory held idle; else the use"
        " takes nothing from others."
    )
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    rules: list[str] = Field(description="Rules of all facets.")
    gpus: list[str] = Field(description="UUIDs of all GPUs of the incident.")
    facets: list[FacetBody] = Field(description="Each rule on each GPU, the incident's own first.")
    explanation: str | None = Field(description="Visible to the owner and to operators.")
    snoozed_until: datetime | None


class Incidents(Schema):
    incidents: list[IncidentBody]


class ExplanationBody(RequestBody):
    explanation: PlainLines = Field("", max_length=actions.LONGEST_TEXT)


class SnoozeBody(RequestBody):
    hours: float = Field(ge=0, le=24 * 365, description="0 ends it.")


class ExemptionBody(RequestBody):
    scope: Literal["user", "program", "container"] = "user"
    until: Moment | None = Field(None, description="null: without end.")
    all_rules: bool = False
    reason: PlainLines = Field("", max_length=actions.LONGEST_TEXT)


class MessageBody(RequestBody):
    text: PlainLines = Field(min_length=1, max_length=actions.LONGEST_TEXT)


class EndBody(RequestBody):
    """The process as the incident names it. Another one is not signalled."""

    pid: int = Field(ge=1, le=2**31)
    start_ticks: int = Field(ge=0, le=2**62)
    kill: bool = Field(False, description="SIGKILL instead of SIGTERM.")


class ReasonBody(RequestBody):
    reason: PlainLines = Field("", max_length=actions.LONGEST_TEXT)


@router.get("", response=Incidents, summary="List incidents", url_name="incidents")
def list_incidents(
    request: HttpRequest,
    state: Annotated[str, Query(description="open, closed or all.")] = "open",
    rule: Annotated[str, Query(description="Rule, such as sustained.")] = "",
    person: Annotated[str, Query(description="User name.")] = "",
    gpu: Annotated[str, Query(description="UUID of the GPU.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Open incidents, the most severe first; other incidents, the newest first."""
    query = {"state": state, "rule": rule, "person": person, "gpu": gpu}
    matching = incident_listing.matching(IncidentFilters.from_query(query), timezone.now())
    viewer = _viewer(request)
    return {"incidents": [_body(incident, viewer) for incident in matching[:limit]]}


@router.get("{int:pk}/", response=IncidentBody, summary="Show an incident", url_name="incident")
def show(request: HttpRequest, pk: int) -> dict[str, Any]:
    return _body(get_object_or_404(Incident, pk=pk), _viewer(request))


@router.post(
    "{int:pk}/acknowledge/",
    response=IncidentBody,
    summary="Explain an incident",
    url_name="incident-ack",
)
def acknowledge(request: HttpRequest, pk: int, body: ExplanationBody) -> dict[str, Any]:
    """Owner or operator: acknowledge the incident, with an explanation."""
    row, viewer = get_object_or_404(Incident, pk=pk), _viewer(request)
    if not actions.may_see_details(row, viewer):
        raise HttpError(403, "Only its owner and operators may do this.")
    actions.acknowledge(row, body.explanation, viewer.username, timezone.now())
    return _body(row, viewer)


@router.post(
    "{int:pk}/snooze/",
    response=IncidentBody,
    summary="Snooze an incident",
    url_name="incident-snooze",
)
def snooze(request: HttpRequest, pk: int, body: SnoozeBody) -> dict[str, Any]:
    """Operators only. No alerts for this time, and the incident does not count as a hog."""
    row, viewer = _operated(request, pk)
    actions.snooze(row, body.hours, viewer.username, timezone.now())
    return _body(row, viewer)


@router.post(
    "{int:pk}/close/", response=IncidentBody, summary="Close an incident", url_name="incident-close"
)
def close(request: HttpRequest, pk: int, body: ReasonBody) -> dict[str, Any]:
    """Operators only. It does not open again before the overuse has stopped."""
    row, viewer = _operated(request, pk)
    actions.close(row, viewer.username, timezone.now(), body.reason)
    return _body(row, viewer)


@router.post(
    "{int:pk}/exempt/",
    response=IncidentBody,
    summary="Exempt a user, program or container",
    url_name="incident-exempt",
)
def exempt(request: HttpRequest, pk: int, body: ExemptionBody) -> dict[str, Any]:
    """Operators only. Incidents that the exemption covers are closed."""
    row, viewer = _operated(request, pk)
    now = timezone.now()
    if body.scope not in actions.scopes(row):
        raise InvalidInput([("scope", f"This incident names no {body.scope}.")])
    if body.until is not None and body.until <= now:
        raise InvalidInput([("until", "Write a time in the future, such as 2027-01-31T12:00Z.")])
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


@router.post(
    "{int:pk}/message/",
    response=IncidentBody,
    summary="Mail the user of an incident",
    url_name="incident-message",
)
def message(request: HttpRequest, pk: int, body: MessageBody) -> dict[str, Any]:
    """Operators only. The text is part of the audit trail."""
    row, viewer = _operated(request, pk)
    to = owner_warnings.mail_to_owner(row)
    if to.problem:
        raise HttpError(409, f"{to.problem}. Nothing was sent.")
    actions.write_to_owner(row, to, body.text, viewer.username, timezone.now())
    return _body(row, viewer)


@router.post(
    "{int:pk}/end/",
    response=IncidentBody,
    summary="End the process of an incident",
    url_name="incident-end",
)
def end(request: HttpRequest, pk: int, body: EndBody) -> dict[str, Any]:
    """Operators only. The host of the incident sends the signal within seconds; an event says so.

    Jobs are cancelled instead. Processes of root and of system accounts are refused.
    """
    row, viewer = _operated(request, pk)
    process = (body.pid, body.start_ticks)
    now = timezone.now()
    if problem := actions.end_process(row, process, viewer.username, now, kill=body.kill):
        raise HttpError(409, f"{problem} No signal was sent.")
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
    parts = row.parts
    shown = IncidentBody.model_fields.keys() - {"facets"}
    values = {name: getattr(row, name, None) for name in shown}
    # Unknown values stand as empty texts in the row.
    texts = ("user", "program", "job_owner", "acknowledged_by", "explanation")
    values |= {name: values[name] or None for name in texts}
    if not actions.may_see_details(row, viewer):
        values["explanation"] = None
    return values | {
        "gpu_uuid": row.gpu_id,
        "job": row.job_ref or None,
        "since": row.since_at,
        "rules": list(dict.fromkeys(part.rule for part in parts)),
        "gpus": list(dict.fromkeys(part.gpu_id for part in parts if part.gpu_id)),
        "facets": [_facet(part) for part in parts],
        "lasts_s": row.lasts.total_seconds(),
    }


def _facet(row: Incident) -> dict[str, Any]:
    names = ("id", "rule", "text", "severity", "closed_at")
    values = {name: getattr(row, name) for name in names}
    return values | {"gpu_uuid": row.gpu_id, "since": row.since_at}
