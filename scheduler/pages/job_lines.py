"""Jobs in words: one line each, as the queue, the dashboard and the job's page show them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.formats import GIB, duration
from monitor.models import Gpu
from scheduler import viewing
from scheduler.jobs import PRIORITIES, JobState, Outcome
from scheduler.models import Job

# state or outcome -> (the word, the badge's shape)
WORDS = {
    JobState.QUEUED: ("waiting", "waiting"),
    JobState.STARTING: ("starting", "busy"),
    JobState.RUNNING: ("running", "busy"),
    JobState.STOPPING: ("stopping", "warning"),
    Outcome.SUCCEEDED: ("succeeded", "ok"),
    Outcome.FAILED: ("failed", "failing"),
    Outcome.CANCELLED: ("cancelled", "idle"),
    Outcome.TIMED_OUT: ("timed out", "warning"),
    Outcome.LOST: ("lost", "unknown"),
    Outcome.PREEMPTED: ("preempted", "warning"),
    Outcome.SKIPPED: ("skipped", "warning"),
}


@dataclass(frozen=True, slots=True)
class GpuLink:
    """A GPU of a job; index None = it was never seen or is forgotten."""

    uuid: str
    index: int | None
    host: str

    @property
    def label(self) -> str:
        return self.uuid[:12] if self.index is None else f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class JobLine:
    """What all people may see of a job."""

    id: int
    name: str
    owner: str
    state: str
    word: str
    shape: str
    priority: int
    requirement: str
    gpus: tuple[GpuLink, ...]
    why: str
    ending: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def urgency(self) -> str:
        return PRIORITIES[self.priority]

    @property
    def waits(self) -> bool:
        return self.state == JobState.QUEUED.value

    @property
    def is_open(self) -> bool:
        return self.state != JobState.FINISHED.value

    @property
    def took(self) -> timedelta | None:
        """From start to end; None while it runs, or when it never ran."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None


def lines(jobs: Iterable[Job]) -> list[JobLine]:
    """One line each, in the same order."""
    found = list(jobs)
    attempts = [viewing.running_attempt(job) for job in found]
    known = gpu_links({uuid for a in attempts if a for uuid in a.gpu_uuids})
    return [
        _line(job, [known[uuid] for uuid in attempt.gpu_uuids] if attempt else [])
        for job, attempt in zip(found, attempts, strict=True)
    ]


def gpu_links(uuids: Iterable[str]) -> dict[str, GpuLink]:
    wanted = set(uuids)
    if not wanted:
        return {}
    rows = Gpu.objects.filter(uuid__in=wanted).values_list("uuid", "index", "host")
    known = {uuid: GpuLink(uuid, index, host) for uuid, index, host in rows}
    return {uuid: known.get(uuid) or GpuLink(uuid, None, "") for uuid in wanted}


def _line(job: Job, gpus: Sequence[GpuLink]) -> JobLine:
    word, shape = badge(job)
    return JobLine(
        id=job.pk,
        name=job.name,
        owner=job.owner.username,
        state=job.state,
        word=word,
        shape=shape,
        priority=job.priority,
        requirement=requirement(job),
        gpus=tuple(gpus),
        why=job.blockers[0]["text"] if job.blockers else "",
        ending=ending(job),
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
    )


def badge(job: Job) -> tuple[str, str]:
    """The word for where it is, or how it ended, and the shape beside it."""
    return WORDS[Outcome(job.outcome) if job.outcome else JobState(job.state)]


def requirement(job: Job) -> str:
    """What it asks of the GPUs: "2 GPUs, 20 GiB each, alone, H100"."""
    limits = _of_host(job)
    if job.gpus == 0:
        return ", ".join(["no GPU", *limits])
    parts = ["1 GPU" if job.gpus == 1 else f"{job.gpus} GPUs"]
    if job.gpu_memory_bytes is not None:
        parts.append(plain_gib(job.gpu_memory_bytes) + (" each" if job.gpus > 1 else ""))
    if job.exclusive:
        parts.append("alone")
    if job.share_pct:
        parts.append(f"at most {job.share_pct} % of its time")
    if job.gpu_model:
        parts.append(job.gpu_model)
    if job.capability:
        parts.append(f"capability ≥ {job.capability}")
    if job.power:
        parts.append(f"rank ≥ {job.power:g}")
    if job.gpu_uuid:
        parts.append(f"only {gpu_links([job.gpu_uuid])[job.gpu_uuid].label}")
    return ", ".join([*parts, *limits])


def _of_host(job: Job) -> list[str]:
    """The most that it takes of the host."""
    cpus = None if job.cpus is None else f"{job.cpus:g} CPU{'' if job.cpus == 1 else 's'}"
    memory = None if job.memory_bytes is None else f"{plain_gib(job.memory_bytes)} of memory"
    return [f"at most {part}" for part in (cpus, memory) if part]


def plain_gib(value: int) -> str:
    """A size that somebody asked for, as they would write it: "20 GiB"."""
    return f"{value / GIB:.4g} GiB"


def ending(job: Job) -> str:
    """How it ended, beside the word for its outcome: "exit code 1"."""
    if not job.outcome:
        return ""
    outcome = Outcome(job.outcome)
    if outcome is Outcome.FAILED:
        return _failure(job)
    if outcome is Outcome.CANCELLED:
        return f"by {job.cancelled_by}" if job.cancelled_by else ""
    if outcome is Outcome.TIMED_OUT:
        return f"stopped at its time limit of {duration(job.time_limit_s)}"
    if outcome is Outcome.PREEMPTED:
        return "it had to leave its GPU, and is not run again"
    if outcome is Outcome.SKIPPED:
        return "what it waited for did not succeed"
    return "nobody can tell how it ended" if outcome is Outcome.LOST else ""


def verdict(line: JobLine) -> str:
    """Where it is and why, in one sentence."""
    where = f" on {', '.join(gpu.label for gpu in line.gpus)}" if line.gpus else ""
    if line.waits:
        return line.why or "Nothing keeps it: the scheduler looks at it within a second."
    if line.is_open:
        return f"It is {line.word}{where}."
    return f"It ended: {', '.join(word for word in (line.word, line.ending) if word)}."


def _failure(job: Job) -> str:
    if job.signal is not None:
        try:
            return f"ended by {signal.Signals(job.signal).name} (signal {job.signal})"
        except ValueError:
            return f"ended by signal {job.signal}"
    if job.exit_code is not None:
        return f"exit code {job.exit_code}"
    return "" if job.started_at else "it could not start"
