"""REST: GPU-hours of jobs by a tag. Tags of jobs are visible to all users."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Query, Router, Schema

from monitor.facts.input_rules import character_problem
from monitor.pages.requests import InvalidInput
from reports.figures.facts import ReportRefused
from reports.figures.policy import periods
from reports.render.api import Begin, End, Last
from reports.tags import pages as actions
from reports.tags.pages import LONGEST_NAME, LONGEST_USER

router = Router()
FORMATS = ("json", "csv")


class TagBody(Schema):
    """Parts are 0 to 1; null is unknown."""

    value: str
    jobs: int
    users: int
    gpu_hours_held: float
    gpu_hours_used: float | None = Field(description="Of the jobs whose use was measured.")
    efficiency: float | None = Field(description="Used part of their held time.")
    coverage: float | None = Field(description="Measured part of the held time.")


class TagReport(Schema):
    tag: str
    from_: datetime = Field(alias="from")
    to: datetime
    total: int = Field(description="Number of values; at most 1000 are listed.")
    values: list[TagBody]


@router.get(
    "tags/",
    response=TagReport,
    by_alias=True,
    summary="Report GPU-hours by tag",
    url_name="report-tags",
)
def by_tag(
    request: HttpRequest,
    tag: Annotated[
        str, Query(min_length=1, max_length=LONGEST_NAME, description="Its name: project.")
    ],
    last: Last = "",
    begin: Begin = "",
    end: End = "",
    user: Annotated[
        str, Query(max_length=LONGEST_USER, description="A user's name, or me; empty: all.")
    ] = "",
    format: Annotated[str, Query(description="json or csv.")] = "json",
) -> Any:
    """Jobs by the value of a tag, most GPU-hours first; the last 24 hours by default.

    Only jobs that gpucoord still stores are counted.
    """
    for name, text in (("tag", tag), ("user", user)):
        if problem := character_problem(text):
            raise InvalidInput([(name, problem)])
    if format not in FORMATS:
        raise InvalidInput([("format", f"Write one of {', '.join(FORMATS)}.")])
    now = timezone.now()
    try:
        period = periods.parse(last, begin, end, timezone.get_current_timezone_name(), now)
    except ReportRefused as refused:
        raise InvalidInput([(refused.field, refused.text)]) from None
    if user == "me":
        user = request.auth.get_username()  # type: ignore[attr-defined]
    answer = actions.report(tag, period, user, now)
    if format == "json":
        return answer
    response = HttpResponse(actions.as_csv(answer), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="gpu-hours-by-tag-{period.name}.csv"'
    return response
