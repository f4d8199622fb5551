"""Step: compute the capacity figures of a host within a time limit, and store them."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from time import monotonic
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from monitor.thresholds import rows as thresholds
from reports.capacity import rows
from reports.capacity.policy import demand
from reports.capacity.policy.demand import (
    EPOCH,
    Alternative,
    CapacityGpu,
    CapacityPolicy,
    DemandHour,
    Forecast,
    GpuHourFigures,
    GpuProfile,
    Profile,
    ReplayFigures,
    forecast,
)
from reports.capacity.policy.replay import Change, Replay, ReplayInput, changes, wait_figures
from scheduler.dispatch.inputs import PlanInput, PlanInputs, plan_policy
from scheduler.facts.plans import Slot
from scheduler.queue.planner.plan import plan

# Ranges that are read: hours of GPUs, demand of jobs, and the replayed queue.
PROFILE, DEMAND, REPLAY = timedelta(days=365), timedelta(days=90), timedelta(days=14)
MOST_JOBS, MOST_REPLAYED = 50_000, 5_000
# All replays together, and a single one.
LIMIT_S, LIMIT_OF_ONE_S = 240.0, 60.0


def is_enabled() -> bool:
    return thresholds.current(CapacityPolicy).enabled


def compute(host: str, now: datetime, zone: tzinfo) -> dict[str, Any] | None:
    """Store new figures and return them; None = capacity planning is off, or it failed.

    A failure is stored beside the old figures.
    """
    if not is_enabled():
        return None
    began = monotonic()
    try:
        body = figures(host, now, zone, began + LIMIT_S)
    except Exception as error:
        rows.store_problem(host, "".join(traceback.format_exception_only(error)).strip())
        raise
    rows.store(host, body, monotonic() - began, now)
    return body


def figures(host: str, now: datetime, zone: tzinfo, deadline: float) -> dict[str, Any]:
    """All figures of a host as JSON values. deadline: of the replays, in `monotonic` seconds."""
    gpus = rows.gpus(host)
    hours = rows.gpu_hours([gpu.uuid for gpu in gpus], now - PROFILE)
    work = rows.recorded_work(host, now - DEMAND, now, MOST_JOBS)
    used, held = rows.outside(host, work.since)
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    mean_bytes = sum(sizes) // len(sizes) if sizes else None
    jobs = (*work.jobs, *work.without_run_time)
    wanted = _watched(demand.demand_hours(jobs, used, work.since, now, mean_bytes), hours)
    profiles = [demand.gpu_profile(gpu, hours[gpu.uuid], zone) for gpu in gpus]
    return {
        "host": host,
        "at": now.isoformat(),
        "gpus": [_gpu(profile) for profile in profiles],
        "all_gpus": _fleet(hours, zone),
        "queue_gpus": _profile(demand.queue_profile(wanted, zone)),
        "demand": _demand(wanted, gpus),
        "forecast": _forecast(forecast(demand.daily_means(wanted), len(gpus))),
        "replay": _replays(host, gpus, held, now, deadline) if gpus else None,
    }


def _watched(wanted: Sequence[DemandHour], hours: dict[str, list[Any]]) -> list[DemandHour]:
    """The hours in which GPUs were read. Use outside jobs is unknown in all other hours."""
    measured = {hour.t for figures in hours.values() for hour in figures}
    return [hour for hour in wanted if hour.t in measured]


def _fleet(hours: Mapping[str, Sequence[GpuHourFigures]], zone: tzinfo) -> dict[str, Any]:
    whole = demand.fleet_hours(list(hours.values()))
    return {
        "utilisation_pct": _profile(
            demand.profile(((hour.t, hour.utilisation_pct) for hour in whole), zone)
        ),
        "memory_used_bytes": _profile(
            demand.profile(((hour.t, hour.memory_bytes) for hour in whole), zone)
        ),
    }


def _demand(wanted: Sequence[DemandHour], gpus: Sequence[CapacityGpu]) -> dict[str, Any]:
    """Null where no hour is known."""
    has_hours = bool(wanted)
    return {
        "hours": len(wanted),
        "supply_gpus": len(gpus),
        "mean_gpus": sum(hour.demand for hour in wanted) / len(wanted) if has_hours else None,
        "peak_gpus": max((hour.demand for hour in wanted), default=None),
        "unmet_gpu_hours": demand.unmet_gpu_hours(wanted, len(gpus)) if has_hours else None,
        "waiting_gpu_hours": sum(hour.waiting for hour in wanted) if has_hours else None,
        "days": [
            {"day": (EPOCH + timedelta(days=day)).isoformat(), "gpus": mean}
            for day, mean in demand.daily_means(wanted)
        ],
    }


def _replays(
    host: str,
    gpus: Sequence[CapacityGpu],
    held: dict[int, dict[str, int]],
    now: datetime,
    deadline: float,
) -> dict[str, Any]:
    work = rows.recorded_work(host, now - REPLAY, now, MOST_REPLAYED)
    supply = PlanInputs(host, plan_policy())
    current = supply.given(supply.queue(now), now)
    given = ReplayInput(
        jobs=work.jobs,
        foreign=[change for change in rows.foreign_memory(held) if change[0] >= work.since],
        accounts=rows.accounts(host, {job.owner for job in work.jobs}, work.since, len(gpus)),
        held_back=rows.held_back(work.since, now),
        windows=current.slots.windows,
        policy=current.policy,
        rules=current.rules,
    )
    starts = {job.id: job.started_at for job in work.jobs if job.started_at is not None}
    recorded = wait_figures(work.jobs, starts, work.ends)
    counted = sum(job.is_counted for job in work.jobs)
    body: dict[str, Any] = {
        "since": work.since.isoformat(),
        "jobs": counted,
        "assumed": sum(job.is_assumed for job in work.jobs),
        "left_out": work.left_out,
        "waiting_now": sum(not job.waits for job in current.queue),
        "starts_now": len(
            plan(current.queue, current.slots, current.policy, now, current.rules).placements
        ),
        "recorded": asdict(recorded) if counted else None,
    }
    replayed = replay(given, gpus, deadline) if counted else None
    body["replayed"] = None if replayed is None else asdict(replayed)
    body["alternatives"] = [
        to_builtins(_alternative(change, given, current, now, deadline, is_replayed=bool(replayed)))
        for change in changes(gpus)
    ]
    return body


def replay(
    given: ReplayInput, gpus: Sequence[CapacityGpu], deadline: float
) -> ReplayFigures | None:
    """None = it took too long."""
    until = min(deadline, monotonic() + LIMIT_OF_ONE_S)
    played = Replay(given, gpus)
    while played.advance():
        if monotonic() > until:
            return None
    return played.figures()


def _alternative(
    change: Change,
    given: ReplayInput,
    current: PlanInput,
    now: datetime,
    deadline: float,
    *,
    is_replayed: bool,
) -> Alternative:
    slowest = None
    figures = replay(given, change.gpus, deadline) if is_replayed else None
    if change.slowness and figures is not None:
        slowest = replay(replace(given, slowness=change.slowness), change.gpus, deadline)
    return Alternative(
        kind=change.kind,
        title=change.title,
        figures=figures,
        slowest=slowest,
        starts_now=starts_now(change, current, now),
    )


def starts_now(change: Change, current: PlanInput, now: datetime) -> int | None:
    """How many waiting jobs would start at once with it; None = the GPU to change is in use."""
    slots = current.slots
    by_uuid = {slot.gpu_uuid: slot for slot in slots.gpus}
    if not slots.gpus or change.kind == "less":
        return None
    if change.replaced and not _is_free(by_uuid.get(change.replaced)):
        return None
    margin = current.policy.margin_bytes
    there = []
    for gpu in change.gpus:
        if gpu.uuid in by_uuid:
            there.append(by_uuid[gpu.uuid])
        elif gpu.memory_bytes is not None:
            there.append(_new_slot(gpu, max(0, gpu.memory_bytes - margin)))
    made = plan(
        current.queue, replace(slots, gpus=tuple(there)), current.policy, now, current.rules
    )
    return len(made.placements)


def _is_free(slot: Slot | None) -> bool:
    return slot is not None and not slot.jobs and not slot.foreign


def _new_slot(gpu: CapacityGpu, free_bytes: int) -> Slot:
    return Slot(
        gpu_uuid=gpu.uuid,
        host=gpu.host,
        index=gpu.index,
        total_bytes=gpu.memory_bytes,
        free_bytes=free_bytes,
        model=gpu.model,
        capability=gpu.capability,
        power=gpu.power,
    )


def _gpu(profile: GpuProfile) -> dict[str, Any]:
    gpu = profile.gpu
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory_bytes": gpu.memory_bytes,
        "utilisation_pct": _profile(profile.utilisation),
        "memory_used_bytes": _profile(profile.memory),
        "idle_hours": profile.idle_hours,
        "known_hours": profile.known_hours,
        "idle_kwh": profile.idle_kwh,
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "whole": asdict(profile.whole),
        "by_hour_of_week": [asdict(each) for each in profile.by_hour],
        "by_month": [{"month": month, **asdict(each)} for month, each in profile.by_month],
    }


def _forecast(prediction: Forecast | None) -> dict[str, Any] | None:
    if prediction is None:
        return None

    def day(value: date | None) -> str | None:
        return None if value is None else value.isoformat()

    return {
        "days": prediction.days,
        "supply_gpus": prediction.supply,
        "gpus_a_week": prediction.slope,
        "horizon": day(prediction.horizon),
        "points": [
            {"day": day(at), "low": low, "middle": middle, "high": high}
            for at, low, middle, high in prediction.points
        ],
        "exceeds_earliest": day(prediction.earliest),
        "exceeds": day(prediction.reached),
        "exceeds_latest": day(prediction.latest),
    }
