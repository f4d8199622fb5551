"""REST: capacity figures of a host, computed once a day."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import caller
from monitor.thresholds import rows as thresholds
from reports import tasks
from reports.capacity import rows, step
from reports.figures.policy.advice import ReportPolicy

router = Router()
OFF = "Capacity planning is off. An operator can enable it: policy capacity, threshold enabled."


class HourPercentiles(Schema):
    """Nearest ranks of hourly means; null: `count` hours are too few."""

    count: int
    p50: float | None = Field(description="Needs 2 hours.")
    p90: float | None = Field(description="Needs 10 hours.")
    p95: float | None = Field(description="Needs 20 hours.")


class MonthPercentiles(HourPercentiles):
    month: str


class CapacityProfile(Schema):
    whole: HourPercentiles
    by_hour_of_week: list[HourPercentiles] = Field(
        description="168 hours in the server's time zone; Monday 00:00 is first."
    )
    by_month: list[MonthPercentiles]


class GpuCapacity(Schema):
    uuid: str
    index: int
    model: str
    memory_bytes: int | None
    utilisation_pct: CapacityProfile
    memory_used_bytes: CapacityProfile
    idle_hours: int = Field(description="Hours with a mean utilisation below 5 %.")
    known_hours: int
    idle_kwh: float | None = Field(description="Energy of the idle hours; null: unknown.")
    idle_cost: float | None = Field(
        None, description="Its price; null: unknown, or policy reports has no price per kWh."
    )


class MeanGpuCapacity(Schema):
    """Means of all GPUs of the host."""

    utilisation_pct: CapacityProfile
    memory_used_bytes: CapacityProfile


class DemandDay(Schema):
    day: date = Field(description="A complete UTC day.")
    gpus: float


class GpuDemand(Schema):
    """GPUs that work would have used if each job had started at once."""

    hours: int = Field(description="Hours with readings; all figures are of these.")
    supply_gpus: int
    mean_gpus: float | None
    peak_gpus: float | None = Field(description="Highest mean of an hour.")
    unmet_gpu_hours: float | None = Field(description="Demand beyond the supply.")
    waiting_gpu_hours: float | None = Field(
        description="Requested GPUs × waiting time. Jobs that still wait count, and jobs that"
        " were cancelled before their start do not."
    )
    days: list[DemandDay]


class DemandForecastPoint(Schema):
    day: date
    low: float
    middle: float
    high: float


class DemandForecast(Schema):
    """A straight line through the daily means, with an 80 % prediction interval."""

    days: int
    supply_gpus: int
    gpus_a_week: float
    horizon: date
    points: list[DemandForecastPoint]
    exceeds_earliest: date | None = Field(description="The upper bound exceeds the supply.")
    exceeds: date | None = Field(description="null: not before the horizon.")
    exceeds_latest: date | None


class ReplayedWaits(Schema):
    """Waits in seconds; null: no job started."""

    jobs: int
    p50_s: float | None
    p90_s: float | None
    waited_gpu_hours: float = Field(
        description="Whole GPUs × waiting time of the jobs submitted since then that have started."
    )
    never: int = Field(description="Jobs that these GPUs can never start.")


class ReplayAlternative(Schema):
    kind: str = Field(description="more, less or mig.")
    title: str
    figures: ReplayedWaits | None = Field(
        description="null: no jobs, or the time limit was reached."
    )
    slowest: ReplayedWaits | None = Field(
        description="The same if work on a MIG instance takes longer by its compute slices."
    )
    starts_now: int | None = Field(
        description="Waiting jobs that would start now; null: not asked, or the GPU is in use."
    )


class QueueReplay(Schema):
    since: datetime
    jobs: int
    assumed: int = Field(description="Jobs that have not ended; their run time is assumed.")
    left_out: int = Field(description="Jobs without a known run time.")
    waiting_now: int
    starts_now: int = Field(description="Waiting jobs that can start without any change.")
    recorded: ReplayedWaits | None
    replayed: ReplayedWaits | None
    alternatives: list[ReplayAlternative]


class CapacityBody(Schema):
    """null: unknown, or not computed yet."""

    host: str
    at: datetime | None
    requested_at: datetime | None = Field(description="New figures are being computed.")
    problem: str | None = Field(description="Why the last computation failed.")
    gpus: list[GpuCapacity] = []
    all_gpus: MeanGpuCapacity | None = None
    queue_gpus: CapacityProfile | None = Field(
        None, description="GPUs that waiting jobs requested, by hour."
    )
    demand: GpuDemand | None = None
    forecast: DemandForecast | None = Field(
        None, description="null: fewer than 14 complete days are known."
    )
    replay: QueueReplay | None = None


class CapacityRequest(Schema):
    host: str
    requested_at: datetime


@router.get("capacity/", response=CapacityBody, summary="Show capacity figures")
def capacity(
    request: HttpRequest,
    host: Annotated[
        str | None, Query(max_length=100, description="Default: the host that answers.")
    ] = None,
) -> dict[str, Any]:
    """Percentiles, demand, forecast and what-if replays, as last computed."""
    if not step.is_enabled():
        raise HttpError(404, OFF)
    name = host or settings.CONFIG.node
    row = rows.newest(name)
    if row is None:
        if host is not None and host != settings.CONFIG.node:
            raise HttpError(404, f"There are no capacity figures of a host {host}.")
        return {"host": name, "at": None, "requested_at": None, "problem": None}
    return {
        **row.body,
        "gpus": [gpu | {"idle_cost": _cost(gpu["idle_kwh"])} for gpu in row.body.get("gpus", [])],
        "host": name,
        "at": row.at,
        "requested_at": row.requested_at,
        "problem": row.problem or None,
    }


def _cost(kwh: float | None) -> float | None:
    price = thresholds.current(ReportPolicy).price_per_kwh
    return None if kwh is None or not price else kwh * price


@router.post("capacity/", response={202: CapacityRequest}, summary="Compute capacity figures")
def compute(request: HttpRequest) -> Status[dict[str, Any]]:
    """Operators only. The answering host computes its figures in the background."""
    if not caller(request).is_staff:
        raise HttpError(403, "Only operators may have capacity figures computed.")
    if not step.is_enabled():
        raise HttpError(404, OFF)
    now = timezone.now()
    at = tasks.request_capacity(now)
    return Status(202, {"host": settings.CONFIG.node, "requested_at": at})
