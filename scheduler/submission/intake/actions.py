"""Submit jobs from the form or by REST: parse them, check them, put them into the queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.db.models import Min, QuerySet, Sum
from django.utils.crypto import salted_hmac

from monitor.facts.readings import GpuReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Agent
from scheduler.facts import job_fields
from scheduler.facts.field_types import JobField, ParseContext
from scheduler.facts.jobs import JobState, NewJob, Refusal, Requirement
from scheduler.facts.people import Quota
from scheduler.fair_share.rows import capacity
from scheduler.jobs import steps as sizing
from scheduler.jobs.rows import changes as job_changes
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy import quotas as agent_policy
from scheduler.models import Job, JobInput, SubmissionKey
from scheduler.queue.planner import admission
from scheduler.queue.planner import sizing as sizing_facts
from scheduler.queue.planner.sizing import MemorySuggestion
from scheduler.submission.intake import policy
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import (
    account_refusals,
    checked_all,
    gpu_named,
    group_refusals,
    impossible,
    single,
    together,
    with_left_out,
)

KEY_HEADER = "Idempotency-Key"
# Retention period: the same key gives the same answer.
KEPT = timedelta(days=1)
# Standard input of all jobs of a user that have not ended, in bytes.
MOST_INPUT_BYTES = 64 * 1024**2
# The limits of GPU-minutes are computed from these.
FIELDS_OF_MINUTES = frozenset(
    ("gpus", "gpu_memory", "gpu_share", "exclusive", "time_limit", "script", "script_args")
)


def submit(raw: Mapping[str, Any], owner: User, now: datetime) -> Job:
    """Put a job into the queue. Raises UnableToSubmit with all mistakes."""
    return admit(checked_for(raw, owner, now), owner, now)


@single()
def checked_for(
    raw: Mapping[str, Any], owner: User, now: datetime, agent: Agent | None = None
) -> NewJob:
    """Parse a job of this user. Raises UnableToSubmit with all mistakes, of the quota too."""
    return _checked_for([raw], owner, now, agent)[0]


def _checked_for(
    raws: Sequence[Mapping[str, Any]], owner: User, now: datetime, agent: Agent | None
) -> list[NewJob]:
    """The jobs as the agent may run them.

    Jobs without mistakes are checked against the quota when they are stored.
    """
    jobs, mistakes = _read_all(raws, now)
    if agent is not None:
        limits = quota_rows.agent_limits(agent)
        jobs = [agent_policy.bounded(job, limits) for job in jobs]
        of_agent = [
            refusal
            for index, job in enumerate(jobs)
            for refusal in agent_policy.agent_refusals(job, limits, index)
        ]
        mistakes = together(mistakes, _of_readable(of_agent, mistakes))
    if mistakes:
        of_owner = _refusals_of_owner(jobs, owner)
        raise UnableToSubmit(together(mistakes, _of_readable(of_owner, mistakes)), jobs)
    return list(jobs)


def _read_all(
    raws: Sequence[Mapping[str, Any]], now: datetime
) -> tuple[Sequence[NewJob], Sequence[Refusal]]:
    try:
        return checked_all(raws, now), ()
    except UnableToSubmit as error:
        if any(refusal.index is None for refusal in error.refusals):
            # The batch is refused as a whole; limits of its jobs say nothing of a smaller one.
            raise
        return error.readable, error.refusals


def _of_readable(further: Sequence[Refusal], mistakes: Sequence[Refusal]) -> list[Refusal]:
    """Without GPU-minutes that would be computed from a field that was refused."""
    unknown = {refusal.index for refusal in mistakes if refusal.field in FIELDS_OF_MINUTES}
    return [each for each in further if each.field != "time_limit" or each.index not in unknown]


@single()
def submit_once(
    raw: Mapping[str, Any], owner: User, now: datetime, key: str | None, agent: Agent | None = None
) -> tuple[int, bool]:
    """Submit one job like `submit_all`."""
    (number,), is_replayed = submit_all([raw], owner, now, key, agent)
    return number, is_replayed


def submit_all(
    raws: Sequence[Mapping[str, Any]],
    owner: User,
    now: datetime,
    key: str | None = None,
    agent: Agent | None = None,
) -> tuple[list[int], bool]:
    """Put all these jobs into the queue, or none of them, unless an earlier request had the key.

    agent: the owner's agent that submits them, within its limits.

    Returns the number of each job (of an array, its first), and whether an earlier request made
    them. Raises UnableToSubmit, also when the earlier request had another body.
    """
    if key is None:
        new = _checked_for(raws, owner, now, agent)
        return _numbers(_admit(new, owner, now)), False
    digest = request_digest(list(raws))
    if (earlier := _submitted_before(owner, key, digest, now)) is not None:
        return earlier, True

    def keep(jobs: Sequence[Job]) -> None:
        store_key(owner, key, digest, jobs, now)

    try:
        new = _checked_for(raws, owner, now, agent)
        return _numbers(_admit(new, owner, now, keep)), False
    except IntegrityError:
        # A request at the same time was first.
        if (earlier := _submitted_before(owner, key, digest, now)) is None:
            raise
        return earlier, True


def _numbers(jobs: Iterable[Job]) -> list[int]:
    return [job.pk for job in jobs]


def _submitted_before(owner: User, key: str, digest: str, now: datetime) -> list[int] | None:
    try:
        return jobs_of_key(owner, key, digest, now)
    except OtherBody:
        text = "This key was used with another body; use a new key for another job."
        raise UnableToSubmit([Refusal(field=KEY_HEADER, text=text)]) from None


@single()
def admit(new: NewJob, owner: User, now: datetime) -> Job:
    """Put a parsed job into the queue, if its owner's quota allows it."""
    return _admit([new], owner, now)[0]


def _admit(
    new: Sequence[NewJob],
    owner: User,
    now: datetime,
    on_stored: Callable[[list[Job]], None] | None = None,
) -> list[Job]:
    if account_refusals(owner) or group_refusals(new, owner):
        raise UnableToSubmit(_refusals_of_owner(new, owner))
    quota = quota_rows.of_person(owner)
    admitted = _fitted_all(with_left_out(new, owner), owner, quota)

    def check() -> None:
        if refusals := refuse_over_limits(admitted, owner, quota):
            raise UnableToSubmit(refusals)

    return job_changes.submit_all(admitted, owner, now, check, on_stored)


def change(jobs: QuerySet[Job], raw: Mapping[str, Any], person: User, now: datetime) -> int:
    """Change fields of waiting jobs; returns how many still waited.

    Raises UnableToSubmit for what a new job would be refused for. Operators may exceed the quota.
    """
    new = None
    for job in _unlike(jobs.filter(state=JobState.QUEUED.value)):
        new = _changed(job, raw, person, now)
    if new is None:
        return 0
    columns = job_fields.columns(new)
    changed = {f.column: columns[f.column] for f in job_fields.stored_fields() if f.name in raw}
    words = ", ".join(name.replace("_", " ") for name in raw)
    if host := changed.get("host"):
        # The user chose a host, whatever host has the checkpoint.
        changed["home"] = ""
        words += f" (its checkpoint stays on {job.home})" if job.home not in ("", host) else ""
    return job_changes.change(jobs, person.username, now, words, **changed)


def _unlike(jobs: QuerySet[Job]) -> Iterator[Job]:
    """One of all jobs with the same fields: elements of an array may have been changed alone."""
    columns = [field.column for field in _checked_in_changes()]
    first = jobs.order_by().values(*columns).annotate(first=Min("pk")).values("first")
    rows = Job.objects.filter(pk__in=first).select_related("owner", "agent")
    return rows.iterator(chunk_size=100)


def _changed(job: Job, raw: Mapping[str, Any], person: User, now: datetime) -> NewJob:
    """The job with these fields, also within the limits of its agent. Raises UnableToSubmit."""
    # The stored GPU may be away now.
    context = ParseContext(now, settings.TIME_ZONE, str)
    chosen = replace(context, find_gpu=gpu_named) if raw.get("on_gpu") else context
    old = _as_submitted(job)
    new = policy.read({**old, **raw}, chosen)
    if job.agent is not None:
        new = agent_policy.bounded(new, quota_rows.agent_limits(job.agent))
    present = _refusals_of_change(policy.read(old, context), job, person)
    caused = [each for each in _refusals_of_change(new, job, person) if each not in present]
    if caused:
        raise UnableToSubmit([replace(each, index=None) for each in caused])
    return new


def _as_submitted(job: Job) -> dict[str, Any]:
    """The fields that a change is checked with, as a request has them."""
    values = {
        field.name: field.type.to_text(getattr(job, field.column))
        for field in _checked_in_changes()
    }
    return {"command": job.command} | values


def _checked_in_changes() -> list[JobField]:
    fields = job_fields.stored_fields()
    return [f for f in fields if f.is_resource or f.name in job_fields.OWNERS_CHANGE]


def _refusals_of_change(new: NewJob, job: Job, person: User) -> list[Refusal]:
    if person.is_staff:
        return list(impossible([new]))
    own = refuse_change(new, job.owner)
    if job.agent is not None:
        own += agent_policy.agent_refusals(new, quota_rows.agent_limits(job.agent))
    return [*impossible([new]), *own]


def refuse_over_limits(jobs: Sequence[NewJob], owner: User, quota: Quota) -> list[Refusal]:
    """All refusals of jobs that are submitted together, each with the index of its job.

    Call in the transaction that puts the jobs into the queue.
    """
    if quota.queued is not None:
        # Lock the user: of two concurrent submissions, the second counts the first.
        User.objects.select_for_update().get(pk=owner.pk)
    return [*_limit_refusals(jobs, owner, quota), *_input_refusals(jobs, owner)]


def refusals(new: NewJob, owner: User) -> list[Refusal]:
    """The refusals that a submission would get, without a lock on the user's row."""
    return [replace(each, index=None) for each in _refusals_of_owner([new], owner)]


def _refusals_of_owner(jobs: Sequence[NewJob], owner: User) -> list[Refusal]:
    """The refusals for the account, the quota and the standard input, each with its job's index."""
    quota = quota_rows.of_person(owner)
    limits = _limit_refusals([_within_quota(new, quota) for new in jobs], owner, quota)
    of_account = account_refusals(owner) or group_refusals(jobs, owner)
    return [*of_account, *limits, *_input_refusals(jobs, owner)]


def refuse_change(changed: NewJob, owner: User) -> list[Refusal]:
    """The refusals of a job that waits already."""
    quota = quota_rows.of_person(owner)
    return admission.refusals(changed, quota, None, _gpu_bytes(quota))


def fitted(new: NewJob, owner: User) -> NewJob:
    """The job with the default priority and GPU share of its owner's quota.

    If it declares no GPU memory, it gets what earlier runs of its command needed.
    """
    return _fitted_all([new], owner, quota_rows.of_person(owner))[0]


def fitted_all(jobs: Sequence[NewJob], owner: User) -> list[NewJob]:
    """`fitted` for jobs that are much alike, of a request that was accepted earlier.

    They have at most the priority and GPU share that the quota allows now.
    """
    quota = quota_rows.of_person(owner)
    return _fitted_all([_lowered(new, quota) for new in jobs], owner, quota)


def room_in_queue(owner: User) -> int | None:
    """How many more waiting jobs the owner may have; None = no limit."""
    quota = quota_rows.of_person(owner)
    return None if quota.queued is None else max(0, quota.queued - _waiting(owner))


def _fitted_all(jobs: Sequence[NewJob], owner: User, quota: Quota) -> list[NewJob]:
    within_quota = [_within_quota(new, quota) for new in jobs]
    # Jobs of a batch often differ in numbers only.
    learned: dict[tuple[str, Requirement], NewJob] = {}
    reasons = []
    for new in within_quota:
        key = (sizing_facts.fingerprint(owner.pk, new.executed), new.requirement)
        if key not in learned:
            learned[key] = sizing.sized(new, owner, suitable_gpus)
        like = learned[key]
        reasons.append(
            replace(new, requirement=like.requirement, memory_is_learned=like.memory_is_learned)
        )
    return reasons


def _within_quota(new: NewJob, quota: Quota) -> NewJob:
    if not new.priority_chosen and quota.priority is not None:
        new = replace(new, priority=min(new.priority, quota.priority))
    requirement = new.requirement
    if requirement.shares and requirement.share_pct is None and quota.gpu_share_pct is not None:
        new = replace(new, requirement=replace(requirement, share_pct=quota.gpu_share_pct))
    return new


def _lowered(new: NewJob, quota: Quota) -> NewJob:
    if quota.priority is not None:
        new = replace(new, priority=min(new.priority, quota.priority))
    share, most = new.requirement.share_pct, quota.gpu_share_pct
    if share is not None and most is not None and share > most:
        new = replace(new, requirement=replace(new.requirement, share_pct=most))
    return new


def memory_suggestion(new: NewJob, owner: User) -> MemorySuggestion | None:
    """The GPU memory that earlier runs of this command needed; None = too few are known."""
    return sizing.suggestion(new, owner, suitable_gpus)


def suitable_gpus(requirement: Requirement) -> list[GpuReading]:
    """The GPUs of all hosts that could take the request."""
    return [
        gpu
        for host in snapshots.newest_all()
        for gpu in admission.suitable(requirement, host.gpus, settings.CONFIG.gpu_power)
    ]


def _limit_refusals(jobs: Sequence[NewJob], owner: User, quota: Quota) -> list[Refusal]:
    waiting = _waiting(owner) if quota.queued is not None else 0
    gpu_bytes, reasons = _gpu_bytes(quota), list[Refusal]()
    for index, new in enumerate(jobs):
        refused = admission.refusals(new, quota, waiting, gpu_bytes)
        reasons += [replace(refusal, index=index) for refusal in refused]
        if any(refusal.field == admission.QUEUE for refusal in refused):
            # The jobs behind it have no place either.
            break
        waiting += new.size
    return reasons


def _gpu_bytes(quota: Quota) -> int | None:
    """The memory of a whole GPU, if the quota counts sizes."""
    sizes_count = quota.memory_bytes is not None or quota.gpu_minutes is not None
    return capacity().gpu_bytes if sizes_count else None


def _waiting(owner: User) -> int:
    return Job.objects.filter(owner=owner, state=JobState.QUEUED.value).count()


def _input_refusals(jobs: Sequence[NewJob], owner: User) -> list[Refusal]:
    """Refuse input that exceeds the limit together with the owner's other jobs."""
    new = sum(job.input_size for job in jobs)
    if not new:
        return []
    total = JobInput.objects.filter(job__owner=owner).aggregate(total=Sum("size"))["total"] or 0
    if total + new <= MOST_INPUT_BYTES:
        return []
    text = (
        f"Your jobs have {total / 1024**2:.1f} MiB of standard input that are kept until they end;"
        f" at most {MOST_INPUT_BYTES // 1024**2} MiB are possible. Wait until some have ended,"
        " or let jobs read files."
    )
    return [Refusal(field=admission.QUEUE, text=text)]


class OtherBody(Exception):
    """The key was used with another body."""


def request_digest(raw: Any) -> str:
    """A keyed hash of the body, because its variables can be secrets."""
    text = json.dumps(raw, sort_keys=True)
    return salted_hmac("scheduler.submission.intake.rows", text, algorithm="sha256").hexdigest()


def jobs_of_key(user: User, key: str, body_digest: str, now: datetime) -> list[int] | None:
    """The jobs of the first request with this key: one, or those of its batch. Raises OtherBody."""
    row = SubmissionKey.objects.filter(user=user, key=key, created_at__gt=now - KEPT).first()
    if row is None:
        return None
    if row.digest != body_digest or row.job_id is None:
        raise OtherBody
    return [row.job_id] if row.batch is None else list(row.batch)


def forget_old_keys(now: datetime) -> None:
    SubmissionKey.objects.filter(created_at__lte=now - KEPT).delete()


def store_key(user: User, key: str, body_digest: str, jobs: Sequence[Job], now: datetime) -> None:
    """Call in the transaction that stores the jobs; also removes expired keys of all users.

    Raises IntegrityError when another request with this key was first.
    """
    forget_old_keys(now)
    batch = [job.pk for job in jobs] if len(jobs) > 1 else None
    SubmissionKey.objects.create(
        user=user, key=key, digest=body_digest, job=jobs[0], batch=batch, created_at=now
    )
