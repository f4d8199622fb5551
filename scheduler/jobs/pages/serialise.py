"""Permissions to see a job, and the JSON of jobs in REST."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Prefetch, QuerySet
from django.db.models.fields.json import KeyTransform
from django.urls import reverse
from msgspec import Struct
from msgspec.structs import asdict

from monitor.facts.accounts import submitter
from monitor.facts.formats import GIB, duration, values_of
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu
from scheduler.dispatch.steps import preview as job_advice
from scheduler.dispatch.steps.preview import JobAdvice, JobForecast
from scheduler.execution.pages import silent_hosts
from scheduler.execution.steps.progress import ends_of
from scheduler.facts import job_fields
from scheduler.facts.blockers import TIER_WORDS, Tier
from scheduler.facts.field_types import TAG_NAME, Group
from scheduler.facts.job_answers import ATTEMPT_ANSWERS, JOB_ANSWERS, LISTED
from scheduler.facts.jobs import PRIORITIES, DependencyKind, Ends, JobState, Outcome
from scheduler.jobs import steps as sizing
from scheduler.models import Attempt, Job
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner import sizing as sizing_policy
from scheduler.queue.planner.blockers import addressed, first, reasons, with_current_ends
from scheduler.queue.planner.forecasts import Estimate, WhatIf
from scheduler.queue.planner.sizing import GpuUse, MemorySuggestion

Person = User | AnonymousUser
# Clients rely on these names; pages may use other words.
REST_TIERS = TIER_WORDS | {Tier.MY_LIMITS: "my limits"}


def may_see_all(job: Job, person: Person) -> bool:
    """Whether `person` may see command, environment, folder and log: the owner and operators."""
    return job.owner_id == person.pk or person.is_staff


def may_cancel(job: Job, person: Person) -> bool:
    return may_see_all(job, person)


def jobs() -> QuerySet[Job]:
    """Jobs with prefetched owners and attempts."""
    rows = Attempt.objects.select_related("use").annotate(host_seen_at=snapshots.last_reading())
    attempts = Prefetch("attempts", rows.order_by("number"))
    return Job.objects.select_related("owner", "agent").prefetch_related(attempts)


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs are listed. "" and None: no filter. state "open": every state except finished.

    name: a part of it. tag: NAME, or NAME=TEXT.
    """

    state: str = ""
    owner: str = ""
    outcome: str = ""
    name: str = ""
    tag: str = ""
    array: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def filtered(wanted: JobFilter) -> QuerySet[Job]:
    """Newest first."""
    columns = {
        "owner__username": wanted.owner,
        "outcome": wanted.outcome,
        "name__icontains": wanted.name,
        "array": wanted.array,
        "submitted_at__gte": wanted.since,
        "submitted_at__lt": wanted.until,
    }
    # No text has a NUL, and PostgreSQL rejects a query with one.
    chosen = jobs().filter(
        **{
            column: value.replace("\0", "\ufffd") if isinstance(value, str) else value
            for column, value in columns.items()
            if value
        }
    )
    if wanted.state == "open":
        chosen = chosen.exclude(state=JobState.FINISHED.value)
    elif wanted.state:
        chosen = chosen.filter(state=wanted.state)
    return _tagged(chosen, wanted.tag).order_by("-id")


def _tagged(chosen: QuerySet[Job], tag: str) -> QuerySet[Job]:
    name, has_text, text = tag.replace("\0", "\ufffd").partition("=")
    if not tag:
        return chosen
    if not TAG_NAME.fullmatch(name):
        return chosen.none()
    tagged = chosen.alias(tag=KeyTransform(name, "tags"))
    return tagged.filter(tag=text) if has_text else tagged.filter(tag__isnull=False)


def attempts_of(job: Job) -> list[Attempt]:
    return sorted(job.attempts.all(), key=lambda attempt: attempt.number)


def latest(job: Job) -> Attempt | None:
    return next(reversed(attempts_of(job)), None)


def running_attempt(job: Job) -> Attempt | None:
    """The attempt that holds the GPUs, or held them at the end. None: the job waits."""
    return None if job.state == JobState.QUEUED.value else latest(job)


def latest_number(job: Job) -> int:
    """The number of the attempt whose log is shown; 1 before the first attempt."""
    attempt = latest(job)
    return attempt.number if attempt else 1


def log_removed(job: Job, number: int) -> str:
    """When the log of this attempt was removed, in words. Empty: it was not."""
    attempt = next((each for each in attempts_of(job) if each.number == number), None)
    if attempt is None or attempt.files_gone_at is None or job.ended_at is None:
        return ""
    age = duration(attempt.files_gone_at - job.ended_at)
    return f"The log was removed {age} after the job ended."


@dataclass(frozen=True)
class JobRecord:
    """A job as all doors show it: the attributes of its row, and what follows from other rows.

    silent: silent_hosts() of its attempt.
    """

    job: Job
    silent: Mapping[str, datetime]
    task_class = "script"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    @cached_property
    def attempt(self) -> Attempt | None:
        return running_attempt(self.job)

    @cached_property
    def ends(self) -> Ends | None:
        return ends_of(self.attempt) if self.attempt else None

    @property
    def gpus(self) -> list[str]:
        return list(self.attempt.gpu_uuids) if self.attempt else []

    @property
    def requested(self) -> dict[str, Any]:
        return job_fields.requested(self.job)

    @property
    def contact_lost_since(self) -> datetime | None:
        """None: the attempt has ended, or its host is in contact."""
        attempt = self.attempt
        return self.silent.get(attempt.host) if attempt and attempt.ended_at is None else None

    @property
    def reason(self) -> str | None:
        return waits_for(self.job)

    @property
    def url(self) -> str:
        return reverse("job", args=[self.job.pk])

    @property
    def script_args(self) -> dict[str, Any] | None:
        return self.job.script_args if self.job.script else None

    @property
    def after(self) -> list[int]:
        return after(self.job, DependencyKind.END)

    @property
    def after_success(self) -> list[int]:
        return after(self.job, DependencyKind.SUCCESS)

    @property
    def prediction_error_s(self) -> float | None:
        off = prediction_error(self.job)
        return None if off is None else off.total_seconds()

    @property
    def efficiency(self) -> str:
        return efficiency(self.job)


def job_records(rows: Sequence[Job]) -> list[JobRecord]:
    silent: dict[str, datetime] = {}
    made = [JobRecord(job, silent) for job in rows]
    silent.update(silent_hosts(record.attempt for record in made))
    return made


def line_bodies(rows: Sequence[Job]) -> list[dict[str, Any]]:
    """The part that all users may see."""
    return [values_of(LISTED, record) for record in job_records(rows)]


def waits_for(job: Job) -> str | None:
    """The leading reason why it waits, in one sentence; None: it does not wait."""
    reason = first(reasons(job.blockers))
    return reason.headline if reason else None


def after(job: Job, kind: DependencyKind) -> list[int]:
    """The numbers of the jobs that this job depends on in this way."""
    rows = job.dependencies.filter(after=kind.value).order_by("on_id")
    return list(rows.values_list("on_id", flat=True))


def tier_of(blocker: dict[str, Any]) -> str:
    """The tier's name in REST. Empty: an older version stored the blocker."""
    tier = blocker.get("tier")
    return REST_TIERS[Tier(tier)] if tier else ""


def body(job: Job, person: Person, now: datetime) -> dict[str, Any]:
    """The job as `person` may see it."""
    (record,), sees_all = job_records([job]), may_see_all(job, person)
    return values_of(JOB_ANSWERS, record, sees_all=sees_all) | {
        "blockers": _with_tiers(with_current_ends(job.blockers, now)),
        "result": result(job) if sees_all else None,
        "attempts": [_attempt(each, sees_all) for each in attempts_of(job)],
    }


def why(job: Job, forecast: JobForecast, viewer: str) -> dict[str, Any]:
    """Why a job waits, and when it is expected to start, in sentences for this user."""
    blockers = stored_blockers.addressed_to(forecast.reasons, viewer)
    return {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "blockers": _with_tiers(blockers),
        "headline": _headline(blockers),
        **_estimate(forecast.estimate),
        "factors": [asdict(factor) for factor in forecast.factors],
    }


def advice(answer: JobAdvice, viewer: str, now: datetime, zone: str) -> dict[str, Any]:
    """The reason to wait and the changes that help, in sentences for this user."""
    return {
        "reason": addressed(answer.reason, viewer),
        "advice": [
            {
                "change": dict(each.fields),
                "text": job_advice.sentence(each, now, zone),
                "expected_start": each.expected_start,
                "earlier_s": each.earlier.total_seconds(),
            }
            for each in answer.advice
        ],
    }


def what_if(answer: WhatIf, suggestion: MemorySuggestion | None, viewer: str) -> dict[str, Any]:
    """The expected start of a job that was not submitted, and the GPU memory that it may need."""
    stored = map(stored_blockers.body, answer.blockers)
    blockers = stored_blockers.addressed_to(stored, viewer)
    return {
        "starts_now": answer.starts_now,
        "blockers": _with_tiers(blockers),
        "headline": _headline(blockers),
        **_estimate(answer.estimate),
        "gpu_memory_suggestion": _suggestion(suggestion),
    }


def _suggestion(suggestion: MemorySuggestion | None) -> dict[str, Any] | None:
    if suggestion is None:
        return None
    return asdict(suggestion) | {"text": sizing_policy.sentence(suggestion)}


def _with_tiers(stored: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each | {"tier": tier_of(each)} for each in stored]


def _headline(stored: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    reason = first(reasons(stored))
    if reason is None:
        return None
    return {"code": reason.code, "headline": reason.headline, "next_step": reason.next_step}


def _estimate(estimate: Estimate | None) -> dict[str, Any]:
    return {
        "position": estimate.position if estimate else None,
        "starts_p50": estimate.p50 if estimate else None,
        "starts_p90": estimate.p90 if estimate else None,
        "starts_after": estimate.after if estimate else None,
    }


def result(job: Job) -> dict[str, Any] | None:
    """Content of the job's result file; None = nothing."""
    if job.result is None:
        return None
    took = job.ended_at - job.started_at if job.ended_at and job.started_at else None
    return {"task_id": job.pk, "duration": took and took.total_seconds(), **job.result}


def _attempt(attempt: Attempt, sees_all: bool) -> dict[str, Any]:
    use = gpu_use(attempt)
    return values_of(ATTEMPT_ANSWERS, attempt, sees_all=sees_all) | {"gpu_use": use and asdict(use)}


def gpu_use(attempt: Attempt) -> GpuUse | None:
    """None: it has not been recorded, or the attempt had no GPU."""
    row = getattr(attempt, "use", None)
    return None if row is None else sizing.fact(row)


def efficiency(job: Job) -> str:
    """Request and use of its last attempt; "" when nothing is known."""
    attempt = running_attempt(job)
    use = gpu_use(attempt) if attempt else None
    return sizing_policy.efficiency(use, declared_memory(job)) if use else ""


def declared_memory(job: Job) -> int | None:
    return None if job.gpu_memory_is_learned else job.gpu_memory_bytes


def prediction_error(job: Job) -> timedelta | None:
    """How much later than first predicted it started; negative = earlier. None = unknown."""
    if job.started_at is None or job.first_predicted_start_at is None:
        return None
    return job.started_at - job.first_predicted_start_at


def prediction_sentence(job: Job) -> str:
    """How far the first prediction was off; "" where there was none."""
    off = prediction_error(job)
    if off is None:
        return ""
    seconds = round(off.total_seconds())
    if not seconds:
        return "It started when predicted."
    side = "later" if seconds > 0 else "earlier"
    p90 = job.first_predicted_p90_at
    late = p90 is not None and job.started_at is not None and job.started_at > p90
    more = " and after the time given for nine of ten cases" if late else ""
    return f"It started {duration(abs(seconds))} {side} than first predicted{more}."


# Jobs in words: one line each for the queue, the dashboard and the job's page.


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
    records = job_records(list(jobs))
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
