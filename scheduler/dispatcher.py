"""Step: plan the queue and commit the placements; it never touches a process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from monitor import store as monitor_store
from monitor.identity import boot_id
from monitor.stepping import Guard
from monitor.wake import wake
from scheduler import store, transitions
from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob
from scheduler.models import Attempt
from scheduler.plans import Plan, PlanPolicy, Slots
from scheduler.policy import capacity
from scheduler.policy.planning import plan
from scheduler.transitions import Reasons, keys

# Readings of the GPUs come once a second, and an administrator may change a waiting job.
PLAN_AGAIN = timedelta(seconds=0.9)


class Dispatcher:
    """`step(now)` places what fits on `host`; a reason to wait is written only when it changes."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard = guard
        self._host = host
        self._policy = policy
        # The reasons that are stored with each waiting job; read once, when first needed.
        self._told: dict[int, Reasons] | None = None
        self._mark: tuple[int, int | None] = (0, None)
        self._planned_at = datetime.min.replace(tzinfo=UTC)

    def step(self, now: datetime, *, has_room: bool = True) -> list[Attempt]:
        """Returns the attempts that were placed: their rows are committed, nothing has started.

        `has_room`: a job has ended just now. Else, while the queue stays as it is, nothing is
        planned again within PLAN_AGAIN.
        """
        mark = store.queue_mark()
        if mark == self._mark and not has_room and now - self._planned_at < PLAN_AGAIN:
            return []
        self._mark, self._planned_at = mark, now
        return self._plan(now)

    def _plan(self, now: datetime) -> list[Attempt]:
        queue = store.queue()
        if not queue:
            self._told = {}
            return []
        if self._told is None:
            self._told = transitions.told()
        made = plan(queue, self._slots(queue, now), self._policy, now)
        news = self._news(made.blockers)
        if not made.placements and not news:
            return []
        return self._commit(made, news, now)

    def _slots(self, queue: list[QueuedJob], now: datetime) -> Slots:
        """Reading the GPUs is the dear part, and only jobs that want one need it."""
        wants_gpu = any(job.requirement.gpus for job in queue)
        running = Attempt.objects.filter(host=self._host, ended_at=None, job__gpus=0)
        return capacity.slots(
            monitor_store.newest(self._host) if wants_gpu else None,
            monitor_store.open_claims(self._host) if wants_gpu else (),
            self._policy,
            now,
            host=self._host,
            cpu_jobs=running.count(),
        )

    def _commit(
        self, made: Plan, news: Mapping[int, tuple[Blocker, ...]], now: datetime
    ) -> list[Attempt]:
        with self._guard():
            placed = [transitions.place(p, boot_id(), now) for p in made.placements]
            transitions.explain(news)
            wake("live")
        self._told = {job_id: keys(found) for job_id, found in made.blockers.items()}
        return [attempt for attempt in placed if attempt is not None]

    def _news(self, blockers: Mapping[int, tuple[Blocker, ...]]) -> dict[int, tuple[Blocker, ...]]:
        told = self._told or {}
        return {
            job_id: found for job_id, found in blockers.items() if told.get(job_id) != keys(found)
        }
