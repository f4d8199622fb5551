"""Step: hand out items of batches as jobs or to workers, and store how they end.

Step: the workers of a batch. Jobs of its owner load once, and answer its items one by one.

The batch's table is the queue. Each host gives its workers some items at hand, by files. The answer
to a try is stored once: only while its item is open, and at this try.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from monitor.facts.input_rules import is_storable
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit
from monitor.models import Claim, Gpu
from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import JobState, NewJob, Outcome, read_result
from scheduler.facts.scripts import (
    LARGEST_ITEM_RESULT,
    OPEN_ITEMS,
    Answer,
    BatchState,
    BatchWork,
    ExclusiveStep,
    ItemState,
    Script,
    WorkerState,
)
from scheduler.jobs.rows import changes
from scheduler.models import Attempt, Batch, BatchItem, ExclusiveRun, Job
from scheduler.runner import accounts, clearing
from scheduler.runner.clearing import WorkerFiles
from scheduler.submission.batches import policy, rows
from scheduler.submission.batches.policy import MOST_WAITING, BatchPolicy
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake import steps
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked_all
from scheduler.submission.scripts import rows as script_rows

# Rows of batches whose items are answered by workers: items at hand, answers, and the jobs.


TOO_LARGE = f"The result is larger than {LARGEST_ITEM_RESULT} bytes; let the worker write a file."
FINISHED = JobState.FINISHED.value
UNSTORABLE = "Its error has characters that can't be stored."
_S = WorkerState


class Crew(Struct, frozen=True):
    """The jobs of the workers that had not ended at the last pass, and all attempts of them."""

    jobs: Mapping[int, Job]
    attempts: Mapping[tuple[int, int], Attempt]

    def newest(self, job: int) -> Attempt | None:
        return max(
            (attempt for (of, _), attempt in self.attempts.items() if of == job),
            key=lambda attempt: attempt.number,
            default=None,
        )

    @property
    def gpus(self) -> set[str]:
        """The GPUs that they have, or wait for."""
        at_work = (attempt for attempt in self.attempts.values() if attempt.ended_at is None)
        taken = {uuid for attempt in at_work for uuid in attempt.gpu_uuids}
        return taken | {job.gpu_uuid for job in self.jobs.values() if job.state != FINISHED}

    def on(self, host: str) -> list[Attempt]:
        """Attempts of this host, the newest first."""
        here = (attempt for attempt in self.attempts.values() if attempt.host == host)
        return sorted(here, key=lambda attempt: -attempt.pk)

    def at_work(self, host: str) -> list[Attempt]:
        """Those that have not ended."""
        return [attempt for attempt in self.on(host) if attempt.ended_at is None]


def crew_of(batch: Batch) -> Crew:
    """Read it before the answers: an attempt that has ended by then writes none any more."""
    numbers = [int(number) for number in batch.workers]
    attempts = Attempt.objects.filter(job__in=numbers)
    jobs = Job.objects.filter(pk__in=numbers)
    return Crew(
        attempts={(attempt.job_id, attempt.number): attempt for attempt in attempts},
        jobs=jobs.in_bulk(),
    )


def open_items(batch: Batch, host: str) -> list[BatchItem]:
    """The items that workers of this host have at hand, or have taken."""
    return list(batch.items.filter(status__in=OPEN_ITEMS, host=host).order_by("index"))


def settle(
    batch: Batch,
    answers: Iterable[tuple[BatchItem, Answer | None]],
    workers: Crew,
    now: datetime,
) -> int:
    """Store the answers to these items; returns how many items changed."""
    changed, decisions, completed = [], [], Counter[Attempt]()
    retries = int((batch.work or {}).get("retries", 0))
    longest_s = max(0.0, (now - batch.created_at).total_seconds())
    for item, answer in answers:
        if answer is None:
            if item.status == ItemState.RUNNING.value:
                # Its file was deleted, so it can be taken again.
                item.status, item.job = ItemState.ASSIGNED.value, None
                changed.append(item)
            continue
        attempt = workers.attempts.get((answer.job, answer.attempt))
        is_open = attempt is not None and attempt.ended_at is None
        ending = None if is_open else attempt.outcome if attempt is not None else ""
        decision = policy.decide(answer, ending, item.failures, retries)
        if attempt is not None:
            _note_ready(batch, attempt)
        if item.status != decision.status.value:
            _apply(item, decision, attempt)
            changed.append(item)
            decisions.append(decision)
            if attempt is not None and decision.status is ItemState.COMPLETE:
                completed[attempt] += 1
    BatchItem.objects.bulk_update(
        changed,
        ["status", "job", "gpu_uuid", "result", "error", "failures", "host"],
        batch_size=rows.CHUNK,
    )
    for attempt, count in completed.items():
        attempt.items_completed += count
        attempt.save(update_fields=["items_completed"])
        if attempt.ended_at is None:
            snapshots.count_of_claim(attempt.job_id, count)
    rows.count_ended(
        batch,
        completed=sum(decision.status is ItemState.COMPLETE for decision in decisions),
        failed=sum(decision.status is ItemState.FAILED for decision in decisions),
        # Times of the account are believed as far as they can be true.
        work_s=sum(min(decision.took_s, longest_s) for decision in decisions),
        has_begun=bool(decisions),
        now=now,
    )
    return len(changed)


def _apply(item: BatchItem, decision: policy.Decision, attempt: Attempt | None) -> None:
    item.status = decision.status.value
    item.failures += decision.failed
    text = decision.error[: rows.LONGEST_ERROR]
    item.error = text if is_storable(text) else UNSTORABLE
    if attempt is not None:
        item.job_id = attempt.job_id
        item.gpu_uuid = attempt.gpu_uuids[0] if attempt.gpu_uuids else ""
    if decision.status is ItemState.COMPLETE:
        item.result = _result(decision.output)
    if decision.status is not ItemState.RUNNING:
        item.host = ""


def _result(output: Any) -> Any:
    text = json.dumps(output)
    if len(text) > LARGEST_ITEM_RESULT:
        return {"problem": TOO_LARGE}
    read = read_result(text.encode()) or {}
    return read.get("output", read if "problem" in read else None)


def _note_ready(batch: Batch, attempt: Attempt) -> None:
    """It has taken an item, so it has loaded."""
    key = str(attempt.job_id)
    if batch.workers.get(key) not in (None, _S.READY.value):
        batch.workers[key] = _S.READY.value
        batch.failed_boots = 0
        _set_phase(attempt.job_id, "busy")


def _set_phase(job: int, phase: str) -> None:
    Claim.objects.filter(job_ref=str(job), until_at=None).update(phase=phase)


def follow(batch: Batch, workers: Crew, host: str) -> str:
    """Update the states of the workers; returns why the last of them failed, "" = none has.

    The host of an attempt follows it: that host alone has the answers of the worker.
    """
    problem = ""
    for key, state in list(batch.workers.items()):
        job, newest = workers.jobs.get(int(key)), workers.newest(int(key))
        if job is None or job.state == JobState.FINISHED.value:
            if newest is not None and newest.host != host:
                continue
            del batch.workers[key]
            if state == _S.READY:
                batch.failed_boots = 0
            elif job is not None and job.outcome == Outcome.FAILED.value:
                batch.failed_boots += 1
                text = policy.NO_WORKER.format(times=batch.failed_boots, job=job.pk)
                problem = job.problem or text
        elif newest is None or newest.ended_at is not None:
            batch.workers[key] = _S.QUEUED.value
        elif state == _S.QUEUED and newest.host == host:
            batch.workers[key] = _S.BOOTING.value
            _set_phase(job.pk, "booting")
    return problem


def have_started(batch: Batch) -> bool:
    """Whether a worker has a GPU now."""
    return any(state != _S.QUEUED for state in batch.workers.values())


def without_workers(workers: Crew, host: str) -> set[str]:
    """Hosts whose items wait again: this one without workers, and those confirmed down."""
    down = {attempt.host for attempt in workers.attempts.values() if attempt.abandoned}
    return {each for each in {host, *down} if not workers.at_work(each)}


def take_back(batch: Batch, host: str) -> int:
    """The items that workers of this host had at hand wait again."""
    mine = batch.items.filter(status__in=OPEN_ITEMS, host=host)
    return mine.update(status=ItemState.QUEUED.value, host="", job=None)


def hand_out(batch: Batch, host: str, count: int) -> int:
    """Let the workers of this host have so many more items at hand; returns their number."""
    items = rows.next_items(batch, count)
    for item in items:
        item.status, item.host, item.job = ItemState.ASSIGNED.value, host, None
        item.attempt += 1
    BatchItem.objects.bulk_update(
        items, ["status", "host", "job", "attempt"], batch_size=rows.CHUNK
    )
    return len(items)


def give_up(batch: Batch, error: str, now: datetime) -> None:
    """Fail all items that have not ended: no worker can be had."""
    waiting = batch.items.filter(status__in=(*OPEN_ITEMS, ItemState.QUEUED.value))
    count = waiting.update(
        status=ItemState.FAILED.value, error=error[: rows.LONGEST_ERROR], host=""
    )
    rows.count_ended(batch, failed=count, now=now)


def add(batch: Batch, new: Sequence[NewJob], now: datetime) -> None:
    """Queue the jobs of further workers."""
    for job in changes.add_all(new, batch.owner, now):
        batch.workers[str(job.pk)] = _S.QUEUED.value


def cancel_waiting(batch: Batch, now: datetime) -> None:
    """Cancel the jobs of workers that wait for a GPU: no item is left for them."""
    waiting = [int(key) for key, state in batch.workers.items() if state == _S.QUEUED]
    if waiting:
        jobs = Job.objects.filter(pk__in=waiting, state=JobState.QUEUED.value)
        changes.cancel(jobs, audit.GPUCOORD, now)


def align(workers: Crew, exclusive: int | None) -> None:
    """Let waiting workers use the GPUs that the batch has now."""
    wrong = [
        job.pk
        for job in workers.jobs.values()
        if job.state == JobState.QUEUED.value and job.exclusive_batch != exclusive
    ]
    if wrong:
        waiting = Job.objects.filter(pk__in=wrong, state=JobState.QUEUED.value)
        waiting.update(exclusive_batch=exclusive)


def others_wait(batch: Batch, host: str) -> bool:
    """Whether a job of another user waits for a GPU."""
    waiting = Job.objects.filter(
        state=JobState.QUEUED.value, held="", idle_template="", model_service=None, gpus__gt=0,
        exclusive_batch=None, host__in=("", host),
    )  # fmt: skip
    return waiting.exclude(owner=batch.owner).exists()


def at_work(host: str) -> set[int]:
    """The open attempts of workers on this host."""
    attempts = Attempt.objects.filter(host=host, ended_at=None, job__worker_batch__isnull=False)
    return set(attempts.values_list("pk", flat=True))


def moving_of(batches: Iterable[Batch]) -> set[int]:
    """The batches with a worker whose job does not just wait."""
    of = {int(key): batch.pk for batch in batches for key in batch.workers}
    if not of:
        return set()
    moved = Job.objects.filter(pk__in=of).exclude(state=JobState.QUEUED.value)
    return {of[number] for number in moved.values_list("pk", flat=True)}


_FIGURES = ("completed", "failed", "work_s", "workers", "failed_boots", "started_at")


def figures(batch: Batch) -> dict[str, Any]:
    """The columns that a pass changes."""
    return {name: deepcopy(getattr(batch, name)) for name in _FIGURES}


def save(batch: Batch) -> None:
    batch.save(update_fields=_FIGURES)


class Publication(Struct, frozen=True):
    """A list of items, to be written after the commit."""

    files: WorkerFiles
    body: Mapping[str, Any]

    def write(self) -> None:
        self.files.publish(self.body)


class Advance(Struct, frozen=True):
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
    before, crew = figures(batch), crew_of(batch)
    at_work, files = crew.at_work(host), _files(batch, crew, host, specs)
    items = open_items(batch, host) if files is not None else []
    answers = [(item, files.answer(item.index, item.attempt)) for item in items if files]
    changed = settle(batch, answers, crew, now)
    problem = follow(batch, crew, host)
    for left in without_workers(crew, host):
        changed += take_back(batch, left)
    align(crew, reserved(batch, run))
    can_load = batch.failed_boots < policy.MOST_FAILED_BOOTS
    if not can_load and not have_started(batch):
        give_up(batch, problem or policy.NEVER_LOADED, now)
    pace = rows.open_pace(batch, MOST_WAITING)
    free = pace.queued + pace.waiting
    made = 0
    if hands_out and can_load:
        made = _make(batch, crew, run, free, free + pace.running, now)
    if not free:
        cancel_waiting(batch, now)
    feeds = batch.owner.is_active and (run is None or run.waits_for_batch is None)
    if feeds and at_work:
        wanted = policy.items_at_hand(len(at_work), pace.ended, pace.work_s)
        at_hand = sum(item.status == ItemState.ASSIGNED.value for item in items)
        changed += hand_out(batch, host, max(0, wanted - at_hand))
    if figures(batch) != before:
        save(batch)
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
    items = open_items(batch, host)
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
    return is_over and others_wait(batch, host)


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
            give_up(batch, str(error), now)
        return 0
    add(batch, fitted, now)
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
    limit, estimate = new.time_limit, new.estimate
    return {
        "args": args,
        "time_limit_s": None if limit is None else limit.total_seconds(),
        "estimate_s": None if estimate is None else estimate.total_seconds(),
        "retries": new.yield_options.retries,
        "gpus": new.requirement.gpus,
    }


# The folders of ended batches, through which their workers got items, go.


def clear(data: Path, checkpoints: Path | None) -> list[int]:
    """Move aside the folders of batches that no worker uses; returns their numbers.

    They are deleted with the files of ended jobs.
    """
    roots = accounts.job_file_roots(data, checkpoints)
    existing = list(clearing.batches_with_files(roots))
    used = _used({batch for _, batch in existing})
    unused = [(root, batch) for root, batch in existing if batch not in used]
    return [
        batch for root, batch in unused if clearing.move_aside(root, clearing.folder_name(batch))
    ]


def _used(batches: set[int]) -> set[int]:
    """Those that run, or have a worker that has not ended."""
    running = Batch.objects.filter(pk__in=batches, state=BatchState.RUNNING.value)
    at_work = Job.objects.exclude(state=JobState.FINISHED.value).filter(worker_batch__in=batches)
    of_workers = at_work.values_list("worker_batch", flat=True)
    return {*running.values_list("pk", flat=True), *filter(None, of_workers)}


EVERY = timedelta(seconds=0.1)
KIND = "JOB_STEP_FAILED"


class BatchStep:
    """`step(now)` looks at each open batch. Hosts take turns: the batch's row is locked."""

    def __init__(self, guard: Guard, host: str, specs: SpecWriter | None = None) -> None:
        """specs: of a host that runs jobs itself, so that it can have workers of batches."""
        self._guard = guard
        self._host = host
        self._specs = specs
        self._isolation = ItemIsolation(host, "batches", guard)
        self._stepped_at: datetime | None = None
        # Attempts of workers; None: no batch has any. Saves time only.
        self._at_work: set[int] | None = None

    def step(self, now: datetime) -> int:
        """Returns the number of jobs that were made."""
        is_early = self._stepped_at is not None and timedelta() <= now - self._stepped_at < EVERY
        if is_early and not self._has_moved():
            return 0
        self._stepped_at = now
        open_batches = rows.open_batches()
        has_workers = any(batch.workers for batch, _ in open_batches)
        self._at_work = at_work(self._host) if has_workers else None
        batches = _due(open_batches, can_work=self._specs is not None)
        if not batches:
            return 0
        with self._guard():
            advances = self._isolation.each(
                batches,
                lambda batch: f"batch {batch.pk}",
                lambda b: self._advance(b, now),
                now,
                KIND,
            )
        # After the commit: a worker never has an item that was not given to it.
        self._isolation.each(
            [(batch, done.publication) for batch, done in advances if done.publication],
            lambda written: f"items of batch {written[0].pk}",
            lambda written: written[1].write(),
            now,
            KIND,
        )
        return sum(done.made for _, done in advances)

    def _has_moved(self) -> bool:
        """Whether a worker has started or ended: it waits for items, or its answers are final."""
        return self._at_work is not None and at_work(self._host) != self._at_work

    def _advance(self, batch: Batch, now: datetime) -> Advance:
        current = rows.locked(batch)
        if current is None:
            return Advance()
        if current.work is None:
            return Advance(_advance(current, now))
        if self._specs is None:
            return Advance()
        run, hands_out = _run(current), _hands_out(current)
        return advance(current, run, self._host, self._specs, now, hands_out=hands_out)


def _due(batches: Sequence[tuple[Batch, BatchWork]], *, can_work: bool) -> list[Batch]:
    """Those that a pass changes, so that batches that wait cost nothing."""
    if not batches:
        return []
    gpus = Gpu.objects.count()
    room = cache(lambda owner: intake.room_in_queue(owner) != 0)
    with_workers = [batch for batch, _ in batches if batch.work is not None]
    moving = moving_of(with_workers) if can_work else set()
    due = []
    for batch, work in batches:
        hands_out, has_room = _hands_out(batch), partial(room, batch.owner)
        if batch.work is None:
            if policy.is_due(work, gpus, hands_out=hands_out, has_room=has_room):
                due.append(batch)
        elif can_work:
            wants = hands_out and len(batch.workers) < places(batch, _run(batch), gpus)
            has_open = bool(work.waiting or work.running)
            if batch.pk in moving or has_open or not work.has_queued or (wants and has_room()):
                due.append(batch)
    return due


def _advance(current: Batch, now: datetime) -> int:
    changed = rows.settle(current, now)
    pace = rows.open_pace(current, policy.MOST_WAITING)
    room = intake.room_in_queue(current.owner)
    count = policy.jobs_to_make(pace, Gpu.objects.count(), room)
    items = rows.next_items(current, count) if count and _hands_out(current) else []
    made = _hand_out(current, items, now) if items else 0
    if not (items or pace.queued or pace.waiting or pace.running):
        rows.finish(current, now)
    if changed or items:
        wake("live")
    return made


def _run(batch: Batch) -> ExclusiveRun | None:
    """Its exclusive mode, unless that was ended or never was."""
    run: ExclusiveRun | None = getattr(batch, "exclusive_run", None)
    is_open = run is not None and run.step != ExclusiveStep.ENDED.value
    return run if is_open else None


def _hands_out(batch: Batch) -> bool:
    if not batch.owner.is_active:
        # Its items wait, as the user's jobs do.
        return False
    run = _run(batch)
    return run is None or policy.hands_out(
        ExclusiveStep(run.step),
        is_stopped=bool(run.stopped_by),
        waits_for_batch=run.waits_for_batch is not None,
    )


def _hand_out(batch: Batch, items: Sequence[BatchItem], now: datetime) -> int:
    """Returns the number of jobs that were made: of all items, or of none if one is wrong."""
    try:
        new = jobs_of(batch.request, [(item.index, item.input) for item in items], now)
        number = reserved(batch, _run(batch))
        named = [
            replace(job, name=batch.name, requirement=replace(job.requirement, batch=number))
            for job in new
        ]
        fitted = intake.fitted_all(named, batch.owner)
    except UnableToSubmit as error:
        _refuse(batch, items, error, now)
        return 0
    rows.assign(items, changes.add_all(fitted, batch.owner, now))
    wake("scheduler")
    return len(items)


def _refuse(batch: Batch, items: Sequence[BatchItem], error: UnableToSubmit, now: datetime) -> None:
    """Of the items, those that are wrong; the next pass takes the others."""
    texts: dict[int, list[str]] = defaultdict(list)
    for refusal in error.refusals:
        if refusal.index is not None and refusal.index < len(items):
            texts[refusal.index].append(f"{refusal.field}: {refusal.text}")
    for index, sentences in texts.items():
        rows.refuse(batch, [items[index]], " ".join(sentences), now)
    if not texts:
        rows.refuse(batch, items, str(error), now)


def jobs_of(
    request: Mapping[str, Any], items: Sequence[tuple[int, str]], now: datetime
) -> list[NewJob]:
    """The jobs of these items. Raises UnableToSubmit."""
    script = _script(request)
    raws = [request_of(request, item, script) for _, item in items]
    jobs = checked_all(raws, now)
    return [
        replace(job, env=job.env | {"GPUCOORD_ITEM": item, "GPUCOORD_ITEM_INDEX": str(index)})
        for job, (index, item) in zip(jobs, items, strict=True)
    ]


def _script(request: Mapping[str, Any]) -> Script | None:
    """None: a command, or a script that is gone, which the check refuses."""
    if not request.get("script"):
        return None
    try:
        return script_rows.named(str(request["script"]))
    except ValueError:
        return None


def request_of(request: Mapping[str, Any], item: str, script: Script | None) -> dict[str, Any]:
    """The fields of one item's job."""
    if script is None or not script.item_argument:
        return dict(request)
    arguments = {**(request.get("script_args") or {}), script.item_argument: item}
    return {**request, "script_args": arguments}
