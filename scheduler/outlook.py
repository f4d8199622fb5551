"""Rows -> facts: when waiting jobs may start, what a new one would have to wait for, what decides.

For pages and REST: loaded as the scheduler does, and kept for a moment, as many look at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from django.conf import settings

from monitor.models import LatestSnapshot
from scheduler import store, supply, why
from scheduler.durations import Usual
from scheduler.jobs import JobState, NewJob, QueuedJob
from scheduler.models import Job
from scheduler.policy import forecast, waits
from scheduler.policy.factors import order_factors
from scheduler.policy.forecast import Estimate, WhatIf
from scheduler.policy.ordering import Factor
from scheduler.supply import Given, Supply

KEPT = timedelta(seconds=2)
# A job that nobody has submitted comes after all that somebody has.
NEW_ID = 2**62


@dataclass(slots=True)
class Outlook:
    """What one host's planner sees, for at most KEPT."""

    supply: Supply
    lock: Lock = field(default_factory=Lock)
    given: Given | None = None
    at: datetime | None = None
    estimates: Mapping[int, Estimate] | None = None

    def look(self, now: datetime) -> Given:
        """Load anew what is too old."""
        if self.given is None or self.at is None or not timedelta() <= now - self.at < KEPT:
            queue = self.supply.queue(now, store.queue_mark())
            # Somebody may ask about a GPU though nobody waits for one.
            wish = _queued(NewJob(command="true"), "", now, None)
            self.given = replace(self.supply.given([*queue, wish], now), queue=queue)
            self.at, self.estimates = now, None
        return self.given

    def estimate_all(self, now: datetime) -> Mapping[int, Estimate]:
        given = self.look(now)
        if self.estimates is None:
            self.estimates = forecast.forecast(
                given.queue, given.slots, given.policy, now, given.rules
            )
        return self.estimates


_known: dict[str, Outlook] = {}


def _of(host: str) -> Outlook:
    if host not in _known:
        _known[host] = Outlook(Supply(host, supply.plan_policy()))
    return _known[host]


def forget() -> None:
    """Look anew at once."""
    _known.clear()


def hosts() -> list[str]:
    """The machines that could run a job: those whose GPUs have been read, else this one."""
    known = LatestSnapshot.objects.order_by("host").values_list("host", flat=True)
    return list(known) or [settings.CONFIG.node]


def estimates(now: datetime) -> Mapping[int, Estimate]:
    """For each waiting job, where it may start first."""
    found: dict[int, Estimate] = {}
    for host in hosts():
        outlook = _of(host)
        with outlook.lock:
            for job_id, estimate in outlook.estimate_all(now).items():
                found[job_id] = _sooner(found.get(job_id), estimate)
    return found


def _sooner(one: Estimate | None, other: Estimate) -> Estimate:
    if one is None or one.p50 is None:
        return other
    return one if other.p50 is None or one.p50 <= other.p50 else other


@dataclass(frozen=True, slots=True)
class Prospect:
    """Why a job waits, when it may start, and what decides about its place."""

    estimate: Estimate | None = None
    factors: tuple[Factor, ...] = ()
    reasons: tuple[dict[str, Any], ...] = ()


def of(job: Job, now: datetime) -> Prospect:
    """Of a job that does not wait, nothing."""
    if job.state != JobState.QUEUED.value:
        return Prospect()
    reasons = tuple(why.ahead(job.blockers, now))
    return Prospect(estimates(now).get(job.pk), factors(job, hosts()[0], now), reasons)


def what_if(new: NewJob, owner: str, now: datetime) -> WhatIf:
    """What would become of such a job now, on the machine that is best for it; submits nothing."""
    answers = [_what_if(new, owner, host, now) for host in hosts()]
    return min(answers, key=_goodness)


def _goodness(answer: WhatIf) -> tuple[bool, bool, float]:
    p50 = answer.estimate.p50
    return (not answer.starts_now, p50 is None, p50.timestamp() if p50 else 0.0)


def _what_if(new: NewJob, owner: str, host: str, now: datetime) -> WhatIf:
    outlook = _of(host)
    with outlook.lock:
        given = outlook.look(now)
        usual = outlook.supply.durations(owner, new.label)
        job = _queued(new, owner, now, usual)
        return forecast.what_if(job, given.queue, given.slots, given.policy, now, given.rules)


def factors(job: Job, host: str, now: datetime) -> tuple[Factor, ...]:
    """What decides about a waiting job's place; () = it does not wait."""
    outlook = _of(host)
    with outlook.lock:
        given = outlook.look(now)
    found = next((queued for queued in given.queue if queued.id == job.pk), None)
    if found is None:
        return ()
    owners = {queued.owner for queued in given.queue}
    return order_factors(found, given.slots, owners, given.rules.order, now)


def _queued(new: NewJob, owner: str, now: datetime, usual: Usual | None) -> QueuedJob:
    """As the queue would have it, with what it is said to wait for by itself."""
    condition = waits.Condition(
        id=NEW_ID,
        begin_at=new.begin_at,
        pending=tuple((dependency.on, dependency.after) for dependency in new.after),
    )
    return QueuedJob(
        id=NEW_ID,
        owner=owner,
        priority=new.priority,
        submitted_at=now,
        requirement=new.requirement,
        time_limit=new.time_limit,
        estimate=new.estimate,
        usual=None if usual is None else usual.p90,
        typical=None if usual is None else usual.p50,
        preemptible=new.manners.preemptible,
        waits=waits.waits([condition], {}, now, settings.TIME_ZONE).get(NEW_ID, ()),
    )
