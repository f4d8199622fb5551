"""REST: stored reports. They are listed, made and fetched in each format; they never change."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import PlainText, RequestBody, calling_viewer
from monitor.pages.requests import InvalidInput
from reports.figures.actions import NotAllowed, ReportBusy, ScopeNotFound
from reports.figures.facts import ReportRefused
from reports.models import ReportSchedule, StoredReport
from reports.render.actions import FORMATS, MEDIA
from reports.schedule import rows
from reports.schedule import step as delivery
from reports.schedule.step import NotSent, TooManyReports

router = Router()
SHOWN = 100
FILES = {
    media.partition(";")[0]: {"schema": {} if name == "json" else {"type": "string"}}
    for name, (media, _) in MEDIA.items()
}


class StoredReportBody(Schema):
    """A report as it was made."""

    id: int
    kind: str = Field(description="scheduled, own, incident or requested.")
    title: str
    scope: str
    from_: datetime = Field(alias="from")
    to: datetime
    made_at: datetime
    made_by: str
    keep_until: datetime
    formats: list[str]
    missing: dict[str, str] = Field(description="Formats that could not be made, and why.")


class StoredReports(Schema):
    reports: list[StoredReportBody]
    total: int


class NewReport(RequestBody):
    """The period and scope of a report, as of `GET /api/reports/usage/`."""

    last: PlainText = Field("", max_length=20)
    from_: PlainText = Field("", alias="from", max_length=40)
    to: PlainText = Field("", max_length=40)
    scope: PlainText = Field("all", max_length=200)


@router.get("stored/", response=StoredReports, by_alias=True, summary="List stored reports")
def stored_reports(
    request: HttpRequest,
    offset: Annotated[
        int, Query(ge=0, le=1_000_000, description="Number of newer reports to skip.")
    ] = 0,
) -> dict[str, Any]:
    """The newest 100 from `offset`. Operators see all; you see those made for you."""
    reports = rows.visible_to(calling_viewer(request))
    page = reports.prefetch_related(rows.without_content())[offset : offset + SHOWN]
    return {"reports": [_body(row) for row in page], "total": reports.count()}


@router.post(
    "stored/", response={201: StoredReportBody}, by_alias=True, summary="Make and store a report"
)
def store_report(request: HttpRequest, new: NewReport) -> Status[dict[str, Any]]:
    """Made as you may see it. Users may store 20 reports a day."""
    try:
        row = delivery.store_requested(
            new.last, new.from_, new.to, new.scope, calling_viewer(request), timezone.now()
        )
    except ReportRefused as error:
        raise InvalidInput([(error.field, error.text)]) from error
    except ScopeNotFound as error:
        raise InvalidInput([("scope", str(error))]) from error
    except NotAllowed as error:
        raise HttpError(403, str(error)) from error
    except (ReportBusy, TooManyReports) as error:
        raise HttpError(429, str(error)) from error
    return Status(201, _body(row))


@router.get(
    "stored/{pk}/", response=StoredReportBody, by_alias=True, summary="Show a stored report"
)
def stored_report(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Period, scope, retention and formats of the report."""
    return _body(delivery.visible(pk, calling_viewer(request)))


@router.get(
    "stored/{pk}/{format}/",
    summary="Fetch a stored report",
    url_name="stored-report-file",
    openapi_extra={"responses": {200: {"description": "The file.", "content": FILES}}},
)
def stored_file(
    request: HttpRequest,
    pk: int,
    format: Annotated[str, Path(description="json, csv, xlsx, html, pdf or text.")],
) -> HttpResponse:
    """The file as it was made. Downloads are audited."""
    viewer = calling_viewer(request)
    row = delivery.visible(pk, viewer)
    if format not in FORMATS:
        raise InvalidInput([("format", f"Write one of {', '.join(FORMATS)}.")])
    return delivery.download(row, format, viewer.username, timezone.now())


@router.post(
    "schedules/{pk}/send/",
    response={201: StoredReportBody},
    by_alias=True,
    summary="Send a scheduled report now",
)
def send_schedule(request: HttpRequest, pk: int) -> Status[dict[str, Any]]:
    """The report about the last complete period, which the schedule does not send again.

    Operators only.
    """
    viewer = calling_viewer(request)
    if not viewer.operator:
        raise HttpError(403, "Only operators send scheduled reports.")
    schedule = get_object_or_404(ReportSchedule, pk=pk)
    try:
        row = delivery.send_now(schedule, viewer.username, timezone.now())
    except (NotSent, ScopeNotFound) as error:
        raise HttpError(409, str(error)) from error
    except ReportBusy as error:
        raise HttpError(429, str(error)) from error
    return Status(201, _body(row))


def _body(row: StoredReport) -> dict[str, Any]:
    return {
        "id": row.pk,
        "kind": row.kind,
        "title": row.title,
        "scope": row.scope,
        "from": row.from_at,
        "to": row.until_at,
        "made_at": row.made_at,
        "made_by": row.made_by,
        "keep_until": row.keep_until,
        "formats": rows.formats(row),
        "missing": row.missing,
    }
