"""Forecasts for pages and REST: start times of waiting jobs, what-if answers, priority factors.

The input is loaded as by the scheduler, and cached, because many viewers need it at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from django.conf import settings
from msgspec import Struct
from msgspec.structs import replace

from monitor.models import LatestSnapshot
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.extensions import part
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.dispatch import inputs as plan_inputs
from scheduler.dispatch.inputs import PlanInput, PlanInputs
from scheduler.execution.engines.facts import EngineName
from scheduler.facts.jobs import JobState, NewJob, QueuedJob, Requirement
from scheduler.facts.plans import Slot
from scheduler.jobs.lifecycle import policy as waits
from scheduler.jobs.lifecycle.rows import queue_facts
from scheduler.jobs.lifecycle.rows.durations import UsualDuration
from scheduler.models import EngineTask, Job
from scheduler.queue.blockers import policy as stored_blockers
from scheduler.queue.planner.forecast import forecast
from scheduler.queue.planner.forecast.forecast import Estimate, WhatIf
from scheduler.queue.planner.matching import mismatch_of
from scheduler.queue.planner.order import Factor, order_factors

if TYPE_CHECKING:
    from scheduler.dispatch.steps.model_evictions import ModelInputs

KEPT = timedelta(seconds=2)
# A job that is not submitted comes after all submitted jobs.
NEW_ID = 2**62


class PlanForecast(Struct):
    """The inputs of one host's planner, and the forecast once it is needed."""

    given: PlanInput
    estimates: Mapping[int, Estimate] | None = None


class ForecastCache:
    """The input and the forecast of one host, at most KEPT old."""

    def __init__(self, supply: PlanInputs, models: ModelInputs | None) -> None:
        self.supply, self._models = supply, models
        self.lock = Lock()
        self._forecast = TimedCache(self._load, KEPT)

    def look(self, now: datetime) -> PlanInput:
        return self._forecast(now).given

    def _load(self, now: datetime) -> PlanForecast:
        queue = self.supply.queue(now, queue_facts.queue_mark())
        # A page may ask about a GPU while no job waits for one.
        example = _queued(NewJob(command="true"), "", now, None)
        given = self.supply.given([*queue, example], now)
        models = None if self._models is None else self._models.loaded(now)
        forecast_jobs = part("scheduler.submission.batches.rows:forecast_jobs")
        queue, coming = forecast_jobs(queue) if forecast_jobs else (queue, ())
        slots = replace(given.slots, models=models, coming=coming)
        return PlanForecast(replace(given, queue=queue, slots=slots))

    def estimate_all(self, now: datetime) -> Mapping[int, Estimate]:
        current = self._forecast(now)
        if current.estimates is None:
            given = current.given
            current.estimates = forecast.forecast(
                given.queue, given.slots, given.policy, now, given.rules
            )
        return current.estimates


_known: dict[str, ForecastCache] = {}


def _of(host: str) -> ForecastCache:
    if host not in _known:
        model_inputs = part("scheduler.dispatch.steps.model_evictions:ModelInputs")
        isolation = ItemIsolation(host, "pages", reports=False)
        models = model_inputs and model_inputs(host, isolation)
        _known[host] = ForecastCache(PlanInputs(host, plan_inputs.plan_policy()), models)
    return _known[host]


def forget() -> None:
    """Drop the cached forecasts."""
    _known.clear()


def hosts() -> list[str]:
    """The hosts with a snapshot, else this host."""
    names = LatestSnapshot.objects.order_by("host").values_list("host", flat=True)
    return list(names) or [settings.CONFIG.node]


def estimates(now: datetime) -> Mapping[int, Estimate]:
    """For each waiting job, where it may start first."""
    if not is_planned_here():
        return _by_engine()
    estimated: dict[int, Estimate] = {}
    if queue_facts.queue_mark() == queue_facts.EMPTY_QUEUE_MARK:
        # Pages ask every few seconds, also while nothing waits.
        return estimated
    for host in hosts():
        for job_id, estimate in estimates_on(host, now).items():
            estimated[job_id] = _sooner(estimated.get(job_id), estimate)
    return estimated


def estimates_on(host: str, now: datetime) -> Mapping[int, Estimate]:
    """For each job that waits and may start on this host."""
    predictions = _of(host)
    with predictions.lock:
        return predictions.estimate_all(now)


def estimates_without(
    host: str, processes: Collection[tuple[str, int]], now: datetime
) -> Mapping[int, Estimate]:
    """For each waiting job, where it may start first once these processes have ended.

    processes: of this host, outside the queue, as UUID of the GPU and pid.
    """
    given = plan_input(host, now)
    gpus = tuple(_gpu_without(slot, processes) for slot in given.slots.gpus)
    slots = replace(given.slots, gpus=gpus)
    estimated = forecast.forecast(given.queue, slots, given.policy, now, given.rules)
    for other in hosts():
        if other != host:
            for job_id, estimate in estimates_on(other, now).items():
                estimated[job_id] = _sooner(estimated.get(job_id), estimate)
    return estimated


def _gpu_without(slot: Slot, processes: Collection[tuple[str, int]]) -> Slot:
    pids = {pid for gpu_uuid, pid in processes if gpu_uuid == slot.gpu_uuid}
    return slot.without_processes(lambda holder: holder.pid in pids) if pids else slot


def plan_input(host: str, now: datetime) -> PlanInput:
    """The input of this host's planner, at most KEPT old."""
    predictions = _of(host)
    with predictions.lock:
        return predictions.look(now)


UNKNOWN = Estimate(position=None, p50=None, p90=None)


def _by_engine(**job: int) -> dict[int, Estimate]:
    """Expected starts of jobs that wait in another engine; gpucoord adds no estimate of its own."""
    rows = EngineTask.objects.filter(closed_at=None, expected_start_at__isnull=False, **job)
    return {
        job_id: Estimate(position=None, p50=expected, p90=None)
        for job_id, expected in rows.values_list("job_id", "expected_start_at")
    }


def is_planned_here() -> bool:
    """Whether gpucoord itself plans the jobs, and no other engine."""
    return bool(settings.CONFIG.engine == EngineName.LOCAL.value)


def estimate_of(job_id: int, now: datetime) -> Estimate | None:
    """The same for one job, without going through all that wait."""
    if not is_planned_here():
        return _by_engine(job_id=job_id).get(job_id)
    nearest: Estimate | None = None
    for host in hosts():
        estimate = estimates_on(host, now).get(job_id)
        if estimate is not None:
            nearest = _sooner(nearest, estimate)
    return nearest


def _sooner(earliest: Estimate | None, other: Estimate) -> Estimate:
    if earliest is None or earliest.p50 is None:
        return other
    return earliest if other.p50 is None or earliest.p50 <= other.p50 else other


class JobForecast(Struct, frozen=True):
    """Blockers, predicted start and priority factors of a job."""

    estimate: Estimate | None = None
    factors: tuple[Factor, ...] = ()
    reasons: tuple[dict[str, Any], ...] = ()


def of(job: Job, now: datetime) -> JobForecast:
    """Of a job that does not wait, nothing."""
    if job.state != JobState.QUEUED.value:
        return JobForecast()
    reasons = tuple(stored_blockers.with_current_ends(job.blockers, now))
    if not is_planned_here():
        return JobForecast(estimate_of(job.pk, now), (), reasons)
    return JobForecast(
        estimate_of(job.pk, now), factors(job, job.host or job.home or hosts()[0], now), reasons
    )


def what_if(new: NewJob, owner: str, now: datetime) -> WhatIf:
    """The placement or forecast of a job on the best host, without submitting it.

    Another engine is not asked: nothing is known then.
    """
    if not is_planned_here():
        return WhatIf(starts_now=False, blockers=(), estimate=UNKNOWN)
    chosen = [host for host in hosts() if new.host in ("", host)] or hosts()
    answers = [_what_if(new, owner, host, now) for host in chosen]
    return min(answers, key=_goodness)


def _goodness(answer: WhatIf) -> tuple[bool, bool, float]:
    p50 = answer.estimate.p50
    return (not answer.starts_now, p50 is None, p50.timestamp() if p50 else 0.0)


def _what_if(new: NewJob, owner: str, host: str, now: datetime) -> WhatIf:
    given, job = drafted(new, owner, host, now)
    return forecast.what_if(job, given.queue, given.slots, given.policy, now, given.rules)


def drafted(new: NewJob, owner: str, host: str, now: datetime) -> tuple[PlanInput, QueuedJob]:
    """The input of a host's planner, and a job that is not submitted as its queue would have it."""
    predictions = _of(host)
    with predictions.lock:
        given = predictions.look(now)
        durations = predictions.supply.durations
        expected = durations.expect(owner, new.label, new.time_limit, new.estimate)
        job = _queued(new, owner, now, durations(owner, new.label))
        waits_for = (*job.waits, *predictions.supply.full_disks.of_new(new.cwd, now))
    return given, dataclasses.replace(job, expected=expected, waits=waits_for, host=new.host)


def factors(job: Job, host: str, now: datetime) -> tuple[Factor, ...]:
    """Priority factors of a waiting job; () = it does not wait."""
    given = plan_input(host, now)
    waiting = next((queued for queued in given.queue if queued.id == job.pk), None)
    if waiting is None:
        return ()
    owners = {queued.owner for queued in given.queue}
    return order_factors(waiting, given.slots, owners, given.rules.order, now)


def possible_gpus(job: Job, now: datetime) -> tuple[str, ...]:
    """UUIDs of the GPUs that match the request of a waiting job, or of which that is not known."""
    possible: list[str] = []
    for host in hosts() if is_planned_here() else ():
        given = plan_input(host, now)
        waiting = next((queued for queued in given.queue if queued.id == job.pk), None)
        if waiting is None or not waiting.requirement.gpus:
            continue
        for slot in given.slots.gpus:
            missing = mismatch_of(waiting.requirement, slot)
            if missing is None or missing.has is None:
                possible.append(slot.gpu_uuid)
    return tuple(possible)


def _queued(new: NewJob, owner: str, now: datetime, usual: UsualDuration | None) -> QueuedJob:
    """The job as the queue would contain it, with its own blockers."""
    condition = waits.Condition(
        id=NEW_ID,
        begin_at=new.begin_at,
        pending=tuple((dependency.on, dependency.after) for dependency in new.after),
    )
    return QueuedJob(
        id=NEW_ID,
        owner=owner,
        priority=new.priority,
        submitted_at=now,
        requirement=_requirement(new, usual),
        time_limit=new.time_limit,
        estimate=new.estimate,
        usual=None if usual is None else usual.p90,
        typical=None if usual is None else usual.p50,
        preemptible=new.yield_options.preemptible,
        waits=waits.waits([condition], {}, now, settings.TIME_ZONE).get(NEW_ID, ()),
    )


def _requirement(new: NewJob, usual: UsualDuration | None) -> Requirement:
    memory_bytes, cpus = queue_facts.host_use(usual)
    return dataclasses.replace(
        new.requirement,
        host_memory_bytes=new.memory_bytes,
        cpus=new.cpus,
        usual_memory_bytes=memory_bytes if new.memory_bytes is None else None,
        usual_cpus=cpus if new.cpus is None else None,
    )
