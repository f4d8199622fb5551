"""Step: plan the queue and commit the placements; it never touches a process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Case, F, TextField, Value, When
from django.db.models.functions import Concat, Right

from monitor.gpus.snapshot import rows as snapshots
from monitor.runtime.policy import Guard
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.rows.database import keep_commits_synced
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.inputs import PlanInput, PlanInputs
from scheduler.dispatch.steps import preview
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.dispatch.steps.host_choice import HostChoice
from scheduler.facts.blockers import Blocker, Key, from_row
from scheduler.facts.jobs import JobState, QueuedJob
from scheduler.facts.plans import Plan, PlanPolicy
from scheduler.jobs.lifecycle.rows import queue_facts, transitions
from scheduler.jobs.lifecycle.rows.queue_facts import UNCLEAR, QueueMark
from scheduler.models import Attempt, Job
from scheduler.queue.blockers.policy import stored_blockers
from scheduler.queue.blockers.policy.stored_blockers import body
from scheduler.queue.planner.plan import plan

# The key of each reason, and its dimensions without figures.
Reasons = tuple[tuple[Key, Key], ...]
# Changed figures alone are not stored again before this time has passed.
FIGURES_STORED_FOR = timedelta(hours=1)


class StoredReasons:
    """The reasons stored with each waiting job, and when they were stored."""

    def __init__(self, stored: Mapping[int, Reasons], now: datetime) -> None:
        self._stored = {id_: (key, now) for id_, key in stored.items()}

    @classmethod
    def load(cls, now: datetime) -> StoredReasons:
        """Read the rows; `now` stands for an unknown time."""
        stored = cls({}, now)
        rows = Job.objects.filter(state=JobState.QUEUED.value)
        stored._stored = {
            id_: (_stored(blockers), at or now)
            for id_, blockers, at in rows.values_list("id", "blockers", "blockers_at")
        }
        return stored

    def news(self, keys: Mapping[int, Reasons], now: datetime) -> list[int]:
        """The jobs whose reasons must be stored."""
        return [id_ for id_, key in keys.items() if self._is_news(id_, key, now)]

    def _is_news(self, job_id: int, key: Reasons, now: datetime) -> bool:
        old, at = self._stored.get(job_id, (None, now))
        if old is None or old == key:
            return old is None
        return now - at >= FIGURES_STORED_FOR or _without_figures(old) != _without_figures(key)

    def keep(self, keys: Mapping[int, Reasons], news: Collection[int], now: datetime) -> None:
        """Record that these were stored, and forget jobs that no longer wait."""
        self._stored = {
            id_: (key, now) if id_ in news else self._stored[id_] for id_, key in keys.items()
        }


def _without_figures(reasons: Reasons) -> frozenset[Key]:
    """The dimensions as a set, because figures decide their order."""
    return frozenset(dimensions for _, dimensions in reasons)


def reason_keys(blockers: Iterable[Blocker]) -> Reasons:
    """Equal for equal reasons to wait."""
    return tuple((blocker.key, blocker.dimensions) for blocker in blockers)


def keys_by_job(blockers: Mapping[int, tuple[Blocker, ...]]) -> dict[int, Reasons]:
    """reason_keys() of each job. Most jobs share theirs."""
    shared: dict[int, Reasons] = {}
    keys = {}
    for job_id, why in blockers.items():
        key = shared.get(id(why))
        if key is None:
            key = shared[id(why)] = reason_keys(why)
        keys[job_id] = key
    return keys


def _stored(rows: Sequence[Mapping[str, Any]]) -> Reasons:
    try:
        return reason_keys(from_row({**row, **row.get("facts", {})}) for row in rows)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def group_by_reasons(
    blockers: Mapping[int, Sequence[Blocker]],
) -> list[tuple[list[int], tuple[Blocker, ...]]]:
    """Jobs grouped by equal reasons; a group is written in one statement."""
    same: dict[tuple[Blocker, ...], list[int]] = {}
    for job_id, reasons in blockers.items():
        same.setdefault(tuple(reasons), []).append(job_id)
    return [(ids, reasons) for reasons, ids in same.items()]


def _row(blocker: Blocker) -> dict[str, Any]:
    """The blocker as in REST answers, plus the facts that REST words."""
    return body(blocker) | {"facts": {"holder": blocker.holder, "available": blocker.available}}


def store(ids: Sequence[int], reasons: Iterable[Blocker], now: datetime) -> int:
    """Store the reasons of these jobs; returns the number of changed rows.

    The same statement adds a change of the main blocker to each job's log.
    """
    rows = [_row(reason) for reason in reasons]
    main = stored_blockers.first(stored_blockers.reasons(rows))
    log = _logged(main.code, now) if main else F("blocker_log")
    return sum(
        Job.objects.filter(pk__in=ids[at : at + 500], state=JobState.QUEUED.value).update(
            blockers=rows, blockers_at=now, blocker_log=log
        )
        for at in range(0, len(ids), 500)
    )


def _logged(code: str, now: datetime) -> Case:
    """Each row's log, with this code at its end."""
    longer = Concat(
        F("blocker_log"), Value(stored_blockers.log_entry(code, now)), output_field=TextField()
    )
    is_there = When(blocker_log__endswith=stored_blockers.log_ending(code), then=F("blocker_log"))
    return Case(
        is_there, default=Right(longer, stored_blockers.LONGEST_LOG), output_field=TextField()
    )


# Snapshots are written once a second, and an operator may change a waiting job.
PLAN_AGAIN = timedelta(seconds=0.9)
# Attempts to commit if another host commits first; then the next step plans.
TRIES = 3
# Long, because finding the job that makes planning fail takes several plans.
LONGEST_RETRY = timedelta(minutes=1)


class Dispatcher:
    """`step(now)` places jobs on `host` and stores changed reasons to wait."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard, self._host = guard, host
        self._unreleased = 0
        self._isolation = ItemIsolation(host, "dispatcher", guard, LONGEST_RETRY)
        self._supply = PlanInputs(host, policy, self._isolation)
        self._choice = HostChoice(
            host, guard, self._supply.gate, preview.estimates_on, self._isolation
        )
        # Read from the rows when first needed.
        self._reported: StoredReasons | None = None
        self._mark: QueueMark | None = None
        self._planned_at = datetime.min.replace(tzinfo=UTC)

    def step(self, now: datetime, *, has_room: bool = True) -> list[Attempt]:
        """Returns the placed attempts: their rows are committed, nothing has started.

        has_room: a job has just ended. Otherwise an unchanged queue is not planned again within
        PLAN_AGAIN, unless memory of an ended job has become free.
        """
        mark = queue_facts.queue_mark()
        has_room = self._has_freed_memory() or has_room
        if mark == self._mark and not has_room and now - self._planned_at < PLAN_AGAIN:
            return []
        self._mark, self._planned_at = mark, now
        for _ in range(TRIES):
            placed = self._plan(now)
            if placed is not None:
                # The changes of this plan are no reason for another plan.
                started = [attempt.job_id for attempt in placed]
                self._mark = queue_facts.mark_without(self._mark, started)
                if self._choice.asks_again:
                    self._mark = None
                return placed
            self._mark = queue_facts.queue_mark()
        return []

    def _has_freed_memory(self) -> bool:
        """Whether fewer ended jobs may hold memory than at the last pass."""
        before, self._unreleased = self._unreleased, snapshots.count_unreleased(self._host)
        return self._unreleased < before

    def _plan(self, now: datetime) -> list[Attempt] | None:
        """None: another host placed a job meanwhile, so nothing was committed."""
        waits = self._mark != queue_facts.EMPTY_QUEUE_MARK
        queue = self._supply.queue(now, self._mark) if waits else []
        if not queue and not self._supply.windows(now):
            self._reported = StoredReasons({}, now)
            return []
        if self._reported is None:
            self._reported = StoredReasons.load(now)
        turn = transitions.current_version()
        given = self._supply.given(queue, now)
        if left := self._choice.left_to_others:
            given = replace(given, slots=replace(given.slots, left_to_others=left))
        made = self._planned(given, now)
        made = self._choice.applied(made, given, now)
        keys = keys_by_job(made.blockers)
        news = {id_: made.blockers[id_] for id_ in self._reported.news(keys, now)}
        yields = [*made.evictions, *made.preemptions]
        placed: list[Attempt] | None = []
        if made.placements or news or yields:
            placed = self._commit(made, news, turn, now)
        if placed is not None:
            self._reported.keep(keys, news, now)
        return placed

    def _planned(self, given: PlanInput, now: datetime) -> Plan:
        """The plan, without jobs that make planning fail; these get the blocker JobUnclear."""

        def planned(jobs: Sequence[QueuedJob]) -> Plan:
            return plan(jobs, given.slots, given.policy, now, given.rules)

        if not self._isolation.has_faults(now):
            # The usual case; otherwise the failing job is searched below.
            with suppress(Exception):
                return planned(given.queue)
        jobs = [job for job in given.queue if not self._isolation.is_delayed(_name(job), now)]
        broken = failing(jobs, planned)
        left_out = {job.id for job, _ in broken}
        jobs = [job for job in jobs if job.id not in left_out]
        made = planned(jobs)
        for job in jobs:
            self._isolation.worked(_name(job))
        for job, error in broken:
            self._isolation.failed(_name(job), error, now)
        here = queue_facts.waiting_ids() - self._supply.gate.elsewhere
        unplanned = here - {job.id for job in jobs}
        return replace(made, blockers=made.blockers | dict.fromkeys(unplanned, (UNCLEAR,)))

    def _commit(
        self, made: Plan, news: Mapping[int, tuple[Blocker, ...]], turn: int, now: datetime
    ) -> list[Attempt] | None:
        each = self._isolation.each
        # Reasons alone need not survive a power cut: they are found again.
        keep_commits_synced(on=bool(made.placements or made.evictions or made.preemptions))
        with self._guard():
            # Another host must not preempt for the same job.
            is_change = bool(made.placements or made.preemptions)
            if is_change and self._supply.gate.is_closed():
                return None
            if not transitions.commit_if_current(turn, has_placements=is_change):
                return None
            placed = each(
                made.placements,
                lambda placement: f"placement of job {placement.job_id}",
                lambda placement: transitions.place(placement, boot_id(), now),
                now,
            )
            each(
                (*made.evictions, *made.preemptions),
                lambda wish: f"yield request to job {wish.job_id}",
                lambda wish: yield_requests.ask(wish, now),
                now,
            )
            each(
                group_by_reasons(news),
                lambda same: f"reasons of job {same[0][0]}",
                lambda same: store(*same, now),
                now,
            )
            wake("live")
        return [attempt for _, attempt in placed if attempt is not None]


def failing(
    jobs: Sequence[QueuedJob], planned: Callable[[Sequence[QueuedJob]], Plan]
) -> list[tuple[QueuedJob, Exception]]:
    """Jobs that cannot be planned even alone, with their errors; found by bisection."""
    try:
        planned(jobs)
    except Exception as error:
        if len(jobs) == 1:
            return [(jobs[0], error)]
        half = len(jobs) // 2
        return [*failing(jobs[:half], planned), *failing(jobs[half:], planned)] if half else []
    return []


def _name(job: QueuedJob) -> str:
    return f"planning of job {job.id}"
