"""Containers on a job's GPUs that its owner started outside of the job, as with `docker run`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from monitor.facts.readings import OwnerSource, Snapshot
from monitor.gpus.snapshot import rows as snapshots
from scheduler.models import Attempt


@dataclass(frozen=True, slots=True)
class OutsideContainer:
    """gpus: their indices. is_labelled: its label names the job."""

    name: str
    gpus: tuple[int, ...]
    is_labelled: bool


def of_attempt(attempt: Attempt) -> list[OutsideContainer]:
    """Those of a running attempt, by name; without a GPU nothing is known of them."""
    newest = snapshots.newest(attempt.gpu_host) if attempt.gpu_uuids else None
    if newest is None:
        return []
    owner = attempt.job.owner.username
    return outside(newest, str(attempt.job_id), owner, attempt.gpu_uuids)


def outside(
    snapshot: Snapshot, job_ref: str, owner: str, gpu_uuids: Collection[str]
) -> list[OutsideContainer]:
    """The containers that the job's label names, and those of its owner on its GPUs.

    A process in the job's cgroup, or below its first process, is inside of the job.
    """
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    gpus: dict[str, set[int]] = {}
    labelled: set[str] = set()
    for process in snapshot.processes:
        is_inside = process.owner_source is OwnerSource.JOB
        if process.container is None or is_inside or process.gpu_uuid not in indices:
            continue
        is_labelled = process.job_ref == job_ref
        is_of_owner = process.job_ref is None and process.user == owner
        if not is_labelled and not (is_of_owner and process.gpu_uuid in gpu_uuids):
            continue
        gpus.setdefault(process.container, set()).add(indices[process.gpu_uuid])
        if is_labelled:
            labelled.add(process.container)
    return [
        OutsideContainer(name, tuple(sorted(numbers)), name in labelled)
        for name, numbers in sorted(gpus.items())
    ]
