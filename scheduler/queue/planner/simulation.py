"""Policy: the planner run forward, from one expected event to the next.

An event is the expected end of a job, the end of a blocker (a begin time, a backoff, a pause, the
reset of a budget), or the start or end of a time window. At each event, jobs are placed by the
parts of the planner: gates, service order, placement, the backfill reservation and preemption.
See forecast_classes.py for the waiting jobs.
"""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.plans import LoadedModels, PlanPolicy, RunningJob, Slot, Slots, Yield
from scheduler.queue.planner import gates, preemption
from scheduler.queue.planner.capacity import RAMP
from scheduler.queue.planner.forecast_classes import (
    HORIZON,
    SHORTEST,
    JobClass,
    Kind,
    Queue,
    WaitingJobs,
    end_of,
    lasts,
)
from scheduler.queue.planner.gates import PassState, PlannerThresholds
from scheduler.queue.planner.matching import reject_code
from scheduler.queue.planner.order import ABOVE, Place, Places, Shares, overdue
from scheduler.queue.planner.plan import MOST_CONSIDERED, GpuPool, Pass, RequestGroup
from scheduler.queue.planner.preemption import COOL_DOWN, KEEP_FREED

# Events within this time are one.
TOGETHER = timedelta(seconds=1)
# From a yield request to the time when the GPU is free, where no deadline is known.
LEAVES_AFTER = timedelta(seconds=10)
DAY = timedelta(days=1)
# Time windows and budgets repeat within a week: what has not started by then never will.
REPEATS = timedelta(days=8)
# A pass with time windows costs much more, so fewer are made.
MOST_PASSES = 120


# Its time, a number, whether it is periodic, and what happens.
Event = tuple[datetime, int, bool, Callable[..., None], tuple[Any, ...]]


class _Run(Struct):
    """A job on its GPUs. queued: as it waited, None = it ran before the simulation.

    paid: what of its longest time counts towards the budget; since: from when on.
    """

    job: RunningJob
    queued: QueuedJob | None
    paid: timedelta | None
    since: datetime
    is_requeued: bool = False


class Simulation:
    """With typical run times, or with long ones if `late`.

    made: the pass of the planner at `now`. queue: the jobs that it did not place, by class.

    starts, places, ends: of each job that gets a place; ends also of running jobs. A missing job
    has no known time. stopped_at: when enough jobs had started.
    """

    def __init__(
        self,
        queue: Queue,
        slots: Slots,
        policy: PlanPolicy,
        rules: PlannerThresholds,
        now: datetime,
        made: Pass,
        *,
        late: bool,
    ) -> None:
        self.starts: dict[int, datetime] = {}
        self.places: dict[int, tuple[str, ...]] = {}
        self.ends: dict[int, datetime] = {}
        self.stopped_at: datetime | None = None
        self._slots, self._policy, self._rules, self._late = slots, policy, rules, late
        self._began = self._now = now
        self._state = PassState(slots, policy, rules, now)
        self._state.wanted = dict(made.state.wanted)
        self._shares = Shares(
            slots,
            queue.owners,
            made.state.wanted,
            first_job_free=rules.quotas.first_job_free,
        )
        self._pool = GpuPool(self._state)
        self._pool.beneficiaries = set(made.beneficiaries)
        places = Places(self._shares, rules.order, now, made.ahead)
        self._groups = made.groups
        self._jobs = WaitingJobs(self._groups, self._state, self._pool, self._shares, places)
        # GPUs that have changed since the last pass.
        self._freed: set[str] = set()
        self._running: dict[int, _Run] = {}
        self._note_constraints()
        # GPUs whose load a job that ended has lowered, "" for all.
        self._lifted: set[str] = set()
        self._before = {gpu.gpu_uuid: len(gpu.jobs) for gpu in slots.gpus}
        self._events: list[Event] = []
        # Events that are not periodic.
        self._due = 0
        # Jobs that have not started.
        self._missing = set(queue.ids)
        self._coming = {job.id for job in slots.coming}
        self._scripts = queue.scripts
        self._boundaries = queue.boundaries
        self._numbers = count()
        self._followers: dict[int, list[tuple[QueuedJob, set[int], datetime]]] = defaultdict(list)
        # Jobs of models that were evicted.
        self._evicted: set[int] = set()
        # Running jobs that could be preempted.
        self._preemptible: set[int] = set()
        # Owners whose jobs have ended since the last pass: the places of their waiting jobs change.
        self._served: set[str] = set()
        self._begin(queue, made)

    def _note_constraints(self) -> None:
        """Which constraints of GPUs besides the reservation there are."""
        throttle = self._slots.throttle
        # No GPU is closed to some jobs only, but for the reservation.
        self._is_simple = not (
            self._slots.windows
            or self._slots.reserved
            or throttle.closed_gpus
            or throttle.starts is not None
            or self._state.reduced
        )
        # Whether all time windows are for whole GPUs, so that no end of a job matters to them.
        windows = self._slots.windows
        self._has_whole_windows = bool(windows) and all(w.share_pct >= 100 for w in windows)

    def run(self, most: int, only: int | None = None, until: datetime | None = None) -> None:
        """Until `most` jobs or `only` have started, or nothing more is expected until then."""
        until = min(until or datetime.max.replace(tzinfo=UTC), self._began + HORIZON)
        progress, passes = self._now, 0
        while self._events and self._events[0][0] <= until:
            at = max(self._now, self._events[0][0])
            if self._due:
                progress = at
            elif at > progress + REPEATS:
                return
            self._now = self._state.now = at
            while self._events and self._events[0][0] <= at + TOGETHER:
                _, _, is_periodic, act, given = heapq.heappop(self._events)
                self._due -= not is_periodic
                act(*given)
            self._pass()
            passes += 1
            if self._boundaries and passes > MOST_PASSES:
                return
            if len(self.starts) >= most:
                self.stopped_at = at
            if self.stopped_at or only in self.starts or not self._missing:
                return

    # The world at the beginning, and what will change by itself.

    def _begin(self, queue: Queue, made: Pass) -> None:
        for job in self._slots.running:
            self._continue(job)
        for queued, uuids in queue.placed:
            self._start(queued, self._groups.of(queued), self._on(uuids))
        for queued in queue.held:
            self._wait(queued)
        for jobs in queue.classes:
            self._jobs.add_all(jobs)
        for request in (*made.preemptions, *made.evictions):
            self._leave(request)
        for gpu in self._pool.gpus:
            self._open_later(gpu)
        for account in self._slots.people.values():
            if account.budget is not None:
                resets_at = account.budget.resets_at
                self._at(resets_at, self._reset_budget, account.owner, is_periodic=True)
        if self._slots.models is not None:
            self._follow_models(self._slots.models)
        self._lift_later()
        self._follow_windows()
        for kind in self._jobs.kinds.values():
            kind.is_open = self._jobs.fits(kind, self._pool.gpus)

    def _at(
        self, at: datetime, act: Callable[..., None], *given: Any, is_periodic: bool = False
    ) -> None:
        """is_periodic: it comes again and again, whatever else happens."""
        self._due += not is_periodic
        heapq.heappush(self._events, (at, next(self._numbers), is_periodic, act, given))

    def _on(self, uuids: Collection[str]) -> tuple[Slot, ...]:
        return tuple(gpu for gpu in self._pool.gpus if gpu.gpu_uuid in uuids)

    def _continue(self, job: RunningJob) -> None:
        """A job that runs already."""
        left = None if job.ends_at is None else max(timedelta(), job.ends_at - self._now)
        self._running[job.id] = _Run(job, None, left, self._now)
        end = end_of(job, self._now, late=self._late)
        if end is not None:
            self.ends[job.id] = end
            self._at(end, self._end, job.id)
        self._may_preempt(job)

    def _wait(self, job: QueuedJob) -> None:
        """A job that waits for a time or for other jobs; without a known end it never starts."""
        opens, needed = self._now, set()
        for blocker in job.waits:
            if blocker.code is BlockerCode.DEPENDENCY and blocker.job is not None:
                needed.add(blocker.job)
            elif blocker.until is None:
                return
            else:
                opens = max(opens, blocker.until)
        job = dataclasses.replace(job, waits=())
        if not needed:
            self._at(opens, self._jobs.add, job)
        for id_ in needed:
            self._followers[id_].append((job, needed, opens))

    def _open_later(self, gpu: Slot) -> None:
        if gpu.closed and all(blocker.until is not None for blocker in gpu.closed):
            opens = max(blocker.until for blocker in gpu.closed if blocker.until)
            self._at(opens, self._change, gpu.gpu_uuid, {"closed": ()})
        if gpu.ramping is not None:
            ends = gpu.ramps_until or self._now + RAMP
            self._at(ends, self._change, gpu.gpu_uuid, {"ramping": None})
        if gpu.reserved_for is not None:
            self._keep({gpu.gpu_uuid}, gpu.reserved_for, self._now)

    def _change(self, gpu_uuid: str, fields: dict[str, Any]) -> None:
        self._pool.change({gpu_uuid}, **fields)
        self._open(self._on({gpu_uuid}))
        for kind in self._jobs.kinds.values():
            kind.is_hopeless = False

    def _reset_budget(self, owner: str) -> None:
        account = self._state.people[owner]
        if account.budget is None:
            return
        budget = dataclasses.replace(
            account.budget, spent=0.0, resets_at=account.budget.resets_at + DAY
        )
        self._state.people[owner] = dataclasses.replace(account, budget=budget)
        self._state.limits.pop(owner, None)
        self._at(budget.resets_at, self._reset_budget, owner, is_periodic=True)
        self._jobs.unpark(owner)

    def _lift_later(self) -> None:
        """Load by other users whose end is known."""
        throttle = self._state.slots.throttle
        closed = [*throttle.closed.values()]
        closed += [each for on_gpus in throttle.closed_gpus.values() for each in on_gpus.values()]
        for until in {blocker.until for blocker in closed if blocker.until is not None}:
            self._at(until, self._lift)

    def _lift(self) -> None:
        """Limits by load that hold now."""
        throttle, lifted = self._slots.throttle, self._lifted
        closed = {
            kind: blocker
            for kind, blocker in throttle.closed.items()
            if "" not in lifted and self._holds(blocker)
        }
        closed_gpus = {
            kind: {u: each for u, each in on_gpus.items() if u not in lifted and self._holds(each)}
            for kind, on_gpus in throttle.closed_gpus.items()
        }
        throttle = replace(throttle, closed=closed, closed_gpus=closed_gpus)
        self._state.slots = replace(self._state.slots, throttle=throttle)
        self._open_all()

    def _holds(self, blocker: Blocker) -> bool:
        return blocker.until is None or blocker.until > self._now

    def _follow_windows(self) -> None:
        """The next start or end of a time window, and the time before it when jobs must leave."""
        following = bisect_right(self._boundaries, self._now + TOGETHER)
        if following < len(self._boundaries):
            self._at(self._boundaries[following], self._pass_window, is_periodic=True)

    def _pass_window(self) -> None:
        self._follow_windows()
        running = tuple(run.job for run in self._running.values())
        self._state.slots = replace(self._state.slots, running=running)
        for request in gates.evictions(self._state):
            self._leave(request)
        for kind in self._jobs.kinds.values():
            kind.is_shut = False
        self._open_all()

    # GPUs that open.

    def _open(self, gpus: Sequence[Slot]) -> None:
        """Try again what may fit on these GPUs, with the next pass."""
        self._freed.update(gpu.gpu_uuid for gpu in gpus)

    def _open_all(self) -> None:
        self._open(self._pool.gpus)
        self._jobs.unpark()

    # A job starts, leaves, ends.

    def _start(self, job: QueuedJob, group: RequestGroup, chosen: Sequence[Slot]) -> None:
        uuids = self._pool.take(job, chosen)
        self._state.count(job.id, group.request, uuids)
        self._shares.count(job.owner, job.requirement)
        now = self._now
        running = RunningJob(
            id=job.id,
            owner=job.owner,
            priority=job.priority,
            requirement=job.requirement,
            gpu_uuids=uuids,
            started_at=now,
            lasts=job.lasts,
            typical=job.typical,
            expected=job.expected,
            preemptible=job.preemptible,
            idle_work=job.idle_work,
        )
        self._running[job.id] = _Run(running, job, job.lasts, now)
        length = lasts(
            job, self._before[uuids[0]] if uuids else self._cpu_before(), late=self._late
        )
        if job.id not in self.starts and job.id not in self._coming:
            self.starts[job.id], self.places[job.id] = now, uuids
            self._missing.discard(job.id)
            if length is not None:
                self.ends[job.id] = now + length
        if length is not None:
            self._at(now + max(SHORTEST, length), self._end, job.id)
        for uuid in uuids:
            self._before[uuid] += 1
        for gpu in chosen:
            if gpu.reserved_for == job.id:
                self._pool.change({gpu.gpu_uuid}, reserved_for=None)
        if not self._lifted.isdisjoint(uuids):
            self._lifted -= {"", *uuids}
            self._lift()
        self._ramp(uuids)
        self._may_preempt(running)

    def _cpu_before(self) -> int:
        places = max(1, self._policy.cpu_jobs)
        return 1 + sum(not on for on in self.places.values()) // places

    def _ramp(self, uuids: Collection[str]) -> None:
        for gpu in self._on(uuids):
            if gpu.ramping is not None:
                self._at(self._now + RAMP, self._change, gpu.gpu_uuid, {"ramping": None})

    def _may_preempt(self, job: RunningJob) -> None:
        """Remember that others may preempt the job, and from when on."""
        if not job.preemptible or job.yields or not job.gpu_uuids:
            return
        self._preemptible.add(job.id)
        least = timedelta(minutes=self._rules.preemption.min_run_minutes)
        if not job.idle_work and job.started_at + least > self._now:
            self._at(job.started_at + least, _nothing)

    def _follow_models(self, models: LoadedModels) -> None:
        self._unload(models.leaving)
        # Those that may leave now do so after this plan.
        soon = self._now + TOGETHER
        for at in {max(soon, free_from) for free_from in models.free_from()}:
            self._at(at, _nothing)

    def _unload(self, model_jobs: Iterable[int]) -> None:
        for job_id in model_jobs:
            self._evicted.add(job_id)
            self._at(self._now + LEAVES_AFTER, self._end, job_id)

    def _evict_models(self, models: LoadedModels) -> None:
        """Models leave for the first jobs that only lack GPUs, one after the other."""
        if not self._evicted.isdisjoint(self._running):
            return
        lacking = {job: its for job, its in self._lacking() if job.requirement.gpus}
        if not lacking:
            return
        gpus = [gpu for gpu in self._pool.gpus if gpu.gpu_uuid not in self._slots.reserved]
        waiting = sum(self._jobs.gpu_jobs.values())
        if self._coming:
            # Items become jobs as others start, so no more of them wait at a time.
            waiting = min(waiting, self._scripts)
        jobs, could_fit = list(lacking), self._could_fit
        leaving = models.decide(waiting, jobs, gpus, could_fit, self._now, self._evicted)
        if leaving is None:
            return
        self._keep(leaving.gpu_uuids, leaving.job.id, self._now + LEAVES_AFTER)
        self._jobs.set_apart(leaving.job, lacking[leaving.job])
        self._unload(leaving.model_jobs)

    def _keep(self, gpu_uuids: Iterable[str], job_id: int, freed_at: datetime) -> None:
        """Keep GPUs for a job until a while after they are free."""
        uuids = set(gpu_uuids)
        self._pool.change(uuids, reserved_for=job_id)
        self._pool.beneficiaries.add(job_id)
        self._at(freed_at + KEEP_FREED, self._stop_keeping, uuids, job_id)

    def _stop_keeping(self, gpu_uuids: Collection[str], job_id: int) -> None:
        for gpu in self._on(gpu_uuids):
            if gpu.reserved_for == job_id:
                self._change(gpu.gpu_uuid, {"reserved_for": None})

    def _could_fit(self, job: QueuedJob, gpu: Slot) -> bool:
        return reject_code(job.requirement, gpu, self._policy, job.id) is None

    def _leave(self, request: Yield) -> None:
        """A job was asked to yield."""
        run = self._running.get(request.job_id)
        if run is None or run.job.yields:
            return
        run.job = replace(run.job, yields=True)
        run.is_requeued = not run.job.idle_work
        self._preemptible.discard(request.job_id)
        leaves = max(self._now, request.deadline or self._now) + LEAVES_AFTER
        if request.for_job is not None:
            self._keep(request.gpu_uuids, request.for_job, leaves)
        self._at(leaves, self._end, request.job_id)

    def _end(self, job_id: int) -> None:
        run = self._running.pop(job_id, None)
        if run is None:
            return
        job = run.job
        self._preemptible.discard(job_id)
        freed = self._pool.release(job_id)
        self._state.release(job, run.paid, self._now - run.since)
        self._shares.release(job.owner, job.requirement)
        self._relax(job.gpu_uuids)
        of_all = self._state.host.is_used or not job.requirement.gpus
        self._jobs.unpark(None if of_all else job.owner)
        self._served.add(job.owner)
        if self._state.starts is None:
            self._open(freed)
        else:
            self._open_all()
        if run.is_requeued:
            self._requeue(run)
            return
        if job.requirement.batch is not None:
            self._end_batch(job.requirement.batch)
        for follower, needed, opens in self._followers.pop(job_id, ()):
            needed.discard(job_id)
            if not needed:
                self._at(max(opens, self._now), self._jobs.add, follower)

    def _end_batch(self, batch: int) -> None:
        """A batch in exclusive mode leaves its GPUs with its last job."""
        waiting = [each.group.request.requirement for each in self._jobs if each.jobs]
        running = [run.job.requirement for run in self._running.values()]
        if all(wanted.batch != batch for wanted in (*waiting, *running)):
            for gpu in self._pool.gpus:
                if gpu.batch == batch:
                    self._change(gpu.gpu_uuid, {"batch": None})

    def _relax(self, gpu_uuids: Collection[str]) -> None:
        """A job of the queue that ends lowers the load of its GPUs, until the next one starts."""
        throttle = self._slots.throttle
        if throttle.closed or throttle.closed_gpus:
            self._lifted |= {"", *gpu_uuids}
            self._lift()

    def _requeue(self, run: _Run) -> None:
        """It waits again after it was preempted, and preempts no job for a while."""
        job = run.job
        queued = run.queued or QueuedJob(
            id=job.id,
            owner=job.owner,
            priority=job.priority,
            submitted_at=job.started_at,
            requirement=job.requirement,
            time_limit=job.lasts,
            typical=job.typical,
            expected=job.expected,
            preemptible=True,
        )
        self._jobs.add(dataclasses.replace(queued, may_preempt_at=self._now + COOL_DOWN))

    # A pass of the planner.

    def _pass(self) -> None:
        """Start all jobs that can start now."""
        self._pool.begin()
        if self._slots.windows:
            running = tuple(run.job for run in self._running.values())
            self._state.slots = replace(self._state.slots, running=running)
        for owner in self._served:
            for job_class in self._jobs.of_owner[owner]:
                self._jobs.place(job_class)
        self._served.clear()
        if self._freed:
            self._jobs.open_for(self._on(self._freed))
            self._freed.clear()
        may_reserve = True
        for place, job_class in self._jobs.tried():
            job, group = job_class.jobs[0], job_class.group
            if gates.refusals(group.request, self._state):
                self._jobs.park(job_class)
                continue
            if self._pool.reservation is None and may_reserve:
                may_reserve = self._reserve_before(place)
            chosen = self._pool.choose(job, group)
            if chosen is None:
                self._close(job_class.kind)
                self._reserve(job, job_class)
            else:
                self._take(job, job_class, chosen)
        if self._preemptible:
            self._preempt()
        if self._slots.models is not None:
            self._evict_models(self._slots.models)

    def _close(self, kind: Kind) -> None:
        """No GPU can take such a job now. Kinds with the same request fit nowhere either."""
        kind.is_open = False
        wanted = kind.group.request.requirement
        if self._boundaries and (self._has_whole_windows or not wanted.shares):
            closed = gates.closed_by_windows(kind.group.request, self._state, self._pool.gpus)
            kind.is_shut = len(closed) == len(self._pool.gpus)
        reserved = self._pool.reservation
        gpus = self._pool.gpus
        if reserved and self._is_simple:
            # Without other constraints, only GPUs that are kept for a job could take it.
            gpus = [g for g in gpus if g.reserved_for is not None or g.gpu_uuid in reserved.gpus]
        if not self._jobs.fits(kind, gpus):
            for other in self._jobs.alike[kind.group.kind]:
                other.is_open = False

    def _take(self, job: QueuedJob, job_class: JobClass, chosen: Sequence[Slot]) -> None:
        job_class.jobs.pop(0)
        self._jobs.gpu_jobs[job.owner] -= bool(job.requirement.gpus)
        if not self._jobs.gpu_jobs[job.owner]:
            self._state.wanted.pop(job.owner, None)
        self._start(job, job_class.group, chosen)
        if job.id in self._jobs.places.ahead:
            self._jobs.places.ahead = self._overdue()
        self._jobs.place(job_class)
        if job.requirement.gpus and not self._has_room():
            for kind in self._jobs.kinds.values():
                if kind.group.request.requirement.gpus:
                    kind.is_open = False

    def _overdue(self) -> set[int]:
        jobs = [job for each in self._jobs for job in each.jobs]
        running = [run.job for run in self._running.values()]
        first = overdue(jobs, running, self._now)
        for job in first.values():
            job_class = self._jobs.classes.get((id(self._groups.of(job)), None))
            if job_class and job.id not in self._jobs.places.ahead and job in job_class.jobs:
                self._jobs.places.ahead = {*self._jobs.places.ahead, job.id}
                self._jobs.set_apart(job, job_class)
        return {job.id for job in first.values()}

    def _has_room(self) -> bool:
        """Whether any GPU could take any job."""
        return any(
            gpu.healthy and not gpu.exclusive and not gpu.undeclared and gpu.free_bytes != 0
            for gpu in self._pool.gpus
        )

    def _gives_way(self, job: QueuedJob) -> bool:
        """As in a pass: a job above its owner's share takes only GPUs that are free."""
        level = self._shares.level(job.owner, job.priority, job.requirement)
        wanted = self._state.wanted
        return level == ABOVE and len(wanted) > (job.owner in wanted)

    def _lacking(self, before: Place | None = None) -> list[tuple[QueuedJob, JobClass]]:
        """The first jobs of the kinds without GPUs, in order."""
        firsts = [
            entry
            for kind in self._jobs.kinds.values()
            if not kind.is_open and (before is None or not kind.is_hopeless)
            if (entry := self._jobs.first(kind)) is not None
            if before is None or entry[0] < before
        ]
        lacking = []
        for *_, job_class in heapq.nsmallest(MOST_CONSIDERED, firsts):
            if gates.refusals(job_class.group.request, self._state):
                self._jobs.park(job_class)
            else:
                lacking.append((job_class.jobs[0], job_class))
        return lacking

    def _reserve_before(self, place: Place) -> bool:
        """Reserve GPUs for the first job before that place that finds none.

        False: there are such jobs, and nothing can be reserved for them in this pass.
        """
        lacking = self._lacking(place)
        return not lacking or any(self._reserve(*each) for each in lacking)

    def _reserve(self, job: QueuedJob, job_class: JobClass) -> bool:
        pool, kind = self._pool, job_class.kind
        if pool.reservation is not None or kind.is_hopeless:
            return False
        if job.id in self._slots.left_to_others or self._gives_way(job):
            return False
        pool.reserve_for(job, job_class.group)
        kind.is_hopeless = pool.reservation is None
        return pool.reservation is not None

    def _preempt(self) -> None:
        """Ask running jobs to yield to the first jobs that only lack GPUs."""
        preemptible = [self._running[id_].job for id_ in self._preemptible]
        lowest = min(preemption.rank(job) for job in preemptible)
        rules, pool = self._rules.preemption, self._pool
        for job, job_class in self._lacking():
            if preemption.rank(job) <= lowest or self._gives_way(job):
                continue
            yields = preemption.victims(
                job,
                [each for each in preemptible if each.id in self._preemptible],
                replace(self._slots, gpus=tuple(pool.gpus)),
                rules,
                self._now,
                pool.could_take(job, job_class.group),
            )
            for request in yields or ():
                self._leave(request)
            if yields:
                self._jobs.set_apart(job, job_class)


def _nothing() -> None:
    """Only a pass, because a job may be preempted from now on."""
