"""Input of an instance's runner: command, port and OS account."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.gpus.snapshot import rows as snapshots
from monitor.models import Gpu
from scheduler.language_models.model_services.policy import services as policy
from scheduler.language_models.model_services.probes import free_port
from scheduler.models import Attempt, Job, ModelInstance
from scheduler.runner import accounts
from scheduler.runner.accounts import Account


@dataclass(frozen=True, slots=True)
class Launch:
    """The command of an instance with its placeholders filled in."""

    argv: list[str]
    port: int


def launch(attempt: Attempt) -> Launch:
    """Choose a port, store it with the instance, and fill in the command."""
    port = free_port()
    ModelInstance.objects.filter(job=attempt.job_id).update(port=port)
    snapshots.set_port(str(attempt.job_id), port)
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=attempt.gpu_uuids)}
    first = gpus.get(attempt.gpu_uuids[0]) if attempt.gpu_uuids else None
    values = {
        "model": attempt.job.name,
        "port": str(port),
        "gpu": "" if first is None else str(first.index),
        "gpu_memory_fraction": "0" if first is None else _fraction(attempt, first),
    }
    return Launch(policy.filled_argv(attempt.job.argv, values), port)


def _fraction(attempt: Attempt, gpu: Gpu) -> str:
    """Of the declared memory; of what is free now, if the instance has the GPU alone.

    "0" where the driver does not say how much is free.
    """
    placed = attempt.job.gpu_memory_bytes
    if placed is None:
        snapshot = snapshots.newest(attempt.host)
        readings = snapshot.gpus if snapshot else ()
        reading = next(
            (gpu_reading for gpu_reading in readings if gpu_reading.uuid == gpu.uuid), None
        )
        used = reading.memory_used_bytes if reading is not None else None
        total = reading.memory_total_bytes if reading is not None else None
        if used is not None and total is not None:
            placed = max(0, total - used - policy.MARGIN_BYTES)
    return policy.memory_fraction(placed, gpu.memory_total_bytes)


def account_of(job: Job, run_as: str) -> Account:
    """The OS account of an instance. Raises MissingAccount."""
    service = job.model_service
    return accounts.account_of_service(service.account if service else "", run_as=run_as)
