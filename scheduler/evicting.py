"""Step: jobs make way for whoever uses their GPU for themselves; it never touches a process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from monitor import policies
from monitor import store as monitor_store
from monitor.policy.presence_policy import PresencePolicy
from monitor.stepping import Guard
from scheduler import job_facts, yielding
from scheduler.plans import Yield
from scheduler.policy import giving_way

# Snapshots come once a second.
LOOK_AGAIN = timedelta(seconds=0.9)


class Evictor:
    """`step(now)` asks jobs on `host` to yield; one cheap question while nobody is at a GPU."""

    def __init__(self, guard: Guard, host: str) -> None:
        self._guard = guard
        self._host = host
        self._looked_at = datetime.min.replace(tzinfo=UTC)

    def step(self, now: datetime) -> list[Yield]:
        """Returns who was asked now; each job is asked once."""
        if timedelta() <= now - self._looked_at < LOOK_AGAIN:
            return []
        self._looked_at = now
        if not monitor_store.owned(self._host):
            return []
        wishes = self._wishes(now)
        if not wishes:
            return []
        with self._guard():
            return [wish for wish in wishes if yielding.ask(wish, now)]

    def _wishes(self, now: datetime) -> tuple[Yield, ...]:
        snapshot = monitor_store.newest(self._host)
        running = job_facts.running(self._host, lambda _owner, _name: None)
        if snapshot is None or now - snapshot.at > giving_way.STALE_AFTER:
            return ()
        indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        policy = policies.current(PresencePolicy)
        return giving_way.evictions(snapshot.owners, running, indices, policy)
