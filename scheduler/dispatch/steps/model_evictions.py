"""Step: models give their GPUs to waiting jobs, by the rules of the policy `eviction`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from monitor.runtime.policy import Guard, TimedCache
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.dispatch.inputs import PlanInputs
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, Slot
from scheduler.language_models.model_services import policy as lifecycle
from scheduler.language_models.model_services import rows, steps
from scheduler.language_models.model_services.policy import (
    Candidate,
    Decision,
    EvictionPolicy,
    Loaded,
    beside_sleeping,
)
from scheduler.language_models.model_services.step import ModelStep
from scheduler.models import ModelInstance
from scheduler.queue.planner.matching import reject_code

# Jobs for which an eviction is considered in one pass, in the order of the queue.
MOST_CONSIDERED = 8
AVERAGE_FOR = timedelta(minutes=1)


class ModelWakes:
    """`step(now)` wakes sleeping models for which requests wait, into a place that is free.

    Its GPUs are claimed before its server is asked, so no job starts there meanwhile. A model
    without room ends, and another instance is started where there is some.
    """

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard, self._host, self._policy = guard, host, policy
        self._isolation = ItemIsolation(host, "model wakes", guard)
        self._inputs = PlanInputs(host, policy, self._isolation)

    def step(self, now: datetime) -> list[str]:
        """Returns the names of the models that wake."""
        waiting = rows.to_wake(self._host)
        if not waiting:
            return []
        done = self._isolation.each(
            waiting, lambda row: f"wake of instance {row.pk}", lambda row: self._wake(row, now), now
        )
        return [row.service.name for row, is_awake in done if is_awake]

    def _wake(self, row: ModelInstance, now: datetime) -> bool:
        slots = self._inputs.gpu_slots(now)
        is_free = slots.blocker is None and self._has_room(row, slots.gpus)
        with self._guard():
            if is_free:
                return steps.wake_up(row, now)
            steps.unload(row.service, row, "Its GPU has no room for it to wake.", now)
        return False

    def _has_room(self, row: ModelInstance, gpus: Sequence[Slot]) -> bool:
        exclusive = row.memory_bytes is None
        wanted = Requirement(memory_bytes=row.memory_bytes, exclusive=exclusive)
        job = row.job_id or 0
        fitting = [
            gpu.gpu_uuid
            for gpu in gpus
            if gpu.gpu_uuid in row.gpu_uuids
            and reject_code(wanted, gpu.without({job}), self._policy, job) is None
        ]
        return len(fitting) == len(row.gpu_uuids)


class ModelInputs:
    """Loads what the rules of the policy `eviction` need, for one host."""

    def __init__(self, host: str, isolation: ItemIsolation) -> None:
        self._host, self._isolation = host, isolation
        self._average: TimedCache[float | None] = TimedCache(
            lambda _now: rows.average_script_s(), AVERAGE_FOR
        )

    def loaded(self, now: datetime) -> Loaded | None:
        """None: no model is there. This costs one query then."""
        instances = rows.loaded_on(self._host)
        if not instances:
            return None
        readable = self._isolation.convert(
            instances,
            lambda row: f"model instance {row.pk}",
            lambda row: rows.candidate(row, now),
            now,
        )
        return Loaded(
            candidates=tuple(candidate for _, candidate in readable),
            policy=thresholds.current(EvictionPolicy),
            prompts=rows.waiting_prompts(now),
            script_s=self._average(now),
            leaving=tuple(row.job_id or 0 for row in instances if rows.leaves(row, now)),
        )


class ModelEvictions:
    """`step(now)` evicts for one waiting job at a time; one query if no model is on a GPU."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard = guard
        self._host = host
        self._policy = policy
        self._isolation = ItemIsolation(host, "model evictions", guard)
        self._inputs = PlanInputs(host, policy, self._isolation)
        self._models = ModelInputs(host, self._isolation)

    def step(self, now: datetime) -> list[str]:
        """Returns the names of the models that leave."""
        models = self._models.loaded(now)
        if models is None or models.leaving:
            return []
        scripts = rows.waiting_scripts()
        may_leave = scripts > 0 and models.may_any_leave(scripts, now)
        in_need = rows.in_need(MOST_CONSIDERED) if may_leave else {}
        if not in_need:
            return []
        jobs = [job for job in self._inputs.queue(now) if job.id in in_need]
        slots = self._inputs.given(jobs, now).slots
        gpus = [gpu for gpu in slots.gpus if gpu.gpu_uuid not in slots.reserved]
        jobs.sort(key=lambda job: in_need[job.id])
        decision = models.decide(scripts, jobs, gpus, self._fits, now)
        if decision is None:
            return []
        self._isolation.attempt(
            f"eviction for job {decision.job.id}", lambda: self._evict(decision, gpus, now), now
        )
        return [candidate.name for candidate in decision.victims.chosen]

    def _fits_beside(self, decision: Decision, candidate: Candidate, gpus: Iterable[Slot]) -> bool:
        """Whether the job also fits on its GPUs when the instance sleeps there."""
        left_bytes = lifecycle.most_left(candidate.instance.memory_bytes)
        return all(
            self._fits(
                decision.job, beside_sleeping(gpu, candidate.instance.job_id or 0, left_bytes)
            )
            for gpu in gpus
            if gpu.gpu_uuid in decision.victims.gpu_uuids
        )

    def _fits(self, job: QueuedJob, gpu: Slot) -> bool:
        return reject_code(job.requirement, gpu, self._policy, job.id) is None

    def _evict(self, decision: Decision, gpus: Sequence[Slot], now: datetime) -> None:
        with self._guard():
            for candidate in decision.victims.chosen:
                steps.evict(
                    candidate.instance.id,
                    decision.job.id,
                    decision.reason,
                    now,
                    may_sleep=len(decision.victims.chosen) == 1
                    and self._fits_beside(decision, candidate, gpus),
                )
            steps.hold_for(decision.job.id, self._host, decision.victims.gpu_uuids, now)


class ModelPass:
    """The models of a host: those that wake, then boots and ends, then evictions."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._wakes = ModelWakes(guard, host, policy)
        self._models = ModelStep(guard, host)
        self._evictions = ModelEvictions(guard, host, policy)

    def step(self, now: datetime) -> None:
        # The claim of a model that wakes is committed before its server takes the memory.
        self._wakes.step(now)
        self._models.step(now)
        self._evictions.step(now)

    def close(self) -> None:
        self._models.close()
