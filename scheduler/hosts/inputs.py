"""Input of a host's planner: the waiting jobs that may start there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.facts.hosts import HostFact
from monitor.hosts import policy, rows
from monitor.runtime.facts import TimedCache
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import QueuedJob

READ_EVERY = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Drained:
    """The host takes no jobs; has_others: another host in contact does."""

    blocker: Blocker
    has_others: bool


class HostGate:
    """Leaves out jobs of other hosts, and blocks all while the host is drained."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._drained: TimedCache[Drained | None] = TimedCache(
            lambda now: drained(host, now), READ_EVERY
        )
        # The jobs that were left out at the last call.
        self.elsewhere: frozenset[int] = frozenset()

    def of_queue(self, jobs: list[QueuedJob], now: datetime) -> list[QueuedJob]:
        """A drained host reports its reason only where no other host takes the job."""
        state = self._drained(now)
        own = ("", self._host) if state is None or not state.has_others else (self._host,)
        here = [job for job in jobs if job.host in own]
        if len(here) < len(jobs):
            left_out = {job.id for job in jobs} - {job.id for job in here}
            self.elsewhere = frozenset(left_out)
        else:
            self.elsewhere = frozenset()
        if state is None:
            return here
        return [replace(job, waits=(*job.waits, state.blocker)) for job in here]


def drained(host: str, now: datetime) -> Drained | None:
    """None: the host takes jobs."""
    fact = rows.find(host)
    if fact is None or policy.takes_jobs(fact):
        return None
    others = [other for other in rows.all_hosts() if other.name != host]
    takers = [other for other in others if policy.takes_jobs(other) and _is_there(other, now)]
    blocker = Blocker(
        code=BlockerCode.HOST_DRAINED,
        tier=Tier.MACHINE,
        holder=fact.changed_by,
        details=details(host=host, reason=fact.reason),
    )
    return Drained(blocker, bool(takers))


def _is_there(host: HostFact, now: datetime) -> bool:
    return host.seen_at is not None and policy.silent_since(host, now) is None
