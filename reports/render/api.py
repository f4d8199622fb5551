"""REST: usage reports in each format."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from monitor.api import calling_viewer
from monitor.owners.policy import Viewer
from monitor.pages.requests import InvalidInput
from reports.figures.actions import NotAllowed, ReportBusy, ScopeNotFound, limited
from reports.figures.facts import Report, ReportRefused
from reports.figures.policy import periods
from reports.render.actions import FORMATS, NoTypst, as_json, deliver

router = Router()
# Parameters of a period.
Last = Annotated[str, Query(description="A length such as 24h, 7d or 4w; or day, week or month.")]
Begin = Annotated[str, Query(alias="from", description="ISO 8601 date or time.")]
End = Annotated[str, Query(alias="to", description="ISO 8601; empty: now.")]


class PeriodBody(Schema):
    name: str
    label: str
    from_: datetime = Field(alias="from")
    to: datetime
    zone: str
    hours: float


class GpuHoursBody(Schema):
    """capacity = used + idle_held + booked_empty + free + unknown."""

    capacity: float
    used: float
    idle_held: float = Field(description="A process is there and the GPU does nothing.")
    booked_empty: float = Field(description="Booked by a job without a process on it.")
    free: float
    unknown: float = Field(description="Not measured.")


class PeopleHoursBody(GpuHoursBody):
    held: float


class CostsBody(Schema):
    """null: the price is not set, or the energy is not known."""

    energy: float | None
    gpu_time: float | None
    idle: float | None
    co2_kg: float | None
    currency: str


class TotalsBody(Schema):
    """Of all GPUs of the scope; `people`: the part of the users of the report."""

    gpus: int
    gpu_hours: GpuHoursBody
    is_reconciled: bool = Field(description="The parts add up to the capacity within 0.1 %.")
    people: PeopleHoursBody
    of_100_held: dict[str, float] | None
    wasted_of_100_elsewhere: dict[str, float] = Field(
        description="GPU-hours not used of 100 allocated, at clusters with public records."
    )
    used_before: float | None = Field(
        description="GPU-hours of these users in the period before; null: not recorded."
    )
    waited_hours: float = Field(description="Hours that jobs spent in the queue.")
    waited_while_idle_hours: float = Field(
        description="Upper bound of the waits while GPUs were held without use."
    )
    energy_kwh: float | None
    idle_energy_kwh: float | None
    costs: CostsBody


class TrendBody(Schema):
    from_: datetime = Field(alias="from")
    gpu_hours_used: float
    efficiency: float | None


class FindingBody(Schema):
    incident: int
    rule: str
    title: str
    text: str
    since: datetime
    hours: float
    severity: str
    url: str


class UserBody(Schema):
    """Parts are 0 to 1, percentages 0 to 100; null is unknown."""

    user: str | None = Field(description="null: the owner is unknown.")
    gpu_hours_held: float
    gpu_hours_used: float
    gpu_hours_idle_held: float
    efficiency: float | None = Field(description="Used part of the known held time.")
    coverage: float | None = Field(description="Measured part of the time of processes.")
    entitled_pct: float | None = Field(description="The same as `entitlement_pct`.")
    entitlement_pct: float | None = Field(
        description="The grant of quotas, in percent of the machine."
    )
    target_share_pct: float | None = Field(
        description="The grant of fair share at the end of the period; null: the user has no jobs."
    )
    use_pct: float | None = Field(description="The same as `share_pct`.")
    share_pct: float | None = Field(description="Held part of the measured capacity.")
    waited_hours: float
    caused_wait_hours: float = Field(
        description="Time that jobs of others would not have waited if the user had held only the"
        " entitlement."
    )
    energy_kwh: float | None
    gpu_hours_booked_empty: float
    gpu_hours_unknown: float
    memory_gib_hours: float | None
    target_pct: float | None = Field(description="The same as `target_share_pct`.")
    overuse_hours: float = Field(description="Above the own share while others waited.")
    idle_energy_kwh: float | None
    right_size: str | None
    is_anonymous: bool = Field(description="You may not see whose row this is.")
    trend: list[TrendBody]
    findings: list[FindingBody]
    further_findings: int


class ViolationBody(Schema):
    program: str
    pid: int | None
    user: str | None
    processes: int
    hours: float
    above_pct: float
    expected_pct: float
    mean_pct: float
    coverage: float
    waited_hours: float
    gpus: list[str]
    url: str
    is_anonymous: bool
    text: str


class RecommendationBody(Schema):
    kind: str
    text: str
    user: str | None


class QueueBody(Schema):
    job_class: str
    jobs: int
    waiting: int
    p50_s: float | None
    p90_s: float | None
    blocker: str = Field(description="The main blocker of the class; empty: unknown.")


class BlockerWaitsBody(Schema):
    """Waits of the jobs that waited for this blocker longest."""

    blocker: str
    jobs: int
    p50_s: float | None
    p90_s: float | None
    waited_hours: float


class RuleBody(Schema):
    rule: str
    title: str
    incidents: int
    hours: float
    waited_hours: float


class OperationBody(Schema):
    defensive_hours: float
    throttled_hours: float
    deferrals: int
    preemptions: int
    evictions: int


class PatternBody(Schema):
    user: str | None
    text: str


class ReportedGpu(Schema):
    uuid: str
    name: str
    gpu_hours: GpuHoursBody
    energy_kwh: float | None


class WaitBody(Schema):
    t: int
    hours: float


class SectionBody(Schema):
    key: str
    title: str
    head: list[str]
    rows: list[list[str | int | float | None]]
    note: str


class UsageReport(Schema):
    """Others' rows are anonymous unless you are an operator or may see their group."""

    period: PeriodBody
    scope: str
    made_at: datetime
    coverage: float | None = Field(description="Measured part of the GPU time, 0 to 1.")
    least_coverage: float = Field(description="Use that was measured less is not judged.")
    notes: list[str]
    summary: list[str] = Field(description="The report in at most three sentences.")
    wider_than_scope: dict[str, str] = Field(
        description="Fields that count more than the scope, such as all users of the GPUs."
    )
    totals: TotalsBody
    users: list[UserBody]
    violations: list[ViolationBody]
    heavy_use: list[ViolationBody] = Field(description="Heavy use that is no violation.")
    open_incidents: list[FindingBody] = Field(description="Those open at the end of the period.")
    recommendations: list[RecommendationBody]
    queue: list[QueueBody]
    blockers: list[BlockerWaitsBody]
    incidents: list[RuleBody]
    operation: OperationBody
    patterns: list[PatternBody]
    gpus: list[ReportedGpu]
    heat: list[list[float | None]] = Field(
        description="Used percent by weekday (Monday first) and hour."
    )
    waits: list[WaitBody]
    sections: list[SectionBody]


@router.get(
    "usage/",
    response={200: UsageReport},
    by_alias=True,
    summary="Report usage and fair share",
    url_name="report-usage",
)
def usage(
    request: HttpRequest,
    last: Last = "",
    begin: Begin = "",
    end: End = "",
    scope: Annotated[
        str, Query(description="all, user:NAME, group:NAME, gpu:UUID or host:NAME.")
    ] = "all",
    format: Annotated[str, Query(description="json, csv, xlsx, html, pdf or text.")] = "json",
) -> Any:
    """GPU-hours, waits, energy and violations of a period; the last 24 hours by default."""
    if format not in FORMATS:
        raise InvalidInput([("format", f"Write one of {', '.join(FORMATS)}.")])
    viewer, now = calling_viewer(request), timezone.now()
    report = _report((last, begin, end), scope, viewer, now)
    if format == "json":
        return as_json(report)
    try:
        return deliver(report, format, viewer.username, now, request.build_absolute_uri("/"))
    except NoTypst as error:
        raise HttpError(501, str(error)) from None


def _report(period: tuple[str, str, str], scope: str, viewer: Viewer, now: datetime) -> Report:
    zone = timezone.get_current_timezone_name()
    try:
        chosen = periods.parse(*period, zone, now)
        return limited(chosen, periods.scope(scope), viewer, now)
    except ReportRefused as refused:
        raise InvalidInput([(refused.field, refused.text)]) from None
    except ScopeNotFound as missing:
        raise HttpError(404, str(missing)) from None
    except NotAllowed as error:
        raise HttpError(403, str(error)) from None
    except ReportBusy as error:
        raise HttpError(429, str(error)) from None
