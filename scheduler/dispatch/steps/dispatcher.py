"""Step: plan the queue and commit the placements; it never touches a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any

from django.db.models import Case, F, TextField, Value, When
from django.db.models.functions import Concat, Right
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.gpus.rows import snapshot as snapshots
from monitor.runtime.policy import Guard
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.rows.database import keep_commits_synced
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.inputs import HostGate, PlanInput, PlanInputs
from scheduler.dispatch.steps import preview
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.facts.blockers import Blocker, Key, from_row
from scheduler.facts.jobs import JobState, QueuedJob
from scheduler.facts.plans import Placement, Plan, PlanPolicy, Slot
from scheduler.jobs.rows import durations, transitions
from scheduler.jobs.rows.durations import UNCLEAR, QueueMark
from scheduler.models import Attempt, HostForecast, Job
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner.blockers import body
from scheduler.queue.planner.forecasts import Estimate
from scheduler.queue.planner.placement import strength
from scheduler.queue.planner.plan import plan

# Which host starts a job that may run on any host.
#
# Each host publishes its offers for such jobs in a row: when it would start them, and on which
# kind of GPU. The earliest start wins. Among equal starts the GPU ranks decide, as within a host:
# the strongest for urgent and long jobs, the weakest for background jobs; then the fewest jobs
# beside it.
#
# A host that could start a job at once leaves it to a better host, for a short time at most.
# While a job waits, only the host with the best offer keeps GPUs for it, so that the GPUs of the
# others serve other jobs. The first host that can preempt jobs for it does so alone.


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


class Offer(Struct, frozen=True, order=True):
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


class Published(Struct, frozen=True):
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


# The key of each reason, and its dimensions without figures.
Reasons = tuple[tuple[Key, Key], ...]
# Changed figures alone are not stored again before this time has passed.
FIGURES_STORED_FOR = timedelta(hours=1)


class StoredReasons:
    """The reasons stored with each waiting job, and when they were stored."""

    def __init__(self, stored: Mapping[int, Reasons], now: datetime) -> None:
        self._stored = {id_: (key, now) for id_, key in stored.items()}

    @classmethod
    def load(cls, now: datetime) -> StoredReasons:
        """Read the rows; `now` stands for an unknown time."""
        stored = cls({}, now)
        rows = Job.objects.filter(state=JobState.QUEUED.value)
        stored._stored = {
            id_: (_stored(blockers), at or now)
            for id_, blockers, at in rows.values_list("id", "blockers", "blockers_at")
        }
        return stored

    def news(self, keys: Mapping[int, Reasons], now: datetime) -> list[int]:
        """The jobs whose reasons must be stored."""
        return [id_ for id_, key in keys.items() if self._is_news(id_, key, now)]

    def _is_news(self, job_id: int, key: Reasons, now: datetime) -> bool:
        old, at = self._stored.get(job_id, (None, now))
        if old is None or old == key:
            return old is None
        return now - at >= FIGURES_STORED_FOR or _without_figures(old) != _without_figures(key)

    def keep(self, keys: Mapping[int, Reasons], news: Collection[int], now: datetime) -> None:
        """Record that these were stored, and forget jobs that no longer wait."""
        self._stored = {
            id_: (key, now) if id_ in news else self._stored[id_] for id_, key in keys.items()
        }


def _without_figures(reasons: Reasons) -> frozenset[Key]:
    """The dimensions as a set, because figures decide their order."""
    return frozenset(dimensions for _, dimensions in reasons)


def reason_keys(blockers: Iterable[Blocker]) -> Reasons:
    """Equal for equal reasons to wait."""
    return tuple((blocker.key, blocker.dimensions) for blocker in blockers)


def keys_by_job(blockers: Mapping[int, tuple[Blocker, ...]]) -> dict[int, Reasons]:
    """reason_keys() of each job. Most jobs share theirs."""
    shared: dict[int, Reasons] = {}
    keys = {}
    for job_id, why in blockers.items():
        key = shared.get(id(why))
        if key is None:
            key = shared[id(why)] = reason_keys(why)
        keys[job_id] = key
    return keys


def _stored(rows: Sequence[Mapping[str, Any]]) -> Reasons:
    try:
        return reason_keys(from_row({**row, **row.get("facts", {})}) for row in rows)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def group_by_reasons(
    blockers: Mapping[int, Sequence[Blocker]],
) -> list[tuple[list[int], tuple[Blocker, ...]]]:
    """Jobs grouped by equal reasons; a group is written in one statement."""
    same: dict[tuple[Blocker, ...], list[int]] = {}
    for job_id, reasons in blockers.items():
        same.setdefault(tuple(reasons), []).append(job_id)
    return [(ids, reasons) for reasons, ids in same.items()]


def _row(blocker: Blocker) -> dict[str, Any]:
    """The blocker as in REST answers, plus the facts that REST words."""
    return body(blocker) | {"facts": {"holder": blocker.holder, "available": blocker.available}}


def store(ids: Sequence[int], reasons: Iterable[Blocker], now: datetime) -> int:
    """Store the reasons of these jobs; returns the number of changed rows.

    The same statement adds a change of the main blocker to each job's log.
    """
    rows = [_row(reason) for reason in reasons]
    main = stored_blockers.first(stored_blockers.reasons(rows))
    log = _logged(main.code, now) if main else F("blocker_log")
    return sum(
        Job.objects.filter(pk__in=ids[at : at + 500], state=JobState.QUEUED.value).update(
            blockers=rows, blockers_at=now, blocker_log=log
        )
        for at in range(0, len(ids), 500)
    )


def _logged(code: str, now: datetime) -> Case:
    """Each row's log, with this code at its end."""
    longer = Concat(
        F("blocker_log"), Value(stored_blockers.log_entry(code, now)), output_field=TextField()
    )
    is_there = When(blocker_log__endswith=stored_blockers.log_ending(code), then=F("blocker_log"))
    return Case(
        is_there, default=Right(longer, stored_blockers.LONGEST_LOG), output_field=TextField()
    )


# Snapshots are written once a second, and an operator may change a waiting job.
PLAN_AGAIN = timedelta(seconds=0.9)
# Attempts to commit if another host commits first; then the next step plans.
TRIES = 3
# Long, because finding the job that makes planning fail takes several plans.
LONGEST_RETRY = timedelta(minutes=1)


class Dispatcher:
    """`step(now)` places jobs on `host` and stores changed reasons to wait."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard, self._host = guard, host
        self._unreleased = 0
        self._isolation = ItemIsolation(host, "dispatcher", guard, LONGEST_RETRY)
        self._supply = PlanInputs(host, policy, self._isolation)
        self._choice = HostChoice(
            host, guard, self._supply.gate, preview.estimates_on, self._isolation
        )
        # Read from the rows when first needed.
        self._reported: StoredReasons | None = None
        self._mark: QueueMark | None = None
        self._planned_at = datetime.min.replace(tzinfo=UTC)

    def step(self, now: datetime, *, has_room: bool = True) -> list[Attempt]:
        """Returns the placed attempts: their rows are committed, nothing has started.

        has_room: a job has just ended. Otherwise an unchanged queue is not planned again within
        PLAN_AGAIN, unless memory of an ended job has become free.
        """
        mark = durations.queue_mark()
        has_room = self._has_freed_memory() or has_room
        if mark == self._mark and not has_room and now - self._planned_at < PLAN_AGAIN:
            return []
        self._mark, self._planned_at = mark, now
        for _ in range(TRIES):
            placed = self._plan(now)
            if placed is not None:
                # The changes of this plan are no reason for another plan.
                started = [attempt.job_id for attempt in placed]
                self._mark = durations.mark_without(self._mark, started)
                if self._choice.asks_again:
                    self._mark = None
                return placed
            self._mark = durations.queue_mark()
        return []

    def _has_freed_memory(self) -> bool:
        """Whether fewer ended jobs may hold memory than at the last pass."""
        before, self._unreleased = self._unreleased, snapshots.count_unreleased(self._host)
        return self._unreleased < before

    def _plan(self, now: datetime) -> list[Attempt] | None:
        """None: another host placed a job meanwhile, so nothing was committed."""
        waits = self._mark != durations.EMPTY_QUEUE_MARK
        queue = self._supply.queue(now, self._mark) if waits else []
        if not queue and not self._supply.windows(now):
            self._reported = StoredReasons({}, now)
            return []
        if self._reported is None:
            self._reported = StoredReasons.load(now)
        turn = transitions.current_version()
        given = self._supply.given(queue, now)
        if left := self._choice.left_to_others:
            given = replace(given, slots=replace(given.slots, left_to_others=left))
        made = self._planned(given, now)
        made = self._choice.applied(made, given, now)
        keys = keys_by_job(made.blockers)
        news = {id_: made.blockers[id_] for id_ in self._reported.news(keys, now)}
        yields = [*made.evictions, *made.preemptions]
        placed: list[Attempt] | None = []
        if made.placements or news or yields:
            placed = self._commit(made, news, turn, now)
        if placed is not None:
            self._reported.keep(keys, news, now)
        return placed

    def _planned(self, given: PlanInput, now: datetime) -> Plan:
        """The plan, without jobs that make planning fail; these get the blocker JobUnclear."""

        def planned(jobs: Sequence[QueuedJob]) -> Plan:
            return plan(jobs, given.slots, given.policy, now, given.rules)

        if not self._isolation.has_faults(now):
            # The usual case; otherwise the failing job is searched below.
            with suppress(Exception):
                return planned(given.queue)
        jobs = [job for job in given.queue if not self._isolation.is_delayed(_name(job), now)]
        broken = failing(jobs, planned)
        left_out = {job.id for job, _ in broken}
        jobs = [job for job in jobs if job.id not in left_out]
        made = planned(jobs)
        for job in jobs:
            self._isolation.worked(_name(job))
        for job, error in broken:
            self._isolation.failed(_name(job), error, now)
        here = durations.waiting_ids() - self._supply.gate.elsewhere
        unplanned = here - {job.id for job in jobs}
        return replace(made, blockers=made.blockers | dict.fromkeys(unplanned, (UNCLEAR,)))

    def _commit(
        self, made: Plan, news: Mapping[int, tuple[Blocker, ...]], turn: int, now: datetime
    ) -> list[Attempt] | None:
        each = self._isolation.each
        # Reasons alone need not survive a power cut: they are found again.
        keep_commits_synced(on=bool(made.placements or made.evictions or made.preemptions))
        with self._guard():
            # Another host must not preempt for the same job.
            is_change = bool(made.placements or made.preemptions)
            if is_change and self._supply.gate.is_closed():
                return None
            if not transitions.commit_if_current(turn, has_placements=is_change):
                return None
            placed = each(
                made.placements,
                lambda placement: f"placement of job {placement.job_id}",
                lambda placement: transitions.place(placement, boot_id(), now),
                now,
            )
            each(
                (*made.evictions, *made.preemptions),
                lambda wish: f"yield request to job {wish.job_id}",
                lambda wish: yield_requests.ask(wish, now),
                now,
            )
            each(
                group_by_reasons(news),
                lambda same: f"reasons of job {same[0][0]}",
                lambda same: store(*same, now),
                now,
            )
            wake("live")
        return [attempt for _, attempt in placed if attempt is not None]


def failing(
    jobs: Sequence[QueuedJob], planned: Callable[[Sequence[QueuedJob]], Plan]
) -> list[tuple[QueuedJob, Exception]]:
    """Jobs that cannot be planned even alone, with their errors; found by bisection."""
    try:
        planned(jobs)
    except Exception as error:
        if len(jobs) == 1:
            return [(jobs[0], error)]
        half = len(jobs) // 2
        return [*failing(jobs[:half], planned), *failing(jobs[half:], planned)] if half else []
    return []


def _name(job: QueuedJob) -> str:
    return f"planning of job {job.id}"
