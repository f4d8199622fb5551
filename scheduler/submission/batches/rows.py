"""Rows of batches: create, cancel, retry, and follow the jobs of their items."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, count, islice
from math import floor
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Exists, F, Max, Model, OuterRef, Q, QuerySet, Sum

from monitor.journal.rows import events
from monitor.runtime.rows.database import MARK, PreparedQuery
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts.jobs import JobState, Outcome, QueuedJob
from scheduler.facts.scripts import (
    LARGEST_ITEM_RESULT,
    MOST_ITEMS_A_DAY,
    MOST_OPEN_BATCHES,
    OPEN_ITEMS,
    RESERVING,
    Approval,
    BatchState,
    BatchWork,
    ExclusiveStep,
    ItemState,
)
from scheduler.fair_share.rows import Rights
from scheduler.jobs.policy import RetentionPolicy
from scheduler.jobs.rows import changes
from scheduler.jobs.rows.changes import synced
from scheduler.limits.quotas import rows as quota_rows
from scheduler.models import (
    Attempt,
    Batch,
    BatchItem,
    ExclusiveRun,
    Job,
    ModelInstance,
    ModelService,
)
from scheduler.submission.batches import policy
from scheduler.submission.batches.policy import Pace

# Rows of the exclusive mode: which batch has which GPUs, and the step that it has reached.
#
# Each change of a step is one transaction. The next pass reads everything from these rows, so
# that a process may be killed at any step.


# Shares are fractions that add up to 1 only nearly.
ROUNDING = 1e-6
_RESERVING = tuple(step.value for step in RESERVING)
TEXTS: Mapping[ExclusiveStep, str] = {
    ExclusiveStep.ANNOUNCED: "takes {gpus} in exclusive mode",
    ExclusiveStep.DRAINING: "waits for running prompts; new prompts queue",
    ExclusiveStep.UNLOADING: "has the models on its GPUs unloaded",
    ExclusiveStep.WORKING: "has {gpus} for itself",
    ExclusiveStep.RELOADING: "has the models loaded again, one after another",
    ExclusiveStep.ENDED: "has left the exclusive mode; prompts resume",
}


WAITS_FOR_APPROVAL = "the approval of an operator"


def needs_no_approval(owner: User) -> bool:
    """Whether a batch of this user may take any number of GPUs within the quota."""
    return owner.is_staff or quota_rows.of_person(owner).exclusive_batches


def gpus_by_share(owner: str, rights: Rights) -> int:
    """The number of GPUs that the fair share of a user is worth now, without fractions."""
    gpus = len(rights.snapshot.capacity.gpu_uuids)
    return floor(rights.fair_share(owner) * gpus + ROUNDING)


def begin(
    batch: Batch, chosen: Sequence[str], now: datetime, approval: Approval = Approval.NONE
) -> ExclusiveRun:
    """Let a batch wait for its GPUs. The caller opens the transaction."""
    is_asked = approval is Approval.ASKED
    if is_asked:
        text = f"{batch.owner.username} asks for the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
    return ExclusiveRun.objects.create(
        batch=batch,
        since=now,
        chosen=list(chosen),
        approval=approval.value,
        waits_for=WAITS_FOR_APPROVAL if is_asked else "",
    )


def pending(person: User) -> QuerySet[ExclusiveRun]:
    """Requests for exclusive mode that wait for an operator: all for operators, else one's own."""
    rows = ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value)
    rows = rows.filter(approval=Approval.ASKED.value, stopped_by="").order_by("batch_id")
    rows = rows.select_related("batch__owner")
    return rows if person.is_staff else rows.filter(batch__owner=person)


def approve(batch: Batch, by: str, now: datetime) -> bool:
    """Let a batch take the GPUs that it asks for. False: it does not ask, or not any more."""
    with transaction.atomic():
        rows = ExclusiveRun.objects.filter(pk=batch.pk, approval=Approval.ASKED.value)
        rows = rows.filter(stopped_by="").exclude(step=ExclusiveStep.ENDED.value)
        if not rows.update(approval=Approval.APPROVED.value, approved_by=by, waits_for=""):
            return False
        text = f"{by} approved the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
        wake("scheduler")
        wake("live")
    return True


def open_runs(host: str) -> list[ExclusiveRun]:
    """Runs of this host, or of none yet, in the order of their batches."""
    rows = ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value)
    return list(rows.filter(host__in=("", host)).order_by("batch_id"))


def locked_run(run: ExclusiveRun, host: str) -> ExclusiveRun | None:
    """The run for this transaction alone; None: it is over, or another host has it."""
    rows = ExclusiveRun.objects.select_for_update(of=("self",)).select_related("batch__owner")
    rows = rows.exclude(step=ExclusiveStep.ENDED.value)
    return rows.filter(pk=run.pk, host__in=("", host)).first()


def active(host: str) -> int | None:
    """The batch that has GPUs of this host for itself."""
    rows = ExclusiveRun.objects.filter(host=host, step__in=_RESERVING)
    return rows.order_by("batch_id").values_list("batch_id", flat=True).first()


def own_jobs(batch_id: int) -> set[int]:
    """The open jobs of the batch's items, and of its workers."""
    rows = Job.objects.filter(batch_items__batch=batch_id, batch_items__status__in=OPEN_ITEMS)
    workers = Batch.objects.values_list("workers", flat=True).get(pk=batch_id)
    return {*rows.values_list("pk", flat=True), *map(int, workers)}


def idle_jobs() -> set[int]:
    """Open jobs of idle work: they leave their GPU for items."""
    rows = Job.objects.exclude(state=JobState.FINISHED.value).exclude(idle_template="")
    return set(rows.values_list("pk", flat=True))


def move(run: ExclusiveRun, step: ExclusiveStep, now: datetime, **columns: Any) -> None:
    """Begin the next step. The caller has locked the run."""
    run.step, run.since, run.waits_for, run.waits_for_batch = step.value, now, "", None
    run.log = [*run.log, [step.value, now.isoformat()]]
    for name, value in columns.items():
        setattr(run, name, value)
    run.save()
    count = len(run.gpu_uuids)
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    text = f"Batch {run.batch.pk} {run.batch.name} {TEXTS[step].format(gpus=gpus)}"
    owner = run.batch.owner.username
    events.add("BATCH_EXCLUSIVE", text, now=now, host=run.host, owner=owner)
    wake("scheduler")
    wake("live")


def note_wait(run: ExclusiveRun, text: str, batch: int | None) -> None:
    """Store what a run waits for, if that is news."""
    if (run.waits_for, run.waits_for_batch) != (text, batch):
        run.waits_for, run.waits_for_batch = text, batch
        run.save(update_fields=["waits_for", "waits_for_batch"])
        wake("live")


def close_models(run: ExclusiveRun, instances: Sequence[ModelInstance]) -> list[dict[str, Any]]:
    """Send these instances no new requests, and boot no others of their services.

    Returns what is to be loaded again after the batch, in this order.
    """
    ModelInstance.objects.filter(pk__in=[row.pk for row in instances]).update(is_closed=True)
    services = {row.service_id for row in instances}
    ModelService.objects.filter(pk__in=services).update(held_for_batch=run.pk)
    wake("prompts")
    return [{"service": row.service_id, "gpus": list(row.gpu_uuids)} for row in instances]


def open_models(run: ExclusiveRun) -> None:
    """Let models that have not left serve again, and let their services boot."""
    ModelInstance.objects.filter(
        is_closed=True, host=run.host, service__held_for_batch=run.pk
    ).update(is_closed=False)
    ModelService.objects.filter(held_for_batch=run.pk).update(held_for_batch=None)
    wake("prompts")


def stop(batch: Batch, by: str, now: datetime) -> bool:
    """End the exclusive mode of a batch, which goes on sharing GPUs. False: it was not in it."""
    with transaction.atomic():
        run = ExclusiveRun.objects.select_for_update().filter(pk=batch.pk, stopped_by="")
        if not run.exclude(step=ExclusiveStep.ENDED.value).update(stopped_by=by):
            return False
        Batch.objects.filter(pk=batch.pk).update(gpu_mode="shared")
        waiting = Job.objects.filter(exclusive_batch=batch.pk, state=JobState.QUEUED.value)
        waiting.filter(model_service=None).update(exclusive_batch=None)
        text = f"{by} ended the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
        wake("scheduler")
        wake("live")
    return True


def is_over(run: ExclusiveRun) -> bool:
    """Whether the batch needs no GPU any more."""
    return run.batch.state != BatchState.RUNNING.value


LONGEST_ERROR = 1000
CHUNK = 1000
# Jobs of forecasts that stand for all queued items. More would only make forecasts slow.
MOST_COMING = 200
# Their numbers, above those of all jobs.
FIRST_COMING = 2**61
GONE = "The record of its job was removed."


def create(
    owner: User,
    name: str,
    request: Mapping[str, Any],
    items: Sequence[str],
    now: datetime,
    chosen_gpus: Sequence[str] | None = None,
    work: Mapping[str, Any] | None = None,
    approval: Approval = Approval.NONE,
) -> Batch:
    """Store a batch with all its items, or nothing. Durable on return.

    chosen_gpus: it takes GPUs for itself, of these only, [] = of all; None: it shares GPUs.
    approval: why it may.
    work: what its workers get with each item; None: its items become jobs.
    """
    with synced(), transaction.atomic():
        batch = Batch.objects.create(
            owner=owner,
            name=name,
            script=request.get("script") or "",
            request=dict(request),
            work=None if work is None else dict(work),
            total_items=len(items),
            gpu_mode="shared" if chosen_gpus is None else "exclusive",
            created_at=now,
        )
        if chosen_gpus is not None:
            begin(batch, chosen_gpus, now, approval)
        BatchItem.objects.bulk_create(
            (BatchItem(batch=batch, index=n, input=item) for n, item in enumerate(items)),
            batch_size=CHUNK,
        )
        text = f"{owner.username} submitted {batch} of {len(items)} items"
        events.add("BATCH_SUBMITTED", text, now=now, owner=owner.username)
        _wake_all()
    return batch


def open_batches() -> list[tuple[Batch, BatchWork]]:
    """The batches that have not ended, in two statements however many there are."""
    listed = _OPEN.rows()
    if not listed:
        return []
    open_items = BatchItem.objects.filter(
        batch__state=BatchState.RUNNING.value, status__in=OPEN_ITEMS
    )
    groups = open_items.order_by().values_list("batch_id", "status", "job__state")
    counts_: dict[int, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for batch, status, job, items in groups.annotate(Count("id")):
        counts_[batch][status, job] = items
    return [(batch, _work(counts_[batch.pk], has_queued=batch.has_queued)) for batch in listed]


def _open(_: int) -> QuerySet[Any]:
    queued = BatchItem.objects.filter(batch=OuterRef("pk"), status=ItemState.QUEUED.value)
    rows = Batch.objects.filter(state=BatchState.RUNNING.value)
    rows = rows.select_related("exclusive_run", "owner")
    return rows.annotate(has_queued=Exists(queued)).order_by("id")


# Compiled once, because it is read each second.
_OPEN: PreparedQuery[int, Any] = PreparedQuery(_open, MARK)


def _work(items: Counter[tuple[str, str | None]], *, has_queued: bool) -> BatchWork:
    waiting = sum(count for (status, _), count in items.items() if status == ItemState.ASSIGNED)
    return BatchWork(
        waiting=waiting,
        running=items.total() - waiting,
        has_changed=any(_status_of(job) != status for status, job in items),
        has_queued=has_queued,
    )


def _status_of(job_state: str | None) -> str:
    """The status of an item whose job has not ended; "" = its job has, or is gone."""
    if job_state in (None, JobState.FINISHED.value):
        return ""
    waits = job_state in (JobState.QUEUED.value, JobState.STARTING.value)
    return (ItemState.ASSIGNED if waits else ItemState.RUNNING).value


def problems_of_owner(owner: User, items: int, now: datetime) -> list[str]:
    """Why this user may not submit a batch of so many items now."""
    own = Batch.objects.filter(owner=owner)
    problems = []
    if own.filter(state=BatchState.RUNNING.value).count() >= MOST_OPEN_BATCHES:
        problems.append(f"You have {MOST_OPEN_BATCHES} batches that have not ended; wait for one.")
    day = own.filter(created_at__gt=now - timedelta(days=1)).aggregate(sum=Sum("total_items"))
    if items + (day["sum"] or 0) > MOST_ITEMS_A_DAY:
        problems.append(f"A user submits at most {MOST_ITEMS_A_DAY} items in 24 hours.")
    return problems


def locked(batch: Batch) -> Batch | None:
    """The batch for this transaction alone; None: it is over. Hosts hand out items in turn."""
    rows = Batch.objects.select_for_update(of=("self",))
    rows = rows.select_related("exclusive_run", "owner")
    return rows.filter(pk=batch.pk, state=BatchState.RUNNING.value).first()


def settle(batch: Batch, now: datetime) -> int:
    """Update items from the states of their jobs; returns how many changed."""
    items = list(batch.items.filter(status__in=OPEN_ITEMS).select_related("job"))
    gpus = _gpus([item.job_id for item in items if item.job_id])
    changed = [item for item in items if _follow(item, gpus.get(item.job_id or 0, ""))]
    BatchItem.objects.bulk_update(
        changed, ["status", "gpu_uuid", "result", "error"], batch_size=CHUNK
    )
    ended = [item for item in changed if item.status not in OPEN_ITEMS]
    completed = sum(item.status == ItemState.COMPLETE for item in ended)
    count_ended(
        batch,
        completed=completed,
        failed=len(ended) - completed,
        work_s=sum(_took(item.job) for item in ended),
        has_begun=any(item.status != ItemState.ASSIGNED for item in changed),
        now=now,
    )
    if changed:
        batch.save(update_fields=["completed", "failed", "work_s", "started_at"])
    return len(changed)


def count_ended(
    batch: Batch,
    *,
    now: datetime,
    completed: int = 0,
    failed: int = 0,
    work_s: float = 0.0,
    has_begun: bool = False,
) -> None:
    """Count items that have ended, and report the start of a batch and each tenth of it.

    The caller saves the row. has_begun: one of its items has.
    """
    owner = batch.owner.username
    if has_begun and batch.started_at is None:
        batch.started_at = now
        events.add("BATCH_STARTED", f"Batch {batch.pk} {batch.name} started", now=now, owner=owner)
    before = policy.tenth(batch.completed + batch.failed, batch.total_items)
    batch.completed += completed
    batch.failed += failed
    batch.work_s += work_s
    ended = batch.completed + batch.failed
    if before < policy.tenth(ended, batch.total_items) < 10:
        failures = f", {batch.failed} failed" if batch.failed else ""
        text = f"{ended} of {batch.total_items} items of {batch} have ended{failures}"
        events.add("BATCH_PROGRESS", text, now=now, owner=owner)


def _gpus(jobs: list[int]) -> dict[int, str]:
    rows = Attempt.objects.filter(job__in=jobs).order_by("number")
    return {job: uuids[0] for job, uuids in rows.values_list("job_id", "gpu_uuids") if uuids}


def _follow(item: BatchItem, gpu_uuid: str) -> bool:
    """Whether the item has changed with its job."""
    before, job = item.status, item.job
    if job is None:
        item.status, item.error = ItemState.FAILED.value, GONE
    elif status := _status_of(job.state):
        item.status = status
    elif job.outcome == Outcome.SUCCEEDED.value:
        item.status = ItemState.COMPLETE.value
        item.result = _result(job)
    else:
        item.status, item.error = ItemState.FAILED.value, _why(job)
    item.gpu_uuid = gpu_uuid
    return item.status != before


def _result(job: Job) -> Any:
    """The part of a result that a page of items can show; the job has a larger one."""
    output = (job.result or {}).get("output")
    if len(json.dumps(output)) <= LARGEST_ITEM_RESULT:
        return output
    return {"problem": f"The result is larger than {LARGEST_ITEM_RESULT} bytes; see the job."}


def _why(job: Job) -> str:
    if job.problem:
        return job.problem[:LONGEST_ERROR]
    words = job.outcome.replace("_", " ")
    return f"{words}: exit code {job.exit_code}" if job.exit_code is not None else words


def _took(job: Job | None) -> float:
    if job is None or job.started_at is None or job.ended_at is None:
        return 0.0
    return max(0.0, (job.ended_at - job.started_at).total_seconds())


def counts(batch: Batch) -> dict[str, int]:
    """Number of items by status; statuses without items are 0."""
    rows = batch.items.order_by().values_list("status").annotate(Count("id"))
    return dict.fromkeys((s.value for s in ItemState), 0) | dict(rows)


def open_pace(batch: Batch, most_queued: int) -> Pace:
    """The pace of a batch in a pass; it counts no more queued items than matter."""
    open_items = batch.items.filter(status__in=OPEN_ITEMS).order_by()
    by_status = dict(open_items.values_list("status").annotate(Count("id")))
    queued = batch.items.filter(status=ItemState.QUEUED.value).order_by()[:most_queued].count()
    return pace(batch, {ItemState.QUEUED.value: queued} | by_status)


def running_pace(batch: Batch) -> Pace:
    """The pace of a batch, by its own figures: its queued items are not counted one by one."""
    open_items = batch.items.filter(status__in=OPEN_ITEMS).order_by()
    by_status = dict(open_items.values_list("status").annotate(Count("id")))
    ended = batch.completed + batch.failed
    queued = max(0, batch.total_items - ended - sum(by_status.values()))
    if batch.state != BatchState.RUNNING.value:
        queued = 0
    return pace(batch, {ItemState.QUEUED.value: queued} | by_status)


def forecast_jobs(queue: Iterable[QueuedJob]) -> tuple[list[QueuedJob], tuple[QueuedJob, ...]]:
    """The queue, where a worker of a batch runs as long as its items, and the coming jobs."""
    jobs = {job.id: job for job in queue}
    working = Batch.objects.filter(state=BatchState.RUNNING.value, work__isnull=False)
    for batch in working if jobs else ():
        left, each = batch.total_items - batch.completed - batch.failed, _each(batch)
        waiting = jobs.keys() & map(int, batch.workers)
        if waiting and each is not None:
            run_time = policy.worker_run_time(left, len(batch.workers), each)
            jobs |= {job: replace(jobs[job], expected=run_time) for job in waiting}
    return list(jobs.values()), coming_jobs(jobs.values())


def _each(batch: Batch) -> timedelta | None:
    """How long an item takes: the mean of those that ended, else the estimate; None: unknown."""
    ended, estimate_s = batch.completed + batch.failed, (batch.work or {}).get("estimate_s")
    each_s = batch.work_s / ended if ended else estimate_s
    return timedelta(seconds=each_s) if each_s else None


def coming_jobs(queue: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    """The jobs that running batches will make of their queued items, at most MOST_COMING.

    Those of workers are made at once. A batch without a job in the queue makes none now.
    """
    batches = Batch.objects.filter(state=BatchState.RUNNING.value, work__isnull=True)
    items = BatchItem.objects.filter(batch__in=batches, status__in=OPEN_ITEMS).order_by()
    columns = ("batch__total_items", "batch__completed", "batch__failed")
    newest = Max("job", filter=Q(status=ItemState.ASSIGNED.value))
    grouped = items.values_list("batch", *columns).annotate(made=Count("id"), newest=newest)
    rows = list(grouped.order_by("batch"))
    by_id = {job.id: job for job in queue} if rows else {}
    waiting = [
        (by_id[like], total - completed - failed - made)
        for _, total, completed, failed, made, like in rows
        if like in by_id and total > completed + failed + made
    ]
    numbers = count(FIRST_COMING)
    each = max(1, MOST_COMING // max(1, len(waiting)))
    coming = (policy.coming(like, left, each, numbers) for like, left in waiting)
    return tuple(islice(chain.from_iterable(coming), MOST_COMING))


def queued_items() -> int:
    """Items of all running batches that have no job yet."""
    running = Batch.objects.filter(state=BatchState.RUNNING.value)
    left = running.aggregate(sum=Sum(F("total_items") - F("completed") - F("failed")))["sum"] or 0
    open_items = BatchItem.objects.filter(
        batch__state=BatchState.RUNNING.value, status__in=OPEN_ITEMS
    )
    return max(0, left - open_items.count())


def pace(batch: Batch, by_status: Mapping[str, int]) -> Pace:
    return Pace(
        queued=by_status.get(ItemState.QUEUED.value, 0),
        waiting=by_status.get(ItemState.ASSIGNED.value, 0),
        running=by_status.get(ItemState.RUNNING.value, 0),
        ended=batch.completed + batch.failed,
        work_s=batch.work_s,
    )


def next_items(batch: Batch, most: int) -> list[BatchItem]:
    """The queued items with the lowest indices."""
    rows = batch.items.filter(status=ItemState.QUEUED.value).order_by("index")
    return list(rows[:most])


def assign(items: Sequence[BatchItem], jobs: Sequence[Job]) -> None:
    """Store that these jobs run these items."""
    for item, job in zip(items, jobs, strict=True):
        item.job, item.status, item.error = job, ItemState.ASSIGNED.value, ""
        item.attempt += 1
    BatchItem.objects.bulk_update(items, ["job", "status", "error", "attempt"])


def refuse(batch: Batch, items: Iterable[BatchItem], error: str, now: datetime) -> None:
    """Mark items as failed that can't become jobs."""
    numbers = [item.pk for item in items]
    BatchItem.objects.filter(pk__in=numbers).update(
        status=ItemState.FAILED.value, error=error[:LONGEST_ERROR]
    )
    count_ended(batch, failed=len(numbers), now=now)
    batch.save(update_fields=["failed"])


def finish(batch: Batch, now: datetime) -> None:
    """End a batch without queued or open items."""
    batch.state = (BatchState.FAILED if batch.failed else BatchState.COMPLETE).value
    batch.ended_at = now
    if not batch.failed:
        forget_request(batch)
    batch.save(update_fields=["state", "ended_at", "request", "work"])
    done = f"{batch.completed} of {batch.total_items} items succeeded"
    text = f"Batch {batch.pk} {batch.name} ended: {done}"
    severity = "warning" if batch.failed else "info"
    events.add("BATCH_ENDED", text, now=now, severity=severity, owner=batch.owner.username)


def forget_request(batch: Batch) -> None:
    """Empty what may contain secrets, as no item can run any more."""
    batch.request = {}
    batch.work = None if batch.work is None else {}


def cancel(batch: Batch, by: str, now: datetime) -> int:
    """Cancel all items that have not ended, in one statement; returns their number."""
    with synced(), transaction.atomic():
        row = locked(batch)
        if row is None:
            return 0
        row.state, row.ended_at, row.cancelled_by = BatchState.CANCELLED.value, now, by
        forget_request(row)
        row.save(update_fields=["state", "ended_at", "cancelled_by", "request", "work"])
        open_jobs = Job.objects.filter(batch_items__batch=batch, batch_items__status__in=OPEN_ITEMS)
        numbers = {*open_jobs.values_list("pk", flat=True), *map(int, row.workers)}
        waiting = (*OPEN_ITEMS, ItemState.QUEUED.value)
        cancelled = batch.items.filter(status__in=waiting).update(status=ItemState.CANCELLED.value)
        events.add("BATCH_ENDED", f"{by} cancelled {batch}", now=now, owner=batch.owner.username)
        changes.cancel(Job.objects.filter(pk__in=numbers), by, now)
    return cancelled


def retry_failed(batch: Batch) -> int:
    """Queue the failed items of a batch again; returns how many. A cancelled batch has none."""
    with synced(), transaction.atomic():
        row = Batch.objects.select_for_update().get(pk=batch.pk)
        if row.state == BatchState.CANCELLED.value:
            return 0
        again = row.items.filter(status=ItemState.FAILED.value).update(
            status=ItemState.QUEUED.value, error="", job=None, failures=0
        )
        if again:
            row.state, row.ended_at = BatchState.RUNNING.value, None
            row.failed, row.failed_boots = max(0, row.failed - again), 0
            row.save(update_fields=["state", "ended_at", "failed", "failed_boots"])
            _wake_all()
    return again


def expired(_keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """Batches that ended before the records of jobs are kept."""
    keep = timedelta(days=thresholds.current(RetentionPolicy).record_days)
    over = ~Q(state=BatchState.RUNNING.value)
    yield Batch.objects.filter(over, ended_at__lt=now - keep)


def _wake_all() -> None:
    wake("scheduler")
    wake("live")
