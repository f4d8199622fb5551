"""Step: the workers of a batch. Jobs of its owner load once, and answer its items one by one.

The batch's table is the queue. Each host gives its workers some items at hand, by files. The answer
to a try is stored once: only while its item is open, and at this try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from monitor.models import Gpu
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.batches import BatchState, ExclusiveStep, ItemState
from scheduler.facts.jobs import JobState, NewJob
from scheduler.facts.scripts import Script
from scheduler.models import Attempt, Batch, ExclusiveRun, Job
from scheduler.runner import accounts, clearing, worker_files
from scheduler.runner.worker_files import WorkerFiles
from scheduler.submission.batches import policy as policy
from scheduler.submission.batches.policy import MOST_WAITING, BatchPolicy
from scheduler.submission.batches.rows import batches as rows
from scheduler.submission.batches.rows import workers as worker_rows
from scheduler.submission.batches.rows.workers import Crew
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake import steps
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows as script_rows


@dataclass(frozen=True, slots=True)
class Publication:
    """A list of items, to be written after the commit."""

    files: WorkerFiles
    body: Mapping[str, Any]

    def write(self) -> None:
        self.files.publish(self.body)


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of a pass. made: jobs of workers."""

    made: int = 0
    publication: Publication | None = None


def advance(
    batch: Batch,
    run: ExclusiveRun | None,
    host: str,
    specs: SpecWriter,
    now: datetime,
    *,
    hands_out: bool,
) -> Advance:
    """One pass over a batch that the caller has locked. run: its exclusive mode."""
    before, crew = worker_rows.figures(batch), worker_rows.crew(batch)
    at_work, files = crew.at_work(host), _files(batch, crew, host, specs)
    items = worker_rows.open_items(batch, host) if files is not None else []
    answers = [(item, files.answer(item.index, item.attempt)) for item in items if files]
    changed = worker_rows.settle(batch, answers, crew, now)
    problem = worker_rows.follow(batch, crew, host)
    for left in worker_rows.without_workers(crew, host):
        changed += worker_rows.take_back(batch, left)
    worker_rows.align(batch, crew, reserved(batch, run))
    can_load = batch.failed_boots < policy.MOST_FAILED_BOOTS
    if not can_load and not worker_rows.have_started(batch):
        worker_rows.give_up(batch, problem or policy.NEVER_LOADED, now)
    pace = rows.open_pace(batch, MOST_WAITING)
    free = pace.queued + pace.waiting
    made = 0
    if hands_out and can_load:
        made = _make(batch, crew, run, free, free + pace.running, now)
    if not free:
        worker_rows.cancel_waiting(batch, now)
    feeds = batch.owner.is_active and (run is None or run.waits_for_batch is None)
    if feeds and at_work:
        wanted = policy.items_at_hand(len(at_work), pace.ended, pace.work_s)
        at_hand = sum(item.status == ItemState.ASSIGNED.value for item in items)
        changed += worker_rows.hand_out(batch, host, max(0, wanted - at_hand))
    if worker_rows.figures(batch) != before:
        worker_rows.save(batch)
    if not (free or pace.running or made):
        rows.finish(batch, now)
    if changed or made:
        wake("live")
    if files is None or not at_work:
        return Advance(made)
    body = _body(batch, at_work, host, feeds=feeds)
    leave = [attempt.job_id for attempt in at_work if _leaves(batch, run, crew, attempt, host, now)]
    return Advance(made, Publication(files, {**body, "leave": leave}))


def _files(batch: Batch, crew: Crew, host: str, specs: SpecWriter) -> WorkerFiles | None:
    """The files of its workers on this host; None: none has had any yet."""
    of_attempts = (specs.worker_files(batch.pk, attempt) for attempt in crew.on(host))
    return next((files for files in of_attempts if files is not None), None)


def _body(batch: Batch, at_work: Sequence[Attempt], host: str, *, feeds: bool) -> dict[str, Any]:
    items = worker_rows.open_items(batch, host)
    work = batch.work or {}
    return {
        "items": [[item.index, item.attempt, item.input] for item in items],
        "args": work.get("args", {}),
        "time_limit_s": work.get("time_limit_s"),
        "left": max(0, batch.total_items - batch.completed - batch.failed),
        "workers": [[attempt.job_id, attempt.number] for attempt in at_work],
        "is_over": not (feeds and rows.next_items(batch, 1)),
    }


def reserved(batch: Batch, run: ExclusiveRun | None) -> int | None:
    """The batch itself while its jobs may use GPUs of its exclusive mode."""
    return batch.pk if run is not None and not run.stopped_by else None


def _leaves(
    batch: Batch,
    run: ExclusiveRun | None,
    crew: Crew,
    attempt: Attempt,
    host: str,
    now: datetime,
) -> bool:
    """Whether a worker ends after its current item, and another may take its place."""
    job = crew.jobs[attempt.job_id]
    if job.exclusive_batch is not None:
        if run is None or run.stopped_by:
            return True
        is_working = run.step == ExclusiveStep.WORKING.value
        return is_working and not set(attempt.gpu_uuids) <= set(run.gpu_uuids)
    minutes = thresholds.current(BatchPolicy).worker_minutes
    is_over = bool(attempt.gpu_uuids) and policy.is_turn_over(attempt.started_at, now, minutes)
    return is_over and worker_rows.others_wait(batch, host)


def _make(
    batch: Batch, crew: Crew, run: ExclusiveRun | None, free: int, unfinished: int, now: datetime
) -> int:
    """Queue jobs of workers; returns their number."""
    have, room = len(batch.workers), intake.room_in_queue(batch.owner)
    most = places(batch, run, Gpu.objects.count())
    count = policy.workers_to_make(have, free, unfinished, most, room)
    if not count:
        return 0
    (item,) = batch.items.order_by("index").values_list("input", flat=True)[:1]
    try:
        new = worker_of(batch.request, item, script_rows.named(batch.script), now)
        job = for_all_items(new, batch, reserved(batch, run))
        fitted = _apart(intake.fitted_all([job] * count, batch.owner), crew, run, unfinished)
    except (UnableToSubmit, ValueError) as error:
        if not have:
            worker_rows.give_up(batch, str(error), now)
        return 0
    worker_rows.add(batch, fitted, now)
    if fitted:
        wake("scheduler")
    return len(fitted)


def _apart(
    new: Sequence[NewJob], crew: Crew, run: ExclusiveRun | None, unfinished: int
) -> list[NewJob]:
    """Workers that share GPUs with other jobs, each on a GPU of its own.

    The planner would put them on as few GPUs as possible. If there are fewer items than GPUs, that
    is left to it.
    """
    requirement = new[0].requirement
    if not requirement.shares or requirement.gpus > 1:
        return list(new)
    if requirement.gpu_uuid:
        return list(new[: 0 if crew.jobs else 1])
    suitable = [gpu.uuid for gpu in intake.suitable_gpus(requirement)]
    if own := _own_gpus(run):
        suitable = [uuid for uuid in suitable if uuid in own]
    if unfinished < len(suitable) or not suitable:
        return list(new)
    free = [uuid for uuid in suitable if uuid not in crew.gpus]
    return [
        replace(job, requirement=replace(requirement, gpu_uuid=uuid))
        for job, uuid in zip(new, free, strict=False)
    ]


def _own_gpus(run: ExclusiveRun | None) -> list[str]:
    """The GPUs that the batch has for itself now."""
    is_working = run is not None and run.step == ExclusiveStep.WORKING.value
    return list(run.gpu_uuids) if run is not None and is_working else []


def places(batch: Batch, run: ExclusiveRun | None, gpus: int) -> int:
    """The most workers that can run at a time. gpus: of all hosts."""
    each = int(batch.work["gpus"]) if batch.work else 1
    if each == 0:
        return policy.MOST_WITHOUT_GPU
    return max(1, (len(_own_gpus(run)) or gpus) // each)


def worker_of(request: Mapping[str, Any], item: str, script: Script, now: datetime) -> NewJob:
    """The job of a worker, as if it had this item only. Raises UnableToSubmit."""
    raw = {**request, "script_args": {**(request.get("script_args") or {})}}
    if script.item_argument:
        raw["script_args"][script.item_argument] = item
    (new,) = steps.checked_all([raw], now, replace(script, argv=script.worker))
    return new


def for_all_items(new: NewJob, batch: Batch, exclusive: int | None) -> NewJob:
    """The job of a worker of this batch. Limits and retries are those of each item."""
    return replace(
        new,
        name=batch.name,
        script_args=batch.work["args"] if batch.work else {},
        requirement=replace(new.requirement, batch=exclusive),
        worker_batch=batch.pk,
        estimate=None,
        time_limit=None,
        # Its items are not lost with it, so it may start again.
        yield_options=replace(new.yield_options, requeue=True, retries=0),
    )


def work_of(new: NewJob, script: Script) -> dict[str, Any]:
    """The part of a request that goes to workers. new: the job that an item would be."""
    args = {name: value for name, value in new.script_args.items() if name != script.item_argument}
    limit = new.time_limit
    return {
        "args": args,
        "time_limit_s": None if limit is None else limit.total_seconds(),
        "retries": new.yield_options.retries,
        "gpus": new.requirement.gpus,
    }


# The folders of ended batches, through which their workers got items, go.


def clear(data: Path, checkpoints: Path | None) -> list[int]:
    """Move aside the folders of batches that no worker uses; returns their numbers.

    They are deleted with the files of ended jobs.
    """
    roots = accounts.job_file_roots(data, checkpoints)
    existing = list(worker_files.batches_with_files(roots))
    used = _used({batch for _, batch in existing})
    unused = [(root, batch) for root, batch in existing if batch not in used]
    return [
        batch
        for root, batch in unused
        if clearing.move_aside(root, worker_files.folder_name(batch))
    ]


def _used(batches: set[int]) -> set[int]:
    """Those that run, or have a worker that has not ended."""
    running = Batch.objects.filter(pk__in=batches, state=BatchState.RUNNING.value)
    at_work = Job.objects.exclude(state=JobState.FINISHED.value).filter(worker_batch__in=batches)
    of_workers = at_work.values_list("worker_batch", flat=True)
    return {*running.values_list("pk", flat=True), *filter(None, of_workers)}
