"""Step: which host starts a job that may run on any host.

Each host publishes its offers for such jobs in a row: when it would start them, and on which kind
of GPU. The earliest start wins. Among equal starts the GPU ranks decide, as within a host: the
strongest for urgent and long jobs, the weakest for background jobs; then the fewest jobs beside it.

A host that could start a job at once leaves it to a better host, for a short time at most. While a
job waits, only the host with the best offer keeps GPUs for it, so that the GPUs of the others serve
other jobs. The first host that can preempt jobs for it does so alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf

from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.inputs import HostGate, PlanInput
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import Placement, Plan, Slot
from scheduler.models import HostForecast
from scheduler.queue.planner.forecast.forecast import Estimate
from scheduler.queue.planner.placement import strength

Forecast = Callable[[str, datetime], Mapping[int, Estimate]]
# A forecast takes tens of milliseconds.
FORECAST_FOR = timedelta(seconds=30)
# Expected starts within this time count as equal.
EQUAL_S = 30
# Jobs that wait, in the order of their expected starts.
MOST_PUBLISHED = 50
# By then every host has planned a new job.
PLANNED_BY_ALL = timedelta(seconds=5)
# A host plans once a second while jobs wait. Offers of one that does not are not waited for.
HEARD_WITHIN, FRESH_FOR, MUTE_FOR = (timedelta(seconds=s) for s in (2, 5, 60))
# A job is left to a better host for so long; it may have failed to start it.
LEFT_FOR = timedelta(seconds=5)
NOW_S = 0.0
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """A host's start of a job; the smallest offer is the best.

    start_s: Unix time, NOW_S = at once, inf = unknown. weakness: what the job's preference between
    kinds of GPUs says against these GPUs. crowd: jobs and other holders on them.
    """

    start_s: float
    weakness: float
    crowd: int
    host: str

    @property
    def row(self) -> list[float | None]:
        return [None if self.start_s == inf else self.start_s, self.weakness, self.crowd]


@dataclass(frozen=True, slots=True)
class Published:
    """The offers of a host by job, as of its plan at `at`."""

    at: datetime
    offers: Mapping[int, Offer] = field(default_factory=dict)


class OfferMaker:
    """The offers of one host."""

    def __init__(self, host: str, gpus: Collection[Slot]) -> None:
        self._host = host
        self._gpus = {gpu.gpu_uuid: gpu for gpu in gpus}
        self._placed: Counter[str] = Counter()

    def at_once(self, job: QueuedJob, placement: Placement) -> Offer:
        """Call it in the order of the plan: each placement counts for the next one."""
        crowd = sum(self._crowd(uuid) for uuid in placement.gpu_uuids)
        self._placed.update(placement.gpu_uuids)
        return Offer(NOW_S, self._weakness(job, placement.gpu_uuids), crowd, self._host)

    def later(self, job: QueuedJob, estimate: Estimate | None) -> Offer:
        if estimate is None or estimate.p50 is None:
            return Offer(inf, 0.0, 0, self._host)
        start_s = estimate.p50.timestamp() // EQUAL_S * EQUAL_S
        return Offer(start_s, self._weakness(job, estimate.gpu_uuids), 0, self._host)

    def _weakness(self, job: QueuedJob, uuids: Collection[str]) -> float:
        powers = [self._gpus[uuid].power or 0.0 for uuid in uuids if uuid in self._gpus]
        return -strength(job.priority, job.lasts) * min(powers, default=0.0)

    def _crowd(self, uuid: str) -> int:
        gpu = self._gpus.get(uuid)
        beside = 0 if gpu is None else len(gpu.jobs) + len(gpu.foreign)
        return beside + self._placed[uuid]


class HostChoice:
    """`applied` to each plan of `host`; `left_to_others` belongs into the next one.

    asks_again: a job was left to another host, so that the next plan is due soon.
    """

    def __init__(
        self, host: str, guard: Guard, gate: HostGate, forecast: Forecast, isolation: ItemIsolation
    ) -> None:
        self._host, self._guard = host, guard
        self._isolation = isolation
        self._gate = gate
        self._forecast = forecast
        self.left_to_others: frozenset[int] = frozenset()
        self.asks_again = False
        self._last_published: tuple[Mapping[int, Offer], Collection[int]] | None = None
        self._estimates: Mapping[int, Estimate] = {}
        self._estimated_at: datetime | None = None
        # Since when this host could start a job, and since when it leaves it to a better host.
        self._able_since: dict[int, datetime] = {}
        self._left_since: dict[int, datetime] = {}
        self._mute: dict[str, datetime] = {}

    def applied(self, made: Plan, given: PlanInput, now: datetime) -> Plan:
        """The plan without starts and preemptions that another host does better."""
        self.left_to_others, self.asks_again = frozenset(), False
        jobs = {job.id: job for job in given.queue if _is_for_any(job)}
        others = set(self._gate.takers(now)) - {self._host} if jobs else set()
        if not others:
            return made
        mine = self._offers(made, given, jobs, now)
        self._publish(mine, jobs.keys(), now)
        theirs = self._theirs(others, now)
        self._able_since = {
            job: self._able_since.get(job, now) for job, o in mine.items() if o.start_s == NOW_S
        }
        left = {job for job in self._able_since if self._is_left(job, mine[job], theirs, now)}
        self._left_since = {
            job: self._left_since.get(job, now)
            for job in self._able_since.keys() & (left | self._left_since.keys())
        }
        self.asks_again = bool(left)
        fresh = [each for each in theirs.values() if now - each.at < FRESH_FOR]
        self.left_to_others = frozenset(
            job for job in mine.keys() - self._able_since if _is_better(fresh, job, mine[job])
        )
        placements = tuple(each for each in made.placements if each.job_id not in left)
        return self._without_preemptions(replace(made, placements=placements), jobs, now)

    def _offers(
        self, made: Plan, given: PlanInput, jobs: Mapping[int, QueuedJob], now: datetime
    ) -> dict[int, Offer]:
        """The starts of this plan, and the expected starts if GPUs are kept for a job."""
        maker = OfferMaker(self._host, given.slots.gpus)
        offers = {
            placement.job_id: maker.at_once(jobs[placement.job_id], placement)
            for placement in made.placements
            if placement.job_id in jobs
        }
        head = made.reserved_for
        if head is not None and head in jobs:
            estimates = self._estimated(head, now)
            waiting = [id_ for id_ in estimates if id_ in jobs and id_ not in offers]
            for id_ in {head, *waiting[:MOST_PUBLISHED]}:
                offers[id_] = maker.later(jobs[id_], estimates.get(id_))
        return offers

    def _estimated(self, head: int, now: datetime) -> Mapping[int, Estimate]:
        """By expected start. Made again from time to time, because forecasts change."""
        at = self._estimated_at
        if at is None or now - at >= FORECAST_FOR or head not in self._estimates:
            self._estimates, self._estimated_at = {}, now
            name = f"forecast of host {self._host}"
            self._isolation.attempt(name, lambda: self._estimate(now), now)
        return self._estimates

    def _estimate(self, now: datetime) -> None:
        known = self._forecast(self._host, now).items()
        self._estimates = dict(sorted(known, key=lambda item: (item[1].p50 is None, item[1].p50)))

    def _publish(self, mine: Mapping[int, Offer], jobs: Collection[int], now: datetime) -> None:
        """Other hosts are woken if there is news: they may wait for it."""
        published = (mine, frozenset(jobs))
        row = HostForecast(host=self._host, at=now, offers={j: o.row for j, o in mine.items()})
        with self._guard():
            HostForecast.objects.bulk_create(
                [row], update_conflicts=True, unique_fields=["host"], update_fields=["at", "offers"]
            )
            if published != self._last_published:
                wake("scheduler")
        self._last_published = published

    def _theirs(self, hosts: Collection[str], now: datetime) -> dict[str, Published]:
        """Of each host; one that has published nothing that can be read did so long ago."""
        published = dict.fromkeys(hosts, Published(NEVER))

        def take(row: HostForecast) -> None:
            published[row.host] = _read(row)

        for row in HostForecast.objects.filter(pk__in=hosts):
            self._isolation.attempt(f"offers of host {row.host}", partial(take, row), now)
        return published

    def _is_left(
        self, job: int, mine: Offer, theirs: Mapping[str, Published], now: datetime
    ) -> bool:
        """Whether a job that could start here is left to another host in this plan."""
        if now - self._left_since.get(job, now) >= LEFT_FOR:
            return False
        since, heard = self._able_since[job], []
        for host, each in theirs.items():
            if each.at >= since or (job in each.offers and now - each.at < FRESH_FOR):
                self._mute.pop(host, None)
                heard.append(each)
            elif now - since >= HEARD_WITHIN:
                self._mute[host] = now
            elif now - self._mute.get(host, now - MUTE_FOR) >= MUTE_FOR:
                # It may start the job at once too, and is just planning.
                return True
        return _is_better(heard, job, mine)

    def _without_preemptions(
        self, made: Plan, jobs: Mapping[int, QueuedJob], now: datetime
    ) -> Plan:
        """Without those for jobs that another host may start or preempts for."""
        asks = (request.for_job for request in made.preemptions)
        wanted = {id_ for id_ in asks if id_ is not None and id_ in jobs}
        if not wanted:
            return made
        new = {id_ for id_ in wanted if now - jobs[id_].submitted_at < PLANNED_BY_ALL}
        skipped = new | yield_requests.preempting_elsewhere(wanted, self._host, now)
        kept = tuple(request for request in made.preemptions if request.for_job not in skipped)
        return replace(made, preemptions=kept)


def _is_for_any(job: QueuedJob) -> bool:
    """Whether hosts are compared for it. Jobs without a GPU start where there is a place first, and
    a named GPU is on one host."""
    wanted = job.requirement
    return not (job.host or wanted.gpu_uuid or job.waits) and bool(wanted.gpus)


def _is_better(hosts: Collection[Published], job: int, mine: Offer) -> bool:
    return any(job in each.offers and each.offers[job] < mine for each in hosts)


def _read(row: HostForecast) -> Published:
    offers = {
        int(job): Offer(inf if at is None else float(at), float(weakness), crowd, row.host)
        for job, (at, weakness, crowd) in row.offers.items()
    }
    return Published(row.at, offers)
