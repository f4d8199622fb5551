"""Jobs in words: one line each for the queue, the dashboard and the job's page."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from monitor.facts.accounts import submitter
from monitor.facts.formats import GIB, duration, values_of
from monitor.models import Gpu
from scheduler.facts import job_fields
from scheduler.facts.field_types import Group
from scheduler.facts.job_answers import LISTED
from scheduler.facts.jobs import PRIORITIES, JobState, Outcome
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.serialise import JobRecord
from scheduler.models import Attempt, Job

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


class GpuLink(Struct, frozen=True):
    """A GPU of a job. Index None: the GPU has no row."""

    uuid: str
    index: int | None
    host: str

    @property
    def label(self) -> str:
        return self.uuid[:12] if self.index is None else f"GPU {self.index}"


class JobLine(Struct, frozen=True):
    """The part of a job that all users may see."""

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
    # 0 to 100. None: the job reports none.
    percent: int | None
    # The expected end of a running job (median). None: unknown.
    ends_at: datetime | None
    # Of the current or last attempt. None: it never ran.
    host: str | None
    # The name of the owner's agent that submitted it.
    agent: str | None
    # Contact with the host of a running job is lost.
    is_lost: bool

    @property
    def submitter(self) -> str:
        return submitter(self.owner, self.agent or "")

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
        """From start to end. None: still running, or never started."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None


# Values that the line has as REST gives them.
_SHARED = [f for f in LISTED if f.name in JobLine.__struct_fields__ and f.name != "gpus"]


def lines(jobs: Iterable[Job]) -> list[JobLine]:
    """One line for each job, in the same order."""
    records = job_views.records(list(jobs))
    links = gpu_links({uuid for record in records for uuid in record.gpus})
    return [_line(record, tuple(links[uuid] for uuid in record.gpus)) for record in records]


def gpu_links(uuids: Iterable[str]) -> dict[str, GpuLink]:
    unique = set(uuids)
    if not unique:
        return {}
    rows = Gpu.objects.filter(uuid__in=unique).values_list("uuid", "index", "host")
    links = {uuid: GpuLink(uuid, index, host) for uuid, index, host in rows}
    return {uuid: links.get(uuid) or GpuLink(uuid, None, "") for uuid in unique}


def _line(record: JobRecord, gpus: tuple[GpuLink, ...]) -> JobLine:
    job, is_lost = record.job, record.contact_lost_since is not None
    word, shape = ("contact lost", "unknown") if is_lost else badge(job)
    return JobLine(
        **values_of(_SHARED, record),
        word=word,
        shape=shape,
        requirement=requirement(job),
        gpus=gpus,
        why=record.reason or "",
        ending=ending(job),
        percent=percent(record.attempt),
        ends_at=record.ends.p50 if record.ends else None,
        is_lost=is_lost,
    )


def percent(attempt: Attempt | None) -> int | None:
    """The reported progress of a running attempt, rounded down."""
    if attempt is None or attempt.ended_at is not None or attempt.progress is None:
        return None
    return int(attempt.progress * 100)


def badge(job: Job) -> tuple[str, str]:
    """The word for the state or outcome, and the shape of its badge."""
    if job.held and job.state == JobState.QUEUED.value:
        return "held", "waiting"
    return WORDS[Outcome(job.outcome) if job.outcome else JobState(job.state)]


def requirement(job: Job) -> str:
    """The requested resources: "2 GPUs, 20 GiB each, exclusive, H100"."""
    summaries = [
        field.summary(getattr(job, field.column))
        for field in job_fields.JOB_FIELDS
        if field.summary and (job.gpus or field.group is Group.HOST)
    ]
    parts = [_gpus(job), *filter(None, summaries)]
    if job.gpu_uuid and job.gpus:
        parts.append(f"only {gpu_links([job.gpu_uuid])[job.gpu_uuid].label}")
    return ", ".join(parts)


def _gpus(job: Job) -> str:
    if job.gpus == 0:
        return "no GPU"
    count = "1 GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
    if job.gpu_memory_bytes is None:
        return count
    return f"{count}, {plain_gib(job.gpu_memory_bytes)}{' each' if job.gpus > 1 else ''}"


def plain_gib(value: int) -> str:
    """A requested size as users write it: "20 GiB". A learned one has three digits."""
    size = value / GIB
    is_written = (4 * size).is_integer()
    return f"{size:.4g} GiB" if is_written or size >= 1000 else f"{size:.3g} GiB"


def ending(job: Job) -> str:
    """Details of the outcome: "exit code 1". Empty: the outcome says it all."""
    if not job.outcome:
        return ""
    outcome = Outcome(job.outcome)
    if outcome is Outcome.FAILED:
        return _failure(job)
    if outcome is Outcome.CANCELLED:
        return f"by {job.cancelled_by}" if job.cancelled_by else ""
    if outcome is Outcome.TIMED_OUT:
        limit = f" of {duration(job.time_limit_s)}" if job.time_limit_s else ""
        return f"stopped at its time limit{limit}"
    if outcome is Outcome.PREEMPTED:
        return "preempted and not requeued"
    if outcome is Outcome.SKIPPED:
        return "a job it depends on did not succeed"
    return "exit code unknown" if outcome is Outcome.LOST else ""


def verdict(line: JobLine) -> str:
    """The state and its reason in one sentence."""
    where = f" on {', '.join(gpu.label for gpu in line.gpus)}" if line.gpus else ""
    if line.waits:
        return line.why or "The scheduler looks at the job within a second."
    if line.is_lost:
        return f"Contact with its host {line.host} is lost. The job may still run."
    if line.is_open:
        return f"The job is {line.word}{where}."
    return f"The job ended: {', '.join(word for word in (line.word, line.ending) if word)}."


def _failure(job: Job) -> str:
    if job.signal is not None:
        try:
            return f"ended by {signal.Signals(job.signal).name} (signal {job.signal})"
        except ValueError:
            return f"ended by signal {job.signal}"
    if job.exit_code is not None:
        return f"exit code {job.exit_code}"
    return "" if job.started_at else "could not start"
