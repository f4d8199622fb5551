"""Step: plan the queue and commit the placements; it never touches a process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from monitor.identity import boot_id
from monitor.stepping import Guard
from monitor.wake import wake
from scheduler import reasons, store, transitions, turns, yielding
from scheduler.blockers import Blocker
from scheduler.models import Attempt
from scheduler.plans import Plan, PlanPolicy
from scheduler.policy.planning import plan
from scheduler.reasons import Told, keys_of
from scheduler.supply import Supply

# Readings of the GPUs come once a second, and an administrator may change a waiting job.
PLAN_AGAIN = timedelta(seconds=0.9)
# So often another host may come first; then the next step plans.
TRIES = 3


class Dispatcher:
    """`step(now)` places what fits on `host`; a reason to wait is written only when it changes."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard = guard
        self._supply = Supply(host, policy)
        # The reasons that are stored with each waiting job; read once, when first needed.
        self._told: Told | None = None
        self._mark: tuple[object, ...] = ()
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
        for _ in range(TRIES):
            placed = self._plan(now)
            if placed is not None:
                return placed
            self._mark = store.queue_mark()
        return []

    def _plan(self, now: datetime) -> list[Attempt] | None:
        """None = nothing was kept, as another host has placed something meanwhile."""
        waits = self._mark != store.NOBODY_WAITS
        queue = self._supply.queue(now, self._mark) if waits else []
        if not queue and not self._supply.windows(now):
            self._told = Told({}, now)
            return []
        if self._told is None:
            self._told = Told(reasons.told(), now)
        turn = turns.now()
        given = self._supply.given(queue, now)
        made = plan(queue, given.slots, given.policy, now, given.rules)
        told = keys_of(made.blockers)
        news = {id_: made.blockers[id_] for id_ in self._told.news(told, now)}
        wishes = [*made.evictions, *made.preemptions]
        placed: list[Attempt] | None = []
        if made.placements or news or wishes:
            placed = self._commit(made, news, turn, now)
        if placed is not None:
            self._told.keep(told, news, now)
        return placed

    def _commit(
        self, made: Plan, news: Mapping[int, tuple[Blocker, ...]], turn: int, now: datetime
    ) -> list[Attempt] | None:
        with self._guard():
            if not turns.take(turn, places=bool(made.placements)):
                return None
            placed = [transitions.place(p, boot_id(), now) for p in made.placements]
            for wish in (*made.evictions, *made.preemptions):
                yielding.ask(wish, now)
            reasons.explain(news)
            wake("live")
        return [attempt for attempt in placed if attempt is not None]
