"""Step: the folders of ended batches, through which their workers got items, go."""

from __future__ import annotations

from pathlib import Path

from scheduler.facts.batches import BatchState
from scheduler.facts.jobs import JobState
from scheduler.models import Batch, Job
from scheduler.runner import accounts, clearing, worker_files


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
