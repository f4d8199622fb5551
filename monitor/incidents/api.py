"""REST: incidents, and the responses of users and operators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router, Schema
from ninja.errors import HttpError
from pydantic import Field

from monitor.api import Moment, PlainLines, RequestBody, answer_model, calling_viewer
from monitor.facts.formats import values_of
from monitor.facts.incidents import FACET_ANSWERS, INCIDENT_ANSWERS
from monitor.incidents import actions
from monitor.incidents import pages as incident_pages
from monitor.incidents.alerts import steps
from monitor.incidents.pages import IncidentFilters
from monitor.models import Incident
from monitor.owners.policy import Viewer
from monitor.pages.requests import InvalidInput

router = Router()


_Facet = answer_model("_Facet", Schema, FACET_ANSWERS)
_Incident = answer_model("_Incident", Schema, INCIDENT_ANSWERS)


class FacetBody(_Facet):  # type: ignore[misc,valid-type]  # its fields follow from the table
    """One rule on one GPU."""


class IncidentBody(_Incident):  # type: ignore[misc,valid-type]  # its fields follow from the table
    """null = not known, or not a matter of this rule."""

    facets: list[FacetBody] = Field(description="Each rule on each GPU, the incident's own first.")


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
    matching = incident_pages.matching(IncidentFilters.from_query(query), timezone.now())
    viewer = calling_viewer(request)
    return {"incidents": [_body(incident, viewer) for incident in matching[:limit]]}


@router.get("{int:pk}/", response=IncidentBody, summary="Show an incident", url_name="incident")
def show(request: HttpRequest, pk: int) -> dict[str, Any]:
    return _body(get_object_or_404(Incident, pk=pk), calling_viewer(request))


@router.post(
    "{int:pk}/acknowledge/",
    response=IncidentBody,
    summary="Explain an incident",
    url_name="incident-ack",
)
def acknowledge(request: HttpRequest, pk: int, body: ExplanationBody) -> dict[str, Any]:
    """Owner or operator: acknowledge the incident, with an explanation."""
    row, viewer = get_object_or_404(Incident, pk=pk), calling_viewer(request)
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
    to = steps.mail_to_owner(row)
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
    viewer = calling_viewer(request)
    if not viewer.operator:
        raise HttpError(403, "Only operators may do this.")
    return get_object_or_404(Incident, pk=pk), viewer


def _body(row: Incident, viewer: Viewer) -> dict[str, Any]:
    sees_all = actions.may_see_details(row, viewer)
    return values_of(INCIDENT_ANSWERS, row, sees_all=sees_all) | {
        "facets": [values_of(FACET_ANSWERS, part) for part in row.parts]
    }
