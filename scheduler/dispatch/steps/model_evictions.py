"""Step: models give their GPUs to waiting jobs, by the rules of the policy `eviction`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.runtime.facts import Guard, TimedCache
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.dispatch.inputs import PlanInputs
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import PlanPolicy, Slot
from scheduler.model_services import rows
from scheduler.model_services.policy.eviction import (
    Candidate,
    EvictionPolicy,
    Queues,
    Victims,
    may_leave,
    should_evict_for_scripts,
    victims,
)
from scheduler.model_services.rows import queues
from scheduler.model_services.steps import effects
from scheduler.planner.matching import reject_code

# Jobs for which an eviction is considered in one pass, in the order of the queue.
MOST_CONSIDERED = 8
AVERAGE_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Decision:
    """The instances that leave for a job, and why."""

    job: QueuedJob
    found: Victims
    reason: str


class ModelEvictions:
    """`step(now)` evicts for one waiting job at a time; one query if no model is on a GPU."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard = guard
        self._host = host
        self._policy = policy
        self._isolation = ItemIsolation(host, "model evictions", guard)
        self._inputs = PlanInputs(host, policy, self._isolation)
        self._average: TimedCache[float | None] = TimedCache(
            lambda _now: queues.average_script_s(), AVERAGE_FOR
        )

    def step(self, now: datetime) -> list[str]:
        """Returns the names of the models that leave."""
        loaded = rows.loaded_on(self._host)
        if not loaded or any(row.state in rows.LEAVING for row in loaded):
            return []
        policy = thresholds.current(EvictionPolicy)
        candidates = [rows.candidate(row, now) for row in loaded]
        leaving = [one for one in candidates if may_leave(one, policy, now)]
        if not policy.enabled or not leaving or not queues.waiting_scripts():
            return []
        decision = self._decide(candidates, policy, now)
        if decision is None:
            return []
        self._isolation.attempt(
            f"eviction for job {decision.job.id}", lambda: self._evict(decision, now), now
        )
        return [one.name for one in decision.found.chosen]

    def _decide(
        self, candidates: Sequence[Candidate], policy: EvictionPolicy, now: datetime
    ) -> Decision | None:
        waiting = Queues(
            scripts=queues.waiting_scripts(),
            prompts=queues.waiting_prompts(now),
            ready=queues.ready_gpus(candidates),
            script_s=self._average(now),
        )
        # The model that boots fastest: if it need not leave, none need.
        boot_s = min(one.reload_s for one in candidates)
        if should_evict_for_scripts(waiting, boot_s, policy) is None:
            return None
        jobs = self._inputs.queue(now)
        in_need = queues.in_need(MOST_CONSIDERED)
        chosen = sorted((job for job in jobs if job.id in in_need), key=lambda job: in_need[job.id])
        slots = self._inputs.given(chosen, now).slots if chosen else None
        for job in chosen:
            found = victims(
                candidates,
                slots.gpus if slots else (),
                job.requirement.gpus,
                lambda gpu, job=job: self._fits(job, gpu),  # type: ignore[misc]
                policy,
                now,
            )
            if found is None:
                continue
            boot_s = max(one.reload_s for one in found.chosen)
            reason = should_evict_for_scripts(waiting, boot_s, policy)
            if reason is not None:
                return Decision(job, found, reason)
        return None

    def _fits(self, job: QueuedJob, gpu: Slot) -> bool:
        return reject_code(job.requirement, gpu, self._policy, job.id) is None

    def _evict(self, decision: Decision, now: datetime) -> None:
        with self._guard():
            for one in decision.found.chosen:
                effects.evict(one.instance.id, decision.job.id, decision.reason, now)
            effects.hold_for(decision.job.id, self._host, decision.found.gpu_uuids, now)
