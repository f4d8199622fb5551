"""The controller: its parts judge the newest snapshot every few seconds; due tasks are queued.

The controller's part that finds incidents: it gives the monitor the waiting jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from zlib import crc32

from django.db import transaction
from django.db.models import F, QuerySet
from msgspec import Struct

from monitor.facts.accounts import Demand
from monitor.facts.formats import GIB, duration
from monitor.facts.gpus import GpuState
from monitor.facts.incidents import IDLE_HELD
from monitor.facts.readings import GpuReading, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.host import cpu_processes
from monitor.incidents import rows as open_incidents
from monitor.incidents.policy.constraints import ConstraintPolicy, judge
from monitor.incidents.policy.lifecycle import Verdict
from monitor.incidents.step import IncidentStep
from monitor.journal.rows import events
from monitor.models import Event, Incident
from monitor.runtime.policy import Guard
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import Convert, ItemIsolation, convert_all, is_of_step
from monitor.thresholds import rows as thresholds
from scheduler.facts.blockers import LOAD_CODES, Tier
from scheduler.facts.jobs import JobState
from scheduler.fair_share.rows import Rights
from scheduler.jobs.rows import durations
from scheduler.models import Attempt, Job
from scheduler.submission.idle_work.policy import (
    IdleGpu,
    IdlePolicy,
    WaitingJob,
    beside,
    idle_by_use,
    long_idle,
)

# Older snapshots are not used.
STALE_AFTER = timedelta(seconds=15)
# The periodic tasks of the workers.
PERIODIC_TASKS = {
    "roll_up": timedelta(minutes=1),
    "prune": timedelta(minutes=5),
    "find_patterns": timedelta(hours=1),
}
CLEAR_EVERY = timedelta(minutes=10)
FAULT_KINDS = ("JUDGING_FAILED",)


class Part(Protocol):
    """A part of the controller. Its state is in rows."""

    name: str

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        """Run once in the tick's transaction. snapshot: None = there is no fresh one.

        Returns results for logs and tests. It never waits for an external service.
        """


class PartResult(Struct, frozen=True):
    """The result of each part (or its error), and the queued tasks."""

    results: Mapping[str, object]
    queued: tuple[str, ...]


class FileRetention:
    """The part that has files of ended jobs deleted on this host."""

    name = "clearing"

    def __init__(self, host: str, queue: Callable[[str, str], None]) -> None:
        self._queue = queue
        self._chore = f"clear {host[:24]} {crc32(host.encode()):08x}"

    def judge(self, snapshot: Snapshot | None, now: datetime) -> bool:
        is_due = periodic_tasks.due(self._chore, CLEAR_EVERY, now)
        if is_due:
            self._queue("clear_files", "scheduler.tasks")
        return is_due


class Predictions:
    """The part that has predicted start times stored while jobs wait; one host serves all."""

    name = "predictions"

    def __init__(self, queue: Callable[[str, str], None]) -> None:
        self._queue = queue

    def judge(self, snapshot: Snapshot | None, now: datetime) -> bool:
        is_due = durations.jobs_wait() and periodic_tasks.due(
            "predict_starts", durations.EVERY, now
        )
        if is_due:
            self._queue("predict_starts", "scheduler.tasks")
        return is_due


class OtherTasks:
    """The part that has the apps above queue their own periodic tasks."""

    name = "other tasks"

    def __init__(self, host: str) -> None:
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        return self._isolation.each(
            periodic_tasks.queuers(), str, lambda path: periodic_tasks.queuer(path)(now), now
        )


class ConstraintWatch:
    """The part that reports resources the host is short of."""

    name = "constraints"

    def __init__(self, host: str, data_folder: str) -> None:
        self._host = host
        self._data_folder = data_folder
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        if snapshot is None:
            return None
        open_keys = open_incidents.constraint_keys(self._host)
        policy = thresholds.current(ConstraintPolicy)
        cpu = open_incidents.cpu_pct(self._host, now) if policy.cpu_busy_pct < 100 else None
        verdict = judge(snapshot, self._data_folder, open_keys, policy, cpu)
        open_incidents.apply_constraints(verdict, self._host, now, self._isolation)
        return verdict


class Controller:
    """A Step. All state is in rows, so a restart changes nothing."""

    def __init__(
        self, guard: Guard, host: str, queue: Callable[[str], None], parts: Sequence[Part]
    ) -> None:
        self._guard = guard
        self._host = host
        self._queue = queue
        self._parts = parts
        self._isolation = ItemIsolation(host, "controller", guard)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def step(self, now: datetime) -> PartResult:
        """Judge once at `now`."""
        newest = snapshots.newest(self._host)
        fresh = newest if newest is not None and now - newest.at <= STALE_AFTER else None
        with self._guard():
            results = {part.name: self._ask(part, fresh, now) for part in self._parts}
            tried = self._isolation.each(
                PERIODIC_TASKS, str, lambda name: self._queue_chore(name, now), now
            )
        return PartResult(results, tuple(name for name, is_due in tried if is_due))

    def _queue_chore(self, name: str, now: datetime) -> bool:
        """Whether it was due, and is queued."""
        is_due = periodic_tasks.due(name, PERIODIC_TASKS[name], now)
        if is_due:
            self._queue(name)
        return is_due

    def _ask(self, part: Part, snapshot: Snapshot | None, now: datetime) -> object:
        """A part that fails is rolled back, and the other parts judge."""
        try:
            with transaction.atomic():
                result = part.judge(snapshot, now)
        except Exception as error:
            if is_of_step(error):
                raise
            self._isolation.failed(part.name, error, now, FAULT_KINDS[0])
            return error
        self._isolation.worked(part.name)
        return result


# Jobs further back in the queue would not start if one GPU became free.
MOST_WAITING = 200


class IncidentWatch:
    """A Part. Its memory of the last hours can be rebuilt from rows."""

    name = "hogs"

    def __init__(self, host: str, gap_s: float = 15.0) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)
        self._incidents = IncidentStep(host, gap_s, cpu_processes)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Verdict | None:
        if snapshot is None:
            return None
        demand, shares = self._demand(now, _owners_on(snapshot))
        return self._incidents.judge(snapshot, demand, now, self._leaders(), shares)

    def _leaders(self) -> set[int]:
        """The pids of the runners of all jobs of this host, and of their first processes."""
        pids = ((row.runner_pid, row.pid) for row in _open_attempts(self._host))
        return {pid for pair in pids for pid in pair if pid is not None}

    def _demand(
        self, now: datetime, present: Collection[str]
    ) -> tuple[list[Demand], dict[str, float]]:
        """The jobs that would start if others used less, and the fair share (%) of each of
        `present`, which is read while such a job waits.
        """
        judged = self._isolation.convert(
            _first_waiting(),
            lambda job: f"job {job.pk}",
            lambda job: _waits_for_others(job.blockers),
            now,
        )
        waiting = [job for job, waits_for_others in judged if waits_for_others]
        if not waiting:
            return [], {}
        rights = Rights(now, present)
        demand = [
            Demand(
                owner=job.owner_name,
                since=max(job.submitted_at, job.begin_at) if job.begin_at else job.submitted_at,
                job_ref=str(job.pk),
                gpus=job.gpus,
                gpu_uuids=(job.gpu_uuid,) if job.gpu_uuid else (),
            )
            for job in waiting
        ]
        return demand, {name: 100 * rights.fair_share(name) for name in present}


@compiled_once
def _first_waiting() -> QuerySet[Any]:
    """The waiting jobs that come first, each with `owner_name`."""
    rows = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0, held="")
    named = rows.annotate(owner_name=F("owner__username"))
    columns = named.only("gpus", "gpu_uuid", "submitted_at", "begin_at", "blockers")
    return columns.order_by("-priority", "submitted_at", "id")[:MOST_WAITING]


@compiled_once
def _open_attempts(host: str) -> QuerySet[Attempt]:
    """Processes of another engine run on its nodes, where these pids are other processes."""
    rows = Attempt.objects.filter(host=host, ended_at=None, engine="")
    return rows.only("runner_pid", "pid")


def _owners_on(snapshot: Snapshot) -> set[str]:
    """The owners of the processes on GPUs."""
    owners = (process.job_owner or process.user for process in snapshot.processes)
    return {owner for owner in owners if owner}


def _waits_for_others(blockers: list[dict[str, Any]]) -> bool:
    """Whether the use of others is the only reason why the job waits."""
    return bool(blockers) and all(
        blocker.get("tier") == int(Tier.CONTENTION) or blocker.get("code") in LOAD_CODES
        for blocker in blockers
    )


# The controller's part that reports idle GPUs and CPUs, idle memory, and jobs that wait.


# Jobs with a blocker of these tiers cannot start on an idle GPU.
OWN_TIERS = (int(Tier.PERSON), int(Tier.NOT_YET))
# Older incidents were reported when they opened.
FRESH = timedelta(minutes=15)
IDLE_KINDS = ("IDLE_RESOURCE_DETECTED", "IDLE_WHILE_JOBS_WAIT")
UNUSED_KIND, WAITED_KIND = IDLE_KINDS
HOLDERS = {
    GpuState.LLM_READY: "a model holds",
    GpuState.SCRIPT_BUSY: "a job holds",
    GpuState.EXTERNAL: "other processes hold",
}
CPUS_AGAIN_AFTER = timedelta(hours=1)


class Unused(Struct, frozen=True):
    """A GPU, or the CPUs of a host, below 5 % since then. text: the begin of a sentence.

    pct: the newest measurement; None: unknown at this moment.
    """

    gpu_uuid: str
    text: str
    since: datetime
    pct: float | None
    index: int | None = None


class IdleResources:
    """A Part. Each idle time is reported once; the stored events are its memory."""

    name = "idle"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        if snapshot is None:
            return None
        policy = thresholds.current(IdlePolicy)
        return [
            *self._unused(snapshot, policy, now),
            *self._gpus(snapshot, now),
            *self._memory(now),
        ]

    def _unused(self, snapshot: Snapshot, policy: IdlePolicy, now: datetime) -> list[str]:
        """Report each GPU, and the CPUs, once for each time that they are idle by use."""
        idle = [
            Unused(gpu.uuid, _gpu_text(gpu), since, gpu.utilization_pct, gpu.index)
            for gpu, since in idle_by_use(snapshot.gpus, policy, now)
        ]
        host = snapshot.host
        since = host.cpu_idle_since
        if since is not None and now - since >= timedelta(seconds=policy.idle_seconds):
            text = f"The CPUs of {host.name} have been idle"
            idle.append(Unused("", text, since, host.cpu_pct))
        new = [period for period in idle if not self._is_unused_reported(period, now)]
        reported = self._isolation.each(
            new, lambda period: period.text, lambda period: self._report_unused(period, now), now
        )
        return [text for _, text in reported]

    def _is_unused_reported(self, period: Unused, now: datetime) -> bool:
        """In this idle time; of CPUs also within the hour, as their use is often near 5 %."""
        rows = Event.objects.filter(
            kind=UNUSED_KIND, host=self._host, gpu_uuid=period.gpu_uuid, owner=""
        )
        since = (
            period.since if period.index is not None else min(period.since, now - CPUS_AGAIN_AFTER)
        )
        return rows.filter(at__gt=since).exists()

    def _report_unused(self, period: Unused, now: datetime) -> str:
        idle_s = (now - period.since).total_seconds()
        text, figures = f"{period.text} for {duration(idle_s)}", {"idle_seconds": idle_s}
        if period.pct is not None:
            text += f" (utilisation {period.pct:.3g} %)"
            figures["utilization_pct"] = period.pct
        if period.index is not None:
            figures["gpu_index"] = period.index
        events.add(
            UNUSED_KIND, text, now=now, host=self._host, gpu_uuid=period.gpu_uuid, figures=figures
        )
        return text

    def _gpus(self, snapshot: Snapshot, now: datetime) -> list[str]:
        idle = long_idle(snapshot.gpus, now)
        if not idle:
            return []
        waiting = waiting_jobs(self._isolation.converter(now))
        new = [
            idle_gpu
            for idle_gpu in beside(idle, waiting, now)
            if not _is_reported(idle_gpu.gpu.uuid, idle_gpu.since, kind=WAITED_KIND)
        ]
        reported = self._isolation.each(
            new, lambda idle: f"GPU {idle.gpu.index}", lambda idle: self._report_gpu(idle, now), now
        )
        return [text for _, text in reported]

    def _report_gpu(self, idle: IdleGpu, now: datetime) -> str:
        count, first = len(idle.waiting), idle.waiting[0]
        jobs = f"{count} jobs wait" if count > 1 else f"job {first.job_id} waits"
        since = duration((now - idle.since).total_seconds())
        reason = f" ({first.why})" if first.why else ""
        text = f"GPU {idle.gpu.index} has been idle for {since} while {jobs}{reason}"
        self._add(text, idle.gpu.uuid, "", now, WAITED_KIND)
        return text

    def _memory(self, now: datetime) -> list[str]:
        """Report the fresh incidents about memory that is held idle."""
        here = [
            row for row in open_incidents.all_open_rows() if row.host == self._host and row.gpu_id
        ]
        fresh = [row for row in here if row.rule == IDLE_HELD and row.opened_at > now - FRESH]
        new = [
            row for row in fresh if not _is_reported(row.gpu_id or "", row.opened_at, _owner(row))
        ]
        reported = self._isolation.each(
            new,
            lambda row: f"incident {row.pk}",
            lambda row: self._add(row.text, row.gpu_id or "", _owner(row), now),
            now,
        )
        return [row.text for row, _ in reported]

    def _add(
        self, text: str, gpu_uuid: str, owner: str, now: datetime, kind: str = UNUSED_KIND
    ) -> None:
        events.add(
            kind,
            text,
            now=now,
            severity="warning",
            host=self._host,
            gpu_uuid=gpu_uuid,
            owner=owner,
        )


def waiting_jobs(convert: Convert = convert_all) -> list[WaitingJob]:
    """The queued jobs (at most 200) that an idle GPU could serve: not held, and due."""
    rows = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0, held="")
    columns = ("id", "submitted_at", "begin_at", "gpu_uuid", "blockers")
    oldest = list(rows.order_by("id").values_list(*columns)[:MOST_WAITING])
    converted = convert(oldest, lambda row: f"job {row[0]}", _waiting_job)
    return [job for _, job in converted if job is not None]


def _waiting_job(row: tuple[Any, ...]) -> WaitingJob | None:
    """None if an idle GPU would not help the job."""
    job_id, submitted_at, begin_at, gpu_uuid, blockers = row
    if not blockers or any(blocker.get("tier") in OWN_TIERS for blocker in blockers):
        return None
    return WaitingJob(
        job_id=job_id,
        since=max(submitted_at, begin_at) if begin_at else submitted_at,
        why=blockers[0].get("text") or "",
        gpu_uuid=gpu_uuid or "",
    )


def _owner(row: Incident) -> str:
    return row.job_owner or row.user


def _is_reported(gpu_uuid: str, since: datetime, owner: str = "", kind: str = UNUSED_KIND) -> bool:
    return Event.objects.filter(kind=kind, gpu_uuid=gpu_uuid, owner=owner, at__gte=since).exists()


def _gpu_text(gpu: GpuReading) -> str:
    """The begin of a sentence; memory that is held tells an idle GPU from a free one."""
    holder = HOLDERS.get(gpu.state) if gpu.state else None
    if holder is None:
        return f"GPU {gpu.index} has been idle"
    if gpu.memory_used_bytes is None:
        return f"GPU {gpu.index}, on which {holder} an unknown amount of memory, has been idle"
    held_gib = gpu.memory_used_bytes / GIB
    return f"GPU {gpu.index}, on which {holder} {held_gib:.3g} GiB, has been idle"
