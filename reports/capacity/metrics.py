"""Metrics of capacity: what each GPU can still take, and what jobs demand."""

from __future__ import annotations

from datetime import datetime
from threading import Lock
from typing import Any

from django.conf import settings
from django.db.models import Count, QuerySet

from monitor.pages.metrics import Families
from monitor.runtime.rows.prepared import compiled_once
from reports.capacity import step
from reports.capacity.policy.demand import requested
from scheduler.dispatch.inputs import PlanInputs, plan_policy
from scheduler.facts.jobs import JobState, Requirement
from scheduler.facts.plans import Slot, Slots
from scheduler.jobs.lifecycle.rows.queue_facts import REQUIREMENT_COLUMNS, requirement
from scheduler.models import Job

_lock = Lock()
_inputs: dict[str, PlanInputs] = {}


def add_metrics(into: Families, now: datetime) -> None:
    """Nothing while capacity planning is off."""
    if not step.is_enabled():
        return
    slots = _slots(now)
    for gpu in slots.gpus if slots.blocker is None else ():
        labels = {"host": gpu.host, "gpu": gpu.gpu_uuid}
        help_text = "GPU memory that new jobs may take, after peaks of processes and the margin."
        into.gauge("gpucoord_placeable_memory_bytes", help_text, labels, _placeable(gpu))
    sizes = [gpu.total_bytes for gpu in slots.gpus if gpu.total_bytes]
    gpu_bytes = sum(sizes) // len(sizes) if sizes else None
    for state, requirements in _requirements().items():
        gpus, memory = requested(requirements, gpu_bytes)
        help_text = "GPUs that jobs request; a shared job counts with its part of a GPU."
        into.gauge("gpucoord_demand_gpus", help_text, {"state": state}, gpus)
        help_text = "GPU memory that jobs request; a job that declares none takes whole GPUs."
        into.gauge("gpucoord_demand_memory_bytes", help_text, {"state": state}, memory)


def _slots(now: datetime) -> Slots:
    """The GPUs of this host as its planner sees them."""
    host = settings.CONFIG.node
    with _lock:
        if host not in _inputs:
            _inputs[host] = PlanInputs(host, plan_policy())
        return _inputs[host].gpu_slots(now)


def _placeable(gpu: Slot) -> int | None:
    is_open = gpu.healthy and not (gpu.closed or gpu.exclusive or gpu.undeclared)
    return gpu.free_bytes if is_open else 0


def _requirements() -> dict[str, list[tuple[Requirement, int]]]:
    """Each distinct request of waiting and of running jobs, and how many jobs have it."""
    requests: dict[str, list[tuple[Requirement, int]]] = {"waiting": [], "running": []}
    for state, *columns, count in _unfinished():
        key = "waiting" if state == JobState.QUEUED else "running"
        requests[key].append((requirement(*columns), count))
    return requests


@compiled_once
def _unfinished() -> QuerySet[Job, tuple[Any, ...]]:
    jobs = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
    return jobs.values_list("state", *REQUIREMENT_COLUMNS).annotate(count=Count("id"))
