"""REST: who has how much, and what one's own limits leave."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from scheduler.pages import share_page, share_table

router = Router()


class ShareLine(Schema):
    """A person; parts of all GPUs are 0 to 1."""

    name: str
    wants: bool = Field(description="Has jobs that wait or run.")
    now: float | None = Field(description="What all their processes take now.")
    target: float | None = Field(description="What they should have now; none: wants nothing.")
    entitled: float
    usage: float | None = Field(description="What they took, a mean in which the past fades.")
    factor: float = Field(description="1: used nothing. 0.5: exactly the entitled part.")
    coverage: float | None = Field(description="For how much of the time their use is known.")
    waiting: int
    running: int
    gpus: int


class Shares(Schema):
    gpus: int
    half_life_hours: float
    people: list[ShareLine]


class Limit(Schema):
    """A limit with what is used of it; most null: no limit."""

    used: float
    most: float | None
    committed: float = Field(0.0, description="What running jobs may still take.")


class QuotaBody(Schema):
    """Memory is in bytes; GPU-minutes are those of the day that ends at `resets_at`."""

    name: str
    share_pct: float | None
    reserved_pct: float
    priority: int | None
    gpu_minutes: Limit
    gpus: Limit
    jobs: Limit
    memory_bytes: Limit
    queued: Limit
    gpu_minutes_left: float | None
    resets_at: datetime
    zone: str


@router.get("shares/", response=Shares, summary="Who has how much", url_name="shares")
def shares(request: HttpRequest) -> dict[str, Any]:
    """Every process counts, with or without a job. For all to see."""
    table = share_table.table(timezone.now())
    return {
        "gpus": table.gpus,
        "half_life_hours": table.half_life_hours,
        "people": [_line(line) for line in table.lines],
    }


@router.get("quota/", response=QuotaBody, summary="See your limits", url_name="quota")
def quota(
    request: HttpRequest,
    user: Annotated[str | None, Query(description="Somebody else: for operators.")] = None,
) -> dict[str, Any]:
    """What bounds your jobs, and what is used of it now."""
    person: User = request.auth  # type: ignore[attr-defined]
    name = user or person.username
    if name != person.username and not person.is_staff:
        raise HttpError(403, f"Only {name} and operators may see these limits.")
    own = share_page.own_of(name, timezone.now())
    figures = {figure.name: figure for figure in own.figures}
    return {
        "name": name,
        "share_pct": own.line.quota.share_pct,
        "reserved_pct": own.line.quota.reserved_pct,
        "priority": own.line.quota.priority,
        **{
            key: {"used": f.used, "most": f.most, "committed": f.committed}
            for key, f in figures.items()
        },
        "gpu_minutes_left": own.left,
        "resets_at": own.resets_at,
        "zone": own.zone,
    }


def _line(line: share_table.Line) -> dict[str, Any]:
    standing = line.standing
    return {
        "name": line.name,
        "wants": line.wants,
        "now": line.now,
        "target": standing.target if line.wants else None,
        "entitled": line.entitled,
        "usage": standing.usage,
        "factor": line.factor,
        "coverage": line.coverage,
        "waiting": line.waiting,
        "running": standing.jobs,
        "gpus": standing.gpus,
    }
