"""Step: hand out items of batches as jobs or to workers, and store how they end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from monitor.models import Gpu
from monitor.runtime.facts import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.batches import BatchWork, ExclusiveStep
from scheduler.facts.jobs import NewJob
from scheduler.facts.scripts import Script
from scheduler.jobs.lifecycle.rows import queue as job_queue
from scheduler.models import Batch, BatchItem, ExclusiveRun
from scheduler.submission.batches import policy
from scheduler.submission.batches.rows import batches as rows
from scheduler.submission.batches.rows import workers as worker_rows
from scheduler.submission.batches.steps import workers
from scheduler.submission.batches.steps.workers import Advance
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked_all
from scheduler.submission.scripts import rows as script_rows

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
        self._at_work = worker_rows.at_work(self._host) if has_workers else None
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
        return self._at_work is not None and worker_rows.at_work(self._host) != self._at_work

    def _advance(self, batch: Batch, now: datetime) -> Advance:
        current = rows.locked(batch)
        if current is None:
            return Advance()
        if current.work is None:
            return Advance(_advance(current, now))
        if self._specs is None:
            return Advance()
        run, hands_out = _run(current), _hands_out(current)
        return workers.advance(current, run, self._host, self._specs, now, hands_out=hands_out)


def _due(batches: Sequence[tuple[Batch, BatchWork]], *, can_work: bool) -> list[Batch]:
    """Those that a pass changes, so that batches that wait cost nothing."""
    if not batches:
        return []
    gpus = Gpu.objects.count()
    room = cache(lambda owner: intake.room_in_queue(owner) != 0)
    with_workers = [batch for batch, _ in batches if batch.work is not None]
    moving = worker_rows.moving(with_workers) if can_work else set()
    due = []
    for batch, work in batches:
        hands_out, has_room = _hands_out(batch), partial(room, batch.owner)
        if batch.work is None:
            if policy.is_due(work, gpus, hands_out=hands_out, has_room=has_room):
                due.append(batch)
        elif can_work:
            wants = hands_out and len(batch.workers) < workers.places(batch, _run(batch), gpus)
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
        number = workers.reserved(batch, _run(batch))
        named = [
            replace(job, name=batch.name, requirement=replace(job.requirement, batch=number))
            for job in new
        ]
        fitted = intake.fitted_all(named, batch.owner)
    except UnableToSubmit as error:
        _refuse(batch, items, error, now)
        return 0
    rows.assign(items, job_queue.add_all(fitted, batch.owner, now))
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
