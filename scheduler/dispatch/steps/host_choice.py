"""Step: the host that keeps GPUs, and the one that preempts, for a job that may run on any host.

Every host may start such a job at once. While it waits, only the host with the earliest forecast
keeps GPUs for it, so that the GPUs of the others serve other jobs. The choice is made again from
time to time, because forecasts change. The first host that can preempt jobs for it does so alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.dispatch.inputs import HostGate
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import Plan
from scheduler.planner.forecast.forecast import Estimate
from scheduler.yields import steps as yield_requests

# A forecast of another host takes tens of milliseconds.
CHOSEN_FOR = timedelta(seconds=30)
# By then every host has planned a new job, and one with free GPUs has started it.
PLANNED_BY_ALL = timedelta(seconds=5)

Forecast = Callable[[str, datetime], Mapping[int, Estimate]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen host of a job; None: no host has a forecast."""

    host: str | None
    at: datetime


def earliest(starts: Mapping[str, datetime | None]) -> str | None:
    """The host with the earliest start; None: no start is known."""
    known = [(at, host) for host, at in starts.items() if at is not None]
    return min(known)[1] if known else None


class HostChoice:
    """`applied` to each plan of `host`; `left_to_others` belongs into the next one."""

    def __init__(
        self, host: str, gate: HostGate, forecast: Forecast, isolation: ItemIsolation
    ) -> None:
        self._host = host
        self._isolation = isolation
        self._gate = gate
        self._forecast = forecast
        self._choices: dict[int, Choice] = {}

    def left_to_others(self, now: datetime) -> frozenset[int]:
        """The jobs for which another host reserves GPUs."""
        self._choices = {
            job: choice for job, choice in self._choices.items() if now - choice.at < CHOSEN_FOR
        }
        return frozenset(job for job, choice in self._choices.items() if self._is_left(choice))

    def applied(self, made: Plan, queue: Iterable[QueuedJob], now: datetime) -> Plan:
        """The plan without preemptions for jobs that another host may start or preempts for."""
        if made.reserved_for is None and not made.preemptions:
            return made
        jobs = {made.reserved_for, *(request.for_job for request in made.preemptions)}
        for_any = {job.id: job for job in queue if job.id in jobs and not job.host}
        takers = self._gate.takers(now) if for_any else []
        if not set(takers) - {self._host}:
            return made
        for job in for_any.keys() - self._choices.keys():
            self._choices[job] = self._choose(job, {self._host, *takers}, now)
        if not made.preemptions:
            return made
        new = {id_ for id_, job in for_any.items() if now - job.submitted_at < PLANNED_BY_ALL}
        skipped = new | yield_requests.preempting_elsewhere(for_any.keys(), self._host, now)
        kept = tuple(request for request in made.preemptions if request.for_job not in skipped)
        return replace(made, preemptions=kept)

    def _choose(self, job: int, hosts: Iterable[str], now: datetime) -> Choice:
        starts: dict[str, datetime | None] = {}

        def add(host: str) -> None:
            estimate = self._forecast(host, now).get(job)
            starts[host] = None if estimate is None else estimate.p50

        for host in hosts:
            self._isolation.attempt(f"forecast of host {host}", partial(add, host), now)
        return Choice(earliest(starts), now)

    def _is_left(self, choice: Choice) -> bool:
        return choice.host not in (None, self._host)
