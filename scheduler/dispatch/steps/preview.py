"""Forecasts for pages and REST: start times of waiting jobs, what-if answers, priority factors.

The input is loaded as by the scheduler, and cached, because many viewers need it at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.conf import settings
from django.contrib.auth.models import User
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.formats import duration
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Incident, LatestSnapshot
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.extensions import part
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.dispatch import inputs as plan_inputs
from scheduler.dispatch.inputs import PlanInput, PlanInputs
from scheduler.execution.engines.facts import EngineName
from scheduler.facts.jobs import PRIORITIES, JobState, NewJob, QueuedJob, Requirement
from scheduler.facts.plans import Slot
from scheduler.jobs import policy as waits
from scheduler.jobs import steps as sizing
from scheduler.jobs.rows import durations
from scheduler.jobs.rows import durations as queue_facts
from scheduler.jobs.rows.durations import UsualDuration
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.time_windows.policy import moment
from scheduler.models import EngineTask, Job
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner import forecasts
from scheduler.queue.planner.forecasts import (
    Advice,
    AdviceFacts,
    Estimate,
    WhatIf,
    World,
    advise,
    latest_gain,
)
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
            current.estimates = forecasts.forecast(
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
    estimated = forecasts.forecast(given.queue, slots, given.policy, now, given.rules)
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
    return forecasts.what_if(job, given.queue, given.slots, given.policy, now, given.rules)


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


# Earlier starts of waiting jobs, by changes of a job, and by the end of processes of an incident.
#
# For pages, REST and the command line.


# A start within this time is called "now".
AT_ONCE = timedelta(seconds=5)
# An answer is given again for this time, because several viewers of a page ask for it.
ADVICE_KEPT, MOST_KEPT = timedelta(seconds=5), 256
T = TypeVar("T")


class JobAdvice(Struct, frozen=True):
    """reason: the headline and its condition, in words; "" = the job does not wait."""

    reason: str = ""
    advice: tuple[Advice, ...] = ()


class EarlierStart(Struct, frozen=True):
    """A job that would start earlier. before: its expected start now, None = unknown."""

    job: Job
    before: datetime | None
    start: datetime


class _KeptAnswers(Generic[T]):
    """The last answer for each row, given again for a short time while `mark` stays the same."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[datetime, object, T]] = {}
        self._lock = Lock()

    def get(self, row: int, mark: object, now: datetime, answer: Callable[[], T]) -> T:
        with self._lock:
            at, kept_mark, kept = self._answers.get(row, (None, None, None))
            if (
                kept is not None
                and at
                and kept_mark == mark
                and timedelta() <= now - at < ADVICE_KEPT
            ):
                return kept
            made = answer()
            while len(self._answers) >= MOST_KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[row] = (now, mark, made)
            return made

    def forget(self) -> None:
        self._answers.clear()


_of_jobs: _KeptAnswers[JobAdvice] = _KeptAnswers()
_of_incidents: _KeptAnswers[list[EarlierStart]] = _KeptAnswers()


def advice_of(job: Job, now: datetime, zone: str) -> JobAdvice:
    """The reason of a waiting job and the changes that help, the best first.

    Of a job that another engine plans, the reason alone.
    """
    if job.state != JobState.QUEUED.value:
        return JobAdvice()
    mark = (durations.queue_mark(), job.priority, job.held, zone)
    return _of_jobs.get(job.pk, mark, now, lambda: _answer(job, now, zone))


def forget_advice() -> None:
    """Drop the answers that are kept."""
    _of_jobs.forget()
    _of_incidents.forget()


def _answer(job: Job, now: datetime, zone: str) -> JobAdvice:
    advice = _advice(job, now) if is_planned_here() else []
    stored = stored_blockers.with_current_ends(job.blockers, now)
    main = stored_blockers.first(stored_blockers.reasons(stored))
    parts = [] if main is None else [main.headline, main.next_step]
    if not advice:
        estimate = estimate_of(job.pk, now)
        if estimate is not None and estimate.p50 is not None:
            parts.append(f"It is expected to start {_when(estimate.p50, now, zone)}.")
        elif main is not None and not main.never:
            parts.append("When it starts is unknown.")
    return JobAdvice(" ".join(filter(None, parts)), tuple(advice))


def of_draft(new: NewJob, owner: User, now: datetime) -> list[Advice]:
    """The same changes for a job that is not submitted."""
    if not is_planned_here():
        return []
    jobs, worlds = [], {}
    for host in hosts():
        given, job = drafted(new, owner.username, host, now)
        jobs.append(job)
        worlds[host] = _world(given, given.queue)
    facts = AdviceFacts(
        most_priority=_most_priority(owner),
        host_is_chosen=bool(new.host),
        needed_bytes=_needed_bytes(owner, new.requirement.gpus, new.executed),
    )
    return advise(jobs[0], worlds, facts, now)


def _advice(job: Job, now: datetime) -> list[Advice]:
    waiting, worlds = None, {}
    for host in hosts():
        given = plan_input(host, now)
        waiting = waiting or next((each for each in given.queue if each.id == job.pk), None)
        worlds[host] = _world(given, [each for each in given.queue if each.id != job.pk])
    if waiting is None:
        return []
    return advise(waiting, worlds, _facts(job), now)


def _world(given: PlanInput, queue: Sequence[QueuedJob]) -> World:
    return World(queue=queue, slots=given.slots, policy=given.policy, rules=given.rules)


def _most_priority(owner: User) -> int:
    allowed = quota_rows.of_person(owner).priority
    return max(PRIORITIES) if allowed is None else allowed


def _facts(job: Job) -> AdviceFacts:
    return AdviceFacts(
        # The planner serves jobs of agents last, whatever their priority.
        most_priority=0 if job.agent_id else _most_priority(job.owner),
        host_is_chosen=bool(job.host),
        needed_bytes=_needed_bytes(job.owner, job.gpus, job.argv),
    )


def _needed_bytes(owner: User, number: int, argv: Sequence[str]) -> int | None:
    if not number or not sizing.has_samples(owner, argv):
        return None
    gpus = [gpu for snapshot in snapshots.newest_all() for gpu in snapshot.gpus]
    suggestion = sizing.suggested_memory(owner, argv, gpus)
    return None if suggestion is None else max(suggestion.memory_bytes, suggestion.peak_bytes)


def sentence(advice: Advice, now: datetime, zone: str) -> str:
    """The change and what it brings."""
    return f"{advice.words}: {effect(advice, now, zone)}"


def effect(advice: Advice, now: datetime, zone: str) -> str:
    when = f"it would start {_when(advice.expected_start, now, zone)}"
    if advice.was_unknown:
        return f"{when}; without the change, its start is unknown."
    return f"{when}, {duration(advice.earlier)} earlier."


def _when(at: datetime, now: datetime, zone: str) -> str:
    return "now" if at - now < AT_ONCE else f"about {moment(at, zone)}"


def find(advice: Sequence[Advice], key: str) -> Advice | None:
    """The advice with this change; None = it is not given (any more)."""
    return next((each for each in advice if each.key == key), None)


def earlier_starts(incident: Incident, now: datetime) -> list[EarlierStart] | None:
    """The jobs that would start earlier, the first to start first.

    None: it is not known, because no process outside the queue causes the incident, or because
    another engine plans the jobs.
    """
    processes = {
        (part.gpu_id, part.pid)
        for part in incident.parts
        if part.gpu_id and part.pid and not part.job_ref and part.closed_at is None
    }
    if not processes or not is_planned_here():
        return None

    def compared() -> list[EarlierStart]:
        before = estimates(now)
        return _compared(before, estimates_without(incident.host, processes, now), now)

    return _of_incidents.get(incident.pk, processes, now, compared)


def _compared(
    before: Mapping[int, Estimate], after: Mapping[int, Estimate], now: datetime
) -> list[EarlierStart]:
    gains: dict[int, tuple[datetime | None, datetime]] = {}
    for job_id, estimate in after.items():
        current = before.get(job_id, UNKNOWN).p50
        if estimate.p50 is not None and estimate.p50 <= latest_gain(current, now):
            gains[job_id] = (current, estimate.p50)
    jobs = Job.objects.filter(pk__in=gains).select_related("owner")
    starts = [EarlierStart(job, *gains[job.pk]) for job in jobs]
    return sorted(starts, key=lambda each: (each.start, each.job.pk))
