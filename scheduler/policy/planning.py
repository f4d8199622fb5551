"""Policy: one plan for the whole queue: who starts now, and why each other job waits.

Jobs are tried in order; one that does not fit is passed over, and the next may start.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob, Requirement
from scheduler.plans import Placement, Plan, PlanPolicy, Slots
from scheduler.policy import placement
from scheduler.policy.ordering import ordered


def plan(queue: Iterable[QueuedJob], slots: Slots, policy: PlanPolicy, now: datetime) -> Plan:
    """Place what fits, explain the rest. The same input gives the same plan, in any order."""
    pass_ = _Pass(slots, policy)
    for job in ordered(queue):
        pass_.serve(job)
    return Plan(placements=tuple(pass_.placements), blockers=pass_.blockers)


class _Pass:
    """The slots as they fill up during one pass."""

    def __init__(self, slots: Slots, policy: PlanPolicy) -> None:
        self._policy = policy
        self._host = slots.host
        self._gpus = list(slots.gpus)
        self._cpu_jobs = slots.cpu_jobs
        self._blocker = slots.blocker
        # What could not be placed can't be before the slots change, and for the same reasons.
        self._refused: dict[Requirement, tuple[Blocker, ...]] = {}
        self.placements: list[Placement] = []
        self.blockers: dict[int, tuple[Blocker, ...]] = {}

    def serve(self, job: QueuedJob) -> None:
        if job.requirement.gpus == 0:
            self._serve_without_gpu(job)
        elif self._blocker is not None:
            self.blockers[job.id] = (self._blocker,)
        elif job.requirement in self._refused:
            self.blockers[job.id] = self._refused[job.requirement]
        else:
            self._serve_with_gpus(job)

    def _serve_without_gpu(self, job: QueuedJob) -> None:
        if self._cpu_jobs < self._policy.cpu_jobs:
            self._cpu_jobs += 1
            self.placements.append(Placement(job_id=job.id, host=self._host))
        else:
            self.blockers[job.id] = (_no_cpu_place(self._policy.cpu_jobs),)

    def _serve_with_gpus(self, job: QueuedJob) -> None:
        chosen = placement.choose(job.requirement, self._gpus, self._policy)
        if chosen is None:
            found = placement.explain(job.requirement, self._gpus, self._policy)
            self._refused[job.requirement] = self.blockers[job.id] = found
            return
        uuids = tuple(gpu.gpu_uuid for gpu in sorted(chosen, key=lambda gpu: gpu.index))
        self.placements.append(Placement(job_id=job.id, host=self._host, gpu_uuids=uuids))
        self._gpus = [
            placement.taken(gpu, job.id, job.requirement) if gpu.gpu_uuid in uuids else gpu
            for gpu in self._gpus
        ]
        self._refused.clear()


def _no_cpu_place(places: int) -> Blocker:
    text = f"All {places} places for jobs without a GPU are taken; yours starts when one ends."
    return Blocker(code="CpuPlaces", text=text, requested="1 place", available=f"0 of {places}")
