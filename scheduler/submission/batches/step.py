"""Step: hand out items of batches as jobs, and store how these end."""

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
from scheduler.facts.batches import BatchWork, ExclusiveStep
from scheduler.facts.jobs import NewJob
from scheduler.facts.scripts import Script
from scheduler.jobs.lifecycle.rows import queue as job_queue
from scheduler.models import Batch, BatchItem, ExclusiveRun
from scheduler.submission.batches import policy, rows
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy.new_job import UnableToSubmit
from scheduler.submission.intake.steps.checks import checked_all
from scheduler.submission.scripts import rows as script_rows

EVERY = timedelta(seconds=0.5)
KIND = "JOB_STEP_FAILED"


class BatchStep:
    """`step(now)` looks at each open batch. Hosts take turns: the batch's row is locked."""

    def __init__(self, guard: Guard, host: str) -> None:
        self._guard = guard
        self._isolation = ItemIsolation(host, "batches", guard)
        self._stepped_at: datetime | None = None

    def step(self, now: datetime) -> int:
        """Returns the number of jobs that were made."""
        if self._stepped_at is not None and timedelta() <= now - self._stepped_at < EVERY:
            return 0
        self._stepped_at = now
        batches = _due(rows.open_batches())
        if not batches:
            return 0
        with self._guard():
            made = self._isolation.each(
                batches, lambda batch: f"batch {batch.pk}", lambda b: _advance(b, now), now, KIND
            )
        return sum(count for _, count in made)


def _due(batches: Sequence[tuple[Batch, BatchWork]]) -> list[Batch]:
    """Those that a pass changes, so that batches that wait cost nothing."""
    if not batches:
        return []
    gpus = Gpu.objects.count()
    room = cache(lambda owner: intake.room_in_queue(owner) != 0)
    return [
        batch
        for batch, work in batches
        if policy.is_due(
            work, gpus, hands_out=_hands_out(batch), has_room=partial(room, batch.owner)
        )
    ]


def _advance(batch: Batch, now: datetime) -> int:
    current = rows.locked(batch)
    if current is None:
        return 0
    changed = rows.settle(current)
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
        run = _run(batch)
        number = batch.pk if run is not None and not run.stopped_by else None
        named = [
            replace(job, name=batch.name, requirement=replace(job.requirement, batch=number))
            for job in new
        ]
        fitted = intake.fitted_all(named, batch.owner)
    except UnableToSubmit as error:
        _refuse(batch, items, error)
        return 0
    rows.assign(items, job_queue.add_all(fitted, batch.owner, now))
    wake("scheduler")
    return len(items)


def _refuse(batch: Batch, items: Sequence[BatchItem], error: UnableToSubmit) -> None:
    """Of the items, those that are wrong; the next pass takes the others."""
    texts: dict[int, list[str]] = defaultdict(list)
    for refusal in error.refusals:
        if refusal.index is not None and refusal.index < len(items):
            texts[refusal.index].append(f"{refusal.field}: {refusal.text}")
    for index, sentences in texts.items():
        rows.refuse(batch, [items[index]], " ".join(sentences))
    if not texts:
        rows.refuse(batch, items, str(error))


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
