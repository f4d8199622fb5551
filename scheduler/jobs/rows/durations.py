"""Rows -> facts: how long jobs of an owner and a name usually run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace as replace_dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, QuerySet
from msgspec import Struct
from msgspec.structs import replace

from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.database import MARK, PreparedQuery, compiled_once
from monitor.runtime.rows.item_isolation import Convert, convert_all
from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import Ends, JobState, Outcome, QueuedJob, Requirement, RunTime
from scheduler.facts.plans import RunningJob
from scheduler.jobs.policy import LONGEST, Condition, PredictedStart, calibrations, waits
from scheduler.jobs.rows.relations import UnmetDependencies
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy.quotas import PRIORITY_IN_PLANS
from scheduler.models import Attempt, Job
from scheduler.models.jobs import conditional
from scheduler.queue.planner.forecast_classes import EndedJob, expected, history
from scheduler.queue.planner.forecasts import Estimate
from scheduler.queue.planner.matching import version
from scheduler.queue.planner.sizing import HostRun, host_needs

# Enough to judge by, and quickly read.
NEWEST = 2000
MIN_JOBS = 3
JobName = tuple[str, str]
RequestKey = tuple[str, str, timedelta | None, timedelta | None]
REFRESH_AFTER = timedelta(minutes=2)


class UsualDuration(Struct, frozen=True):
    """Median and 90th percentile of the run times of `count` jobs.

    memory_bytes, cpus: of the host, which the newest of them took; None = too few runs tell.
    """

    p50: timedelta
    p90: timedelta
    count: int
    memory_bytes: int | None = None
    cpus: float | None = None


class _EndedJobs:
    def __init__(self, ended: Sequence[EndedJob], runs: Mapping[JobName, list[HostRun]]) -> None:
        self.usual = _by_name(ended, runs)
        self.history = history(ended)
        # Many jobs are alike.
        self.expected: dict[RequestKey, RunTime] = {}


class Durations:
    """The run times of ended jobs, read every few minutes.

    Call it with an owner and a job's name; None = too few of them have ended.
    """

    def __init__(self) -> None:
        self._load = TimedCache(lambda now: _EndedJobs(_ended(), _runs()), REFRESH_AFTER)
        self._ended = _EndedJobs((), {})

    def refresh(self, now: datetime) -> None:
        self._ended = self._load(now)

    @property
    def version(self) -> object:
        """Another object once other jobs were read."""
        return self._ended

    def __call__(self, owner: str, name: str) -> UsualDuration | None:
        return self._ended.usual.get((owner, name))

    def expect(
        self, owner: str, name: str, limit: timedelta | None, estimate: timedelta | None
    ) -> RunTime:
        """How long such a job is expected to run."""
        key = (owner, name, limit, estimate)
        if key not in self._ended.expected:
            self._ended.expected[key] = expected(*key, self._ended.history)
        return self._ended.expected[key]


def _ended() -> list[EndedJob]:
    """The newest that ran to their own end, or to their limit."""
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(
        state=JobState.FINISHED.value, outcome__in=over, started_at__isnull=False
    ).order_by("-id")
    columns = ("owner__username", "name", "started_at", "ended_at", "time_limit_s", "estimate_s")
    return [
        EndedJob(
            owner=owner,
            name=name,
            took=max(timedelta(), ended - begun),
            limit=timedelta(seconds=limit) if limit else None,
            estimate=timedelta(seconds=estimate) if estimate else None,
        )
        for owner, name, begun, ended, limit, estimate in rows.values_list(*columns)[:NEWEST]
        if begun is not None and ended is not None
    ]


def _runs() -> dict[JobName, list[HostRun]]:
    """Use of the host by the newest successful attempts, newest first."""
    rows = Attempt.objects.filter(outcome=Outcome.SUCCEEDED.value, started_at__isnull=False)
    columns = ("job__owner__username", "job__name", "started_at", "ended_at")
    runs: dict[JobName, list[HostRun]] = defaultdict(list)
    used = rows.order_by("-id").values_list(*columns, "peak_memory_bytes", "cpu_s")
    for owner, name, begun, ended, peak, cpu_s in used[:NEWEST]:
        if begun is not None and ended is not None:
            took_s = (ended - begun).total_seconds()
            runs[owner, name].append(HostRun(took_s=took_s, peak_bytes=peak, cpu_s=cpu_s))
    return runs


def _by_name(
    ended: Iterable[EndedJob], runs: Mapping[JobName, list[HostRun]]
) -> dict[JobName, UsualDuration]:
    took: dict[JobName, list[timedelta]] = defaultdict(list)
    for job in ended:
        took[job.owner, job.name].append(job.took)
    usual = {}
    for key, times in took.items():
        if len(times) >= MIN_JOBS:
            memory_bytes, cpus = host_needs(runs.get(key, ()))
            usual[key] = replace(usual_duration(times), memory_bytes=memory_bytes, cpus=cpus)
    return usual


def usual_duration(times: list[timedelta]) -> UsualDuration:
    """The nearest ranks of at least one time."""
    ranked, count = sorted(times), len(times)
    return UsualDuration(ranked[(count - 1) // 2], ranked[-(-count * 9 // 10) - 1], count)


# The first and the latest predicted start of each waiting job, and how good they were.
#
# A short task computes them while jobs wait, so that a prediction exists for jobs whose page is
# never opened.

EVERY = timedelta(seconds=30)
# Jobs further back in the queue are predicted when they come nearer.
MOST_STORED = 200
# Smaller changes of a prediction are not written.
LEAST_CHANGE = timedelta(seconds=10)
# Attempts and ended jobs that are read to judge predictions.
MOST_READ = 2000
JUDGED_EVERY = timedelta(minutes=2)
FIELDS = ("first_predicted_start_at", "first_predicted_p90_at", "predicted_start_at")


def jobs_wait() -> bool:
    return bool(_first_waiting())


@compiled_once
def _first_waiting() -> QuerySet[Any, int]:
    return (
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pk", flat=True)[:1]
    )


def store(estimates: Mapping[int, Estimate], now: datetime) -> int:
    """Store predictions of the first waiting jobs; returns how many rows changed."""
    upcoming = [
        (estimate.position or MOST_STORED, job_id)
        for job_id, estimate in estimates.items()
        if estimate.p50 is not None and estimate.p50 > now
    ]
    nearest = [job_id for _, job_id in sorted(upcoming)[:MOST_STORED]]
    rows = Job.objects.filter(pk__in=nearest, state=JobState.QUEUED.value).only("id", *FIELDS)
    changed = [job for job in rows if _update(job, estimates[job.pk])]
    return Job.objects.bulk_update(changed, FIELDS) if changed else 0


def _update(job: Job, estimate: Estimate) -> bool:
    if estimate.p50 is None:
        return False
    last = job.predicted_start_at
    if last is not None and abs(estimate.p50 - last) < LEAST_CHANGE:
        return False
    job.predicted_start_at = estimate.p50
    if job.first_predicted_start_at is None:
        job.first_predicted_start_at = estimate.p50
        job.first_predicted_p90_at = estimate.p90
    return True


def predicted_starts(now: datetime) -> list[PredictedStart]:
    """The first starts of predicted jobs in the last 30 days, of the newest attempts."""
    columns = ("job_id", "job__owner_id", "job__name", "job__submitted_at", "started_at")
    predicted = ("job__first_predicted_start_at", "job__first_predicted_p90_at")
    newest = Attempt.objects.order_by("-pk").values_list(*columns, *predicted)[:MOST_READ]
    first: dict[int, tuple[Any, ...]] = {}
    for job, *row in newest:
        # A later attempt of the job was read before.
        if row[3] is not None:
            first[job] = tuple(row)
    starts = [row for row in first.values() if row[4] is not None and now - row[3] <= LONGEST]
    ends = _ends_by_name({row[0] for row in starts})
    return [
        PredictedStart(started_at, p50, p90, bisect_left(ends.get((owner, name), []), submitted_at))
        for owner, name, submitted_at, started_at, p50, p90 in starts
    ]


def _ends_by_name(owners: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """By owner and name: when runs that tell a run time ended, oldest first."""
    if not owners:
        return {}
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(owner__in=owners, outcome__in=over, started_at__isnull=False)
    ends: dict[tuple[int, str], list[datetime]] = {}
    for owner, name, ended_at in rows.order_by("-pk").values_list("owner", "name", "ended_at")[
        :MOST_READ
    ]:
        if ended_at is not None:
            insort(ends.setdefault((owner, name), []), ended_at)
    return ends


# Scrapes and viewers of the status page ask for it every few seconds.
calibration = TimedCache(lambda now: calibrations(predicted_starts(now), now), JUDGED_EVERY)


# Rows -> facts: waiting and placed jobs, as the planner sees them.


UNCLEAR = Blocker(code=BlockerCode.JOB_UNCLEAR, tier=Tier.MACHINE)
CONDITION_COLUMNS = (
    "id", "held", "held_by", "begin_at", "retry_at", "failures", "array", "array_limit", "depends",
)  # fmt: skip
_WITH_CONDITIONS = Job.objects.filter(conditional(), state=JobState.QUEUED.value)
_CONDITIONAL = PreparedQuery(lambda _: _WITH_CONDITIONS.values_list(*CONDITION_COLUMNS), MARK)


def load(
    now: datetime, convert: Convert = convert_all, unmet: UnmetDependencies | None = None
) -> dict[int, tuple[Blocker, ...]]:
    """Blockers by job. The query reads a partial index, which is usually empty.

    A job whose conditions cannot be read waits: unknown never counts as met. `unmet`: what was
    read of dependencies in an earlier pass.
    """
    rows = _CONDITIONAL.rows()
    if not rows:
        return {}
    unmet = unmet or UnmetDependencies()
    unmet.refresh([row[0] for row in rows if row[-1]])
    refused = _refused([row[0] for row in rows if row[4] is not None and row[4] > now])
    limited = {row[6] for row in rows if row[6] is not None and row[7] is not None}
    conditions = [
        Condition(
            id=id_,
            held=held,
            held_by=held_by,
            begin_at=begin_at,
            retry_at=retry_at,
            failures=failures,
            refused=refused.get(id_, ""),
            array=array,
            array_limit=limit,
            pending=unmet.of(id_),
            arrays=unmet.arrays,
        )
        for id_, held, held_by, begin_at, retry_at, failures, array, limit, _ in rows
    ]
    placed = _placed(list(limited)) if limited else {}
    unclear = dict.fromkeys(unmet.unclear, (UNCLEAR,))
    try:
        return waits(conditions, placed, now, settings.TIME_ZONE) | unclear
    except Exception:
        readable = convert(
            conditions,
            lambda condition: f"conditions of job {condition.id}",
            lambda condition: waits([condition], placed, now, settings.TIME_ZONE),
        )
    good = [condition for condition, _ in readable]
    broken = {condition.id for condition in conditions} - {condition.id for condition in good}
    unclear |= dict.fromkeys(broken, (UNCLEAR,))
    return waits(good, placed, now, settings.TIME_ZONE) | unclear


def _refused(jobs: Sequence[int]) -> dict[int, str]:
    """The reason of each job whose last attempt never ran."""
    if not jobs:
        return {}
    rows = Attempt.objects.filter(job__in=jobs).order_by("number")
    last = {
        job: (outcome, reason)
        for job, outcome, reason in rows.values_list("job", "outcome", "problem")
    }
    return {job: reason for job, (outcome, reason) in last.items() if not outcome}


def _placed(arrays: Sequence[int]) -> dict[int, int]:
    """Number of placed jobs of each array."""
    placed = Job.objects.exclude(state__in=(JobState.QUEUED.value, JobState.FINISHED.value))
    rows = placed.filter(array__in=arrays).order_by().values_list("array").annotate(Count("id"))
    return {array: count for array, count in rows if array is not None}


# (owner, job name) -> usual run time; None = unknown.
UsualOf = Callable[[str, str], UsualDuration | None]
# The expected run time by owner, name, time limit and estimate: predictions need it, plans don't.
Expect = Callable[[str, str, timedelta | None, timedelta | None], RunTime | None]
Row = Sequence[Any]
REQUIREMENT_COLUMNS = (
    "gpus", "gpu_memory_bytes", "exclusive", "capability", "gpu_model", "power", "gpu_uuid",
    "share_pct", "memory_bytes", "cpus", "exclusive_batch",
)  # fmt: skip
DURATION_COLUMNS = ("time_limit_s", "estimate_s")
# Made once, as making such a query takes longer than answering it.
_WAITING = Job.objects.filter(state=JobState.QUEUED.value).values_list(
    "id", "owner__username", "priority", "submitted_at", "name", "preemptible",
    "may_preempt_at", "idle_template", "host", "home", "agent_id", *DURATION_COLUMNS,
    *REQUIREMENT_COLUMNS,
)  # fmt: skip
_PLACED = Attempt.objects.filter(ended_at=None).values_list(
    "host", "job_id", "job__owner__username", "job__priority", "job__name", "job__preemptible",
    "job__state", "job__idle_template", "yield_request__id", "yield_request__withdrawn_at",
    "job__agent_id",
    "placed_at", "started_at", "ends_p50_at", "ends_p90_at", "gpu_uuids",
    *(f"job__{column}" for column in (*DURATION_COLUMNS, *REQUIREMENT_COLUMNS)),
)  # fmt: skip

_ALL_WAITING: PreparedQuery[int, Row] = PreparedQuery(lambda _: _WAITING, MARK)
_ALL_PLACED = PreparedQuery(lambda _: _PLACED, MARK)


@lru_cache(maxsize=4096)
def requirement(
    gpus: int,
    memory_bytes: int | None,
    exclusive: bool,
    capability: str,
    model: str,
    power: float | None,
    gpu_uuid: str,
    share_pct: int | None,
    host_memory_bytes: int | None = None,
    cpus: float | None = None,
    batch: int | None = None,
    usual_memory_bytes: int | None = None,
    usual_cpus: float | None = None,
) -> Requirement:
    """The requirement in these columns. Equal ones are one object, as the planner groups by id."""
    return Requirement(
        gpus=gpus,
        memory_bytes=memory_bytes,
        exclusive=exclusive,
        capability=version(capability),
        model=model,
        power=power,
        gpu_uuid=gpu_uuid,
        share_pct=share_pct,
        host_memory_bytes=host_memory_bytes,
        cpus=cpus,
        batch=batch,
        usual_memory_bytes=usual_memory_bytes if host_memory_bytes is None else None,
        usual_cpus=usual_cpus if cpus is None else None,
    )


def host_use(history: UsualDuration | None) -> tuple[int | None, float | None]:
    """Host memory and CPUs of earlier runs."""
    return (None, None) if history is None else (history.memory_bytes, history.cpus)


def no_expectation(
    owner: str, name: str, limit: timedelta | None, estimate: timedelta | None
) -> None:
    """No expected run time, for callers that do not predict."""


def queue(
    usual: UsualOf,
    ids: Collection[int] | None = None,
    convert: Convert = convert_all,
    expect: Expect = no_expectation,
) -> list[QueuedJob]:
    """Waiting jobs (all, or only `ids`), unordered and without their own blockers.

    Jobs whose rows cannot be converted are left out.
    """
    rows = _ALL_WAITING.rows() if ids is None else list(_WAITING.filter(pk__in=ids))
    return [job for _, job in convert(rows, _name, lambda row: _queued(row, usual, expect))]


def _queued(row: Row, usual: UsualOf, expect: Expect) -> QueuedJob:
    id_, owner, priority, submitted_at, name, preemptible, preempts_at, *more = row
    template, host, home, agent, *rest = more
    limit_s, estimate_s, *columns = rest
    limit, estimate = _seconds(limit_s), _seconds(estimate_s)
    history = usual(owner, name)
    return QueuedJob(
        id=id_,
        owner=owner,
        priority=_priority(priority, agent),
        submitted_at=submitted_at,
        requirement=requirement(*columns, *host_use(history)),
        time_limit=limit,
        estimate=estimate,
        usual=None if history is None else history.p90,
        typical=None if history is None else history.p50,
        expected=expect(owner, name, limit, estimate),
        preemptible=preemptible,
        may_preempt_at=preempts_at,
        idle_work=bool(template),
        host=host or home,
    )


def _name(row: Row) -> str:
    return f"job {row[0]}"


class WaitingJobs:
    """The jobs of `queue` for repeated calls. Only changed rows are converted."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._version: object = None
        # The row as the database stores it, and its job.
        self._known: dict[int, tuple[Row, QueuedJob]] = {}

    def read(self, convert: Convert) -> dict[int, QueuedJob]:
        """Jobs by number. Those whose rows cannot be converted are left out."""
        if self._version is not self._durations.version:
            self._version, self._known = self._durations.version, {}
        stored = _ALL_WAITING.stored()
        known, new = {}, []
        for row in stored:
            entry = self._known.get(row[0])
            if entry is not None and entry[0] == row:
                known[row[0]] = entry
            else:
                new.append(row)
        if new:
            made = {job.id: job for job in self._converted(new, convert)}
            known |= {row[0]: (row, made[row[0]]) for row in new if row[0] in made}
        self._known = known
        return {row[0]: known[row[0]][1] for row in stored if row[0] in known}

    def _converted(self, stored: Sequence[tuple[Any, ...]], convert: Convert) -> list[QueuedJob]:
        usual, expect = self._durations, self._durations.expect
        rows = _ALL_WAITING.converted(stored)
        made = convert(rows, _name, lambda row: _queued(row, usual, expect))
        return [job for _, job in made]


def with_waits(
    jobs: list[QueuedJob],
    now: datetime,
    convert: Convert = convert_all,
    unmet: UnmetDependencies | None = None,
) -> list[QueuedJob]:
    """The jobs with their own blockers (hold, dependencies, back-off) as of now."""
    waits = load(now, convert, unmet)
    waits |= quota_rows.agent_blockers(now, waits)
    if not waits:
        return jobs
    return [replace_dataclass(job, waits=waits[job.id]) if job.id in waits else job for job in jobs]


def placed(
    usual: UsualOf, convert: Convert = convert_all, expect: Expect = no_expectation
) -> dict[str, list[RunningJob]]:
    """By host, the jobs that have a place, those without a GPU too."""
    by_host: dict[str, list[RunningJob]] = {}
    for host, job in _converted(_ALL_PLACED.rows(), usual, convert, expect):
        by_host.setdefault(host, []).append(job)
    return by_host


def running(host: str, usual: UsualOf, convert: Convert = convert_all) -> list[RunningJob]:
    """The jobs that have a place on `host`."""
    return [
        job
        for _, job in _converted(list(_PLACED.filter(host=host)), usual, convert, no_expectation)
    ]


def _converted(
    rows: list[Row], usual: UsualOf, convert: Convert, expect: Expect
) -> Iterable[tuple[str, RunningJob]]:
    """A job whose row cannot be converted still holds its GPUs, exclusively."""
    made = convert(rows, lambda row: f"job {row[1]}", lambda row: _running(row[1:], usual, expect))
    if len(made) == len(rows):
        return ((row[0], job) for row, job in made)
    jobs = {job.id: job for _, job in made}
    return ((row[0], jobs.get(row[1]) or _unknown(row)) for row in rows)


def _unknown(row: Row) -> RunningJob:
    _, id_, owner, priority, *_, placed_at, _, _, _, uuids = row[
        : -len(DURATION_COLUMNS) - len(REQUIREMENT_COLUMNS)
    ]
    return RunningJob(
        id=id_,
        owner=owner,
        priority=priority,
        requirement=Requirement(gpus=len(uuids), exclusive=bool(uuids)),
        gpu_uuids=tuple(uuids),
        started_at=placed_at,
    )


def _running(row: Row, usual: UsualOf, expect: Expect) -> RunningJob:
    id_, owner, priority, name, preemptible, state, template, asked_to, may_stay, *more = row
    agent, placed_at, started_at, p50_at, p90_at, uuids, limit_s, estimate_s, *columns = more
    limit, estimate = _seconds(limit_s), _seconds(estimate_s)
    history = usual(owner, name)
    p50, p90 = (None, None) if history is None else (history.p50, history.p90)
    return RunningJob(
        id=id_,
        owner=owner,
        priority=_priority(priority, agent),
        requirement=requirement(*columns, *host_use(history)),
        gpu_uuids=tuple(uuids),
        started_at=started_at or placed_at,
        lasts=limit or p90 or estimate,
        typical=p50 or estimate,
        expected=expect(owner, name, limit, estimate),
        ends=Ends(p50_at, p90_at) if p50_at and p90_at else None,
        preemptible=preemptible,
        idle_work=bool(template),
        is_of_agent=agent is not None,
        yields=(asked_to is not None and may_stay is None) or state == JobState.STOPPING.value,
    )


def _priority(priority: int, agent: int | None) -> int:
    """For the planner, which serves jobs of agents last."""
    return priority if agent is None else PRIORITY_IN_PLANS


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


# The redundant condition lets the partial index of open jobs answer the query alone.
_FROM_WAITING = " FROM scheduler_job WHERE state = 'queued' AND NOT (state = 'finished')"


# How many jobs wait, and the sum of their numbers.
QueueMark = tuple[int, int | None]


def queue_mark() -> QueueMark:
    """A cheap value that changes whenever a job enters or leaves the queue."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(id)" + _FROM_WAITING)
        count, total = cursor.fetchone()
        return count, None if total is None else int(total)


def mark_without(mark: QueueMark | None, jobs: Collection[int]) -> QueueMark | None:
    """The mark once these jobs have left the queue."""
    if mark is None or not jobs:
        return mark
    count, total = mark[0] - len(jobs), (mark[1] or 0) - sum(jobs)
    return (count, total) if count else EMPTY_QUEUE_MARK


def waiting_ids() -> set[int]:
    """The numbers of all waiting jobs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id" + _FROM_WAITING)
        return {id_ for (id_,) in cursor.fetchall()}


# `queue_mark` of an empty queue.
EMPTY_QUEUE_MARK: QueueMark = (0, None)
