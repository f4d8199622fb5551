"""Policy: what decides about a job's place in the queue, told in words and as parts of 1."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from monitor.formats import duration
from scheduler.jobs import PRIORITIES, QueuedJob
from scheduler.plans import Slots
from scheduler.policy.ordering import Factor, OrderPolicy, Shares


def order_factors(
    job: QueuedJob, slots: Slots, owners: Iterable[str], policy: OrderPolicy, now: datetime
) -> tuple[Factor, ...]:
    """The parts of a waiting job's order. `owners`: of all that wait.

    Priority comes first whatever the others say; the rest is weighed inside a priority.
    """
    shares = Shares(slots, owners)
    return (_priority(job), _fair(job, shares, policy), _age(job, policy, now))


def _priority(job: QueuedJob) -> Factor:
    word = PRIORITIES[job.priority]
    least, most = min(PRIORITIES), max(PRIORITIES)
    text = f"{job.priority} ({word}); {most} ({PRIORITIES[most]}) is served first"
    return Factor("priority", (job.priority - least) / (most - least), 1.0, text)


def _fair(job: QueuedJob, shares: Shares, policy: OrderPolicy) -> Factor:
    """0.5 is exactly what they should have; more is less than that."""
    have, target = 100 * shares.have(job.owner), 100 * shares.target(job.owner)
    value = min(1.0, max(0.0, 0.5 + shares.deficit(job.owner) / 2))
    text = f"{job.owner} has {have:.0f} % of the machine and should have {target:.0f} %"
    return Factor("fair share", value, policy.fair_weight, text)


def _age(job: QueuedJob, policy: OrderPolicy, now: datetime) -> Factor:
    waited = max(timedelta(), now - job.submitted_at)
    most = timedelta(hours=policy.age_hours)
    counts = duration(most.total_seconds())
    text = f"it has waited {duration(waited.total_seconds())}; up to {counts} counts"
    return Factor("age", min(1.0, waited / most), policy.age_weight, text)
