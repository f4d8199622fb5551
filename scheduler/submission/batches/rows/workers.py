"""Rows of batches whose items are answered by workers: items at hand, answers, and the jobs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from monitor.facts.input_rules import is_storable
from monitor.gpus.snapshot import rows as snapshots
from monitor.journal.rows import audit
from monitor.models import Claim
from scheduler.facts.batches import (
    LARGEST_ITEM_RESULT,
    OPEN_ITEMS,
    Answer,
    ItemState,
    WorkerState,
)
from scheduler.facts.jobs import JobState, NewJob, Outcome, read_result
from scheduler.jobs.lifecycle.rows import changes
from scheduler.jobs.lifecycle.rows import changes as job_queue
from scheduler.models import Attempt, Batch, BatchItem, Job
from scheduler.submission.batches import policy
from scheduler.submission.batches.rows import batches as rows

TOO_LARGE = f"The result is larger than {LARGEST_ITEM_RESULT} bytes; let the worker write a file."
FINISHED = JobState.FINISHED.value
UNSTORABLE = "Its error has characters that can't be stored."
_S = WorkerState


@dataclass(frozen=True, slots=True)
class Crew:
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


def crew(batch: Batch) -> Crew:
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
    for job in job_queue.add_all(new, batch.owner, now):
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


def moving(batches: Iterable[Batch]) -> set[int]:
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
