"""The controller's part that reports idle GPUs and CPUs, idle memory, and jobs that wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from monitor.facts.formats import GIB, duration
from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import GpuReading, Snapshot
from monitor.incidents.facts import IDLE_HELD
from monitor.incidents.rows import open as open_incidents
from monitor.journal.rows import events
from monitor.models import Event, Incident
from monitor.runtime.rows.item_isolation import Convert, ItemIsolation, convert_all
from monitor.thresholds import rows as thresholds
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState
from scheduler.models import Job
from scheduler.queue.planner.idle_gpus import (
    IdleGpu,
    IdlePolicy,
    WaitingJob,
    beside,
    idle_by_use,
    long_idle,
)

# Jobs with a blocker of these tiers cannot start on an idle GPU.
OWN_TIERS = (int(Tier.PERSON), int(Tier.NOT_YET))
MOST_WAITING = 200
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


@dataclass(frozen=True, slots=True)
class Unused:
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
