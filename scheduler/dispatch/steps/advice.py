"""Earlier starts of waiting jobs, by changes of a job, and by the end of processes of an incident.

For pages, REST and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Generic, TypeVar

from django.contrib.auth.models import User
from msgspec import Struct

from monitor.facts.formats import duration
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Incident
from scheduler.dispatch.inputs import PlanInput
from scheduler.dispatch.steps import preview
from scheduler.facts.jobs import PRIORITIES, JobState, NewJob, QueuedJob
from scheduler.jobs.lifecycle.rows import queue_facts
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.time_windows.policy import moment
from scheduler.models import Job
from scheduler.queue.blockers import policy as stored_blockers
from scheduler.queue.planner.forecast.advice import Advice, AdviceFacts, World, advise, latest_gain
from scheduler.queue.planner.forecast.forecast import Estimate
from scheduler.queue.sizing import step as sizing

# A start within this time is called "now".
AT_ONCE = timedelta(seconds=5)
# An answer is given again for this time, because several viewers of a page ask for it.
KEPT, MOST_KEPT = timedelta(seconds=5), 256
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
            if kept is not None and at and kept_mark == mark and timedelta() <= now - at < KEPT:
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


def of(job: Job, now: datetime, zone: str) -> JobAdvice:
    """The reason of a waiting job and the changes that help, the best first.

    Of a job that another engine plans, the reason alone.
    """
    if job.state != JobState.QUEUED.value:
        return JobAdvice()
    mark = (queue_facts.queue_mark(), job.priority, job.held, zone)
    return _of_jobs.get(job.pk, mark, now, lambda: _answer(job, now, zone))


def forget() -> None:
    """Drop the answers that are kept."""
    _of_jobs.forget()
    _of_incidents.forget()


def _answer(job: Job, now: datetime, zone: str) -> JobAdvice:
    advice = _advice(job, now) if preview.is_planned_here() else []
    stored = stored_blockers.with_current_ends(job.blockers, now)
    main = stored_blockers.first(stored_blockers.reasons(stored))
    parts = [] if main is None else [main.headline, main.next_step]
    if not advice:
        estimate = preview.estimate_of(job.pk, now)
        if estimate is not None and estimate.p50 is not None:
            parts.append(f"It is expected to start {_when(estimate.p50, now, zone)}.")
        elif main is not None and not main.never:
            parts.append("When it starts is unknown.")
    return JobAdvice(" ".join(filter(None, parts)), tuple(advice))


def of_draft(new: NewJob, owner: User, now: datetime) -> list[Advice]:
    """The same changes for a job that is not submitted."""
    if not preview.is_planned_here():
        return []
    jobs, worlds = [], {}
    for host in preview.hosts():
        given, job = preview.drafted(new, owner.username, host, now)
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
    for host in preview.hosts():
        given = preview.plan_input(host, now)
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
    if not processes or not preview.is_planned_here():
        return None

    def compared() -> list[EarlierStart]:
        before = preview.estimates(now)
        return _compared(before, preview.estimates_without(incident.host, processes, now), now)

    return _of_incidents.get(incident.pk, processes, now, compared)


def _compared(
    before: Mapping[int, Estimate], after: Mapping[int, Estimate], now: datetime
) -> list[EarlierStart]:
    gains: dict[int, tuple[datetime | None, datetime]] = {}
    for job_id, estimate in after.items():
        current = before.get(job_id, preview.UNKNOWN).p50
        if estimate.p50 is not None and estimate.p50 <= latest_gain(current, now):
            gains[job_id] = (current, estimate.p50)
    jobs = Job.objects.filter(pk__in=gains).select_related("owner")
    starts = [EarlierStart(job, *gains[job.pk]) for job in jobs]
    return sorted(starts, key=lambda each: (each.start, each.job.pk))
