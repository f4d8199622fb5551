"""Policy: predicted start times of waiting jobs: the planner, run forward.

The plan decides which jobs start now. From there on, `simulation.py` lets expected events happen
and places jobs as the planner would: with typical run times (p50) and with long ones (p90); see
forecast_classes.py. New and longer jobs make real starts later. tests/bench/bench_predictions.py
replays recorded queues and prints the errors.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.formats import duration
from scheduler.facts.blockers import Blocker
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.jobs import PRIORITIES, QueuedJob, Requirement
from scheduler.facts.plans import Holder, PlanPolicy, Slot, Slots
from scheduler.facts.units import size
from scheduler.limits.quotas.policy.quotas import count
from scheduler.queue.planner.forecast_classes import HORIZON, Queue
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.order import ServiceOrder, Shares
from scheduler.queue.planner.plan import Pass, place
from scheduler.queue.planner.simulation import Simulation

# Jobs further back in the queue get their position, and that they start later than these.
FORESEEN = 400
# However well run times are known: new jobs, and the order of users as their shares change, move a
# start by a third of the wait. bench_predictions shows what this brings.
QUEUE_PARTS = 3
NEAR, STEP_S = timedelta(minutes=15), 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """position: 1 is served next, None = it can't be served now. p50, p90: None = unknown.

    after: of a job that is too far back in the queue to be predicted, the last predicted start.
    never: waiting can't lift what keeps it. gpu_uuids, end: where it would start at p50, and when
    it would end there; (), None = unknown.
    """

    position: int | None
    p50: datetime | None
    p90: datetime | None
    after: datetime | None = None
    never: bool = False
    gpu_uuids: tuple[str, ...] = field(default=(), compare=False)
    end: datetime | None = field(default=None, compare=False)


NEVER = Estimate(position=None, p50=None, p90=None, never=True)


class WhatIf(Struct, frozen=True, kw_only=True):
    """The placement or the forecast of a job that is not submitted."""

    starts_now: bool
    blockers: tuple[Blocker, ...]
    estimate: Estimate


def forecast(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
) -> dict[int, Estimate]:
    """An estimate for each waiting job."""
    jobs, thresholds = list(queue), rules or PlannerThresholds()
    made = place(jobs, slots, policy, now, thresholds)
    return _estimates(jobs, made, slots, policy, now, thresholds)


def what_if(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
    *,
    with_p90: bool = True,
) -> WhatIf:
    """Forecast of a job that is not submitted; its id must not be in the queue.

    with_p90: else p90 is p50, in half of the time.
    """
    jobs, thresholds = [*queue, new], rules or PlannerThresholds()
    made = place(jobs, slots, policy, now, thresholds)
    starts_now = any(placement.job_id == new.id for placement in made.placements)
    return WhatIf(
        starts_now=starts_now,
        blockers=() if starts_now else made.reasons_of(new),
        estimate=_estimates(
            jobs, made, slots, policy, now, thresholds, only=new.id, with_p90=with_p90
        )[new.id],
    )


def start_before(
    new: QueuedJob,
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds,
    until: datetime,
) -> datetime | None:
    """The median of the start of a job that is not submitted; None = not known to be before then.

    It costs less than half of `what_if`, and looks half as far.
    """
    jobs = [*queue, new]
    made = place(jobs, slots, policy, now, rules)
    future = Simulation(Queue(jobs, made), slots, policy, rules, now, made, late=False)
    if new.id not in future.starts:
        future.run(FORESEEN // 2, new.id, until)
    start = future.starts.get(new.id)
    return start and _rounded(start, now)


def _estimates(
    jobs: Sequence[QueuedJob],
    made: Pass,
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds,
    only: int | None = None,
    with_p90: bool = True,
) -> dict[int, Estimate]:
    """`only`: the one job whose estimate is wanted; others are missing."""
    placed = {placement.job_id for placement in made.placements}
    begin = Queue(jobs, made)
    futures = [
        Simulation(begin, slots, policy, rules, now, made, late=late)
        for late in (False, True)[: 1 + with_p90]
    ]
    for future in futures if only not in placed else ():
        future.run(FORESEEN, only)
    p50, p90 = futures[0], futures[-1]
    estimates = {}
    for job, position in _line(jobs, made, now):
        if only in (None, job.id):
            is_final = job.id not in placed and made.is_final(job)
            estimates[job.id] = NEVER if is_final else _estimate(job, position, p50, p90, now)
            if only is not None:
                break
    return estimates


def _estimate(
    job: QueuedJob, position: int | None, p50: Simulation, p90: Simulation, now: datetime
) -> Estimate:
    early, late = p50.starts.get(job.id), p90.starts.get(job.id)
    if early is not None and late is not None and early > now:
        late = max(late, early + (early - now) // QUEUE_PARTS)
    return Estimate(
        position=position,
        p50=early and _rounded(early, now),
        p90=late and _rounded(late, now),
        after=p50.stopped_at if early is None and position is not None else None,
        gpu_uuids=p50.places.get(job.id, ()),
        end=p50.ends.get(job.id),
    )


def _line(
    jobs: Sequence[QueuedJob], made: Pass, now: datetime
) -> Iterable[tuple[QueuedJob, int | None]]:
    """All jobs with their position in the predicted order; None = it can't be served now."""
    placed = {placement.job_id for placement in made.placements}
    state = made.state
    waiting = [job for job in jobs if job.id not in placed and not job.waits]
    shares = Shares(state.slots, {job.owner for job in waiting})
    number = 0
    for job in ServiceOrder(waiting, shares, state.rules.order, now, ahead=made.ahead):
        shares.count(job.owner, job.requirement)
        number += not made.is_final(job)
        yield job, number
    for job in jobs:
        if job.id in placed:
            yield job, 1
        elif job.waits:
            yield job, None


def _rounded(at: datetime, now: datetime) -> datetime:
    """Rounded up, so that predictions do not flicker: to 5 s when near, else to minutes."""
    if at <= now:
        return at
    if at - now > NEAR:
        floor = at.replace(second=0, microsecond=0)
        return floor if floor == at else floor + timedelta(minutes=1)
    over = at.second % STEP_S
    if not over and not at.microsecond:
        return at
    return at.replace(microsecond=0) + timedelta(seconds=STEP_S - over)


# Changes that would let a waiting job start earlier.
#
# Candidate changes follow from the request and from what holds it up. Each is planned forward with
# the change, until the start without it, and given only if the start then becomes earlier.


# A smaller gain is within the error of the forecast.
LEAST_EARLIER, LEAST_PART = timedelta(seconds=30), 0.05
# A change is planned with all waiting jobs of all hosts; this bounds the sum for one question.
MOST_PLANNED_JOBS, MOST_CHANGES = 4_000, 10
LIMIT_STEP = timedelta(minutes=5)
Value = str | int | bool | None


class AdviceFacts(Struct, frozen=True, kw_only=True):
    """most_priority: what the owner's quota allows. host_is_chosen: by its owner.

    needed_bytes: the GPU memory for such a job by earlier runs, never below their highest peak;
    None = not measured.
    """

    most_priority: int
    host_is_chosen: bool = False
    needed_bytes: int | None = None


class World(Struct, frozen=True, kw_only=True):
    """The input of one host's planner. queue: without the job that the question is about."""

    queue: Sequence[QueuedJob]
    slots: Slots
    policy: PlanPolicy
    rules: PlannerThresholds


class Change(Struct, frozen=True, kw_only=True):
    """A change of a request. fields: as REST names them, None = the default.

    words: what to do. leaves: (GPUs, user): the user's processes outside the queue leave them.
    """

    fields: Mapping[str, Value]
    words: str
    job: QueuedJob
    leaves: tuple[Collection[str], str] | None = None


class Advice(Struct, frozen=True, kw_only=True):
    """A change with which the job is planned to start earlier.

    earlier: than without it. An unknown start counts as the horizon of forecasts.
    """

    fields: Mapping[str, Value]
    words: str
    expected_start: datetime
    earlier: timedelta
    was_unknown: bool

    @property
    def key(self) -> str:
        """Identifies the change, also in a form."""
        return json.dumps(dict(self.fields), sort_keys=True)


def advise(
    job: QueuedJob, worlds: Mapping[str, World], facts: AdviceFacts, now: datetime
) -> list[Advice]:
    """Changes that let the job start earlier, best first; [] = none of those tried does.

    worlds: by host, of all hosts that plan jobs. In long queues fewer changes are tried.
    """
    before = {host: _planned(job, world, now) for host, world in _hosts_of(job, worlds)}
    starts = [each.estimate.p50 for each in before.values()]
    start = min((each for each in starts if each is not None), default=None)
    reach, latest = (start or now + HORIZON) - now, latest_gain(start, now)
    kinds: dict[tuple[str, ...], Advice] = {}
    for change in _tried(job, worlds, before, facts, now):
        changed = _start(change, worlds, now, latest)
        if changed is None or changed > latest:
            continue
        earlier = now + reach - changed
        kind = tuple(change.fields)
        best = kinds.get(kind)
        if best is None or changed < best.expected_start:
            kinds[kind] = Advice(
                fields=change.fields,
                words=change.words,
                expected_start=changed,
                earlier=earlier,
                was_unknown=start is None,
            )
    return sorted(kinds.values(), key=lambda advice: advice.expected_start)


def latest_gain(start: datetime | None, now: datetime) -> datetime:
    """The latest start that is earlier than this one beyond the error of the forecast.

    start: None = unknown, which counts as the horizon of forecasts.
    """
    reach = (start or now + HORIZON) - now
    return now + reach - max(LEAST_EARLIER, reach * LEAST_PART)


def _hosts_of(job: QueuedJob, worlds: Mapping[str, World]) -> Iterator[tuple[str, World]]:
    return ((host, world) for host, world in worlds.items() if job.host in ("", host))


def _planned(job: QueuedJob, world: World, now: datetime) -> WhatIf:
    return what_if(job, world.queue, world.slots, world.policy, now, world.rules, with_p90=False)


def _start(
    change: Change, worlds: Mapping[str, World], now: datetime, until: datetime
) -> datetime | None:
    """The earliest start on any host with the change; None = not before `until`."""
    starts = []
    for _, given in _hosts_of(change.job, worlds):
        world = _without_processes(given, change.leaves)
        starts.append(
            start_before(
                change.job, world.queue, world.slots, world.policy, now, world.rules, until
            )
        )
    return min((start for start in starts if start is not None), default=None)


def _without_processes(world: World, leaves: tuple[Collection[str], str] | None) -> World:
    """The host after the processes of that user have left these GPUs."""
    if leaves is None:
        return world
    gpu_uuids, user = leaves
    gpus = tuple(
        gpu.without_processes(lambda holder: holder.user == user)
        if gpu.gpu_uuid in gpu_uuids
        else gpu
        for gpu in world.slots.gpus
    )
    return replace(world, slots=replace(world.slots, gpus=gpus))


def _tried(
    job: QueuedJob,
    worlds: Mapping[str, World],
    before: Mapping[str, WhatIf],
    facts: AdviceFacts,
    now: datetime,
) -> list[Change]:
    """The candidates, without repetitions, as many as may be planned."""
    blockers = [blocker for each in before.values() for blocker in each.blockers]
    slots = [gpu for host, _ in _hosts_of(job, worlds) for gpu in worlds[host].slots.gpus]
    distinct: dict[str, Change] = {}
    for change in candidates(job, blockers, slots, facts, now):
        distinct.setdefault(json.dumps(dict(change.fields), sort_keys=True), change)
    planned = sum(len(world.queue) + 1 for world in worlds.values())
    most = max(1, min(MOST_CHANGES, MOST_PLANNED_JOBS // max(1, planned)))
    return list(distinct.values())[:most]


def candidates(
    job: QueuedJob,
    blockers: Collection[Blocker],
    gpus: Collection[Slot],
    facts: AdviceFacts,
    now: datetime,
) -> Iterator[Change]:
    """Changes that could matter for these blockers, the least intrusive first."""
    for rule in RULES:
        yield from rule(job, blockers, gpus, facts, now)


Rule = Callable[
    [QueuedJob, Collection[Blocker], Collection[Slot], AdviceFacts, datetime], Iterable[Change]
]


def _release(
    job: QueuedJob, _b: Collection[Blocker], _g: Collection[Slot], _f: AdviceFacts, _n: datetime
) -> Iterator[Change]:
    others = tuple(blocker for blocker in job.waits if blocker.code is not Code.HELD)
    if len(others) < len(job.waits):
        released = dataclasses.replace(job, waits=others)
        yield Change(fields={"held": None}, words="Release the hold", job=released)


def _constraints(
    job: QueuedJob,
    _blockers: Collection[Blocker],
    gpus: Collection[Slot],
    facts: AdviceFacts,
    _now: datetime,
) -> Iterator[Change]:
    """Without one of its constraints on GPUs and hosts."""
    wanted = job.requirement
    if wanted.gpu_uuid:
        index = next((gpu.index for gpu in gpus if gpu.gpu_uuid == wanted.gpu_uuid), None)
        named = "the named GPU" if index is None else f"GPU {index}"
        words = f"Allow any GPU instead of {named}"
        yield _with(job, words, {"on_gpu": None}, gpu_uuid="")
    if facts.host_is_chosen:
        words = f"Allow any host instead of {job.host}"
        yield Change(fields={"host": None}, words=words, job=dataclasses.replace(job, host=""))
    if wanted.model:
        yield _with(job, f"Allow GPUs other than {wanted.model}", {"model": None}, model="")
    if wanted.capability:
        version = ".".join(map(str, wanted.capability))
        words = f"Allow GPUs below compute capability {version}"
        yield _with(job, words, {"capability": None}, capability=None)
    if wanted.power is not None:
        words = f"Allow GPUs below power rank {wanted.power:g}"
        yield _with(job, words, {"power": None}, power=None)


def _less(
    job: QueuedJob,
    blockers: Collection[Blocker],
    _gpus: Collection[Slot],
    facts: AdviceFacts,
    _now: datetime,
) -> Iterator[Change]:
    """Less memory, sharing, fewer GPUs."""
    wanted, needed = job.requirement, facts.needed_bytes
    if wanted.gpus == 0:
        return
    asks = wanted.memory_bytes
    memory_bytes = needed if asks is None or (needed is not None and needed < asks) else None
    if memory_bytes is not None and not wanted.exclusive:
        instead = "" if asks is None else f" instead of {size(asks)}"
        words = f"Ask for {size(memory_bytes)} of GPU memory{instead}, as earlier runs needed"
        yield _with(job, words, {"gpu_memory": memory_bytes}, memory_bytes=memory_bytes)
    shared_bytes = memory_bytes or asks
    if wanted.exclusive and shared_bytes is not None:
        fields: dict[str, Value] = {"exclusive": False}
        if shared_bytes != asks:
            fields["gpu_memory"] = shared_bytes
        words = f"Share its GPUs, with {size(shared_bytes)} of GPU memory"
        yield _with(job, words, fields, exclusive=False, memory_bytes=shared_bytes)
    figures = {b.detail("fitting") or b.detail("able") or 0 for b in blockers}
    for gpus in sorted({*figures, 1}, reverse=True):
        if 0 < gpus < wanted.gpus:
            words = f"Ask for {count(gpus, 'GPU')} instead of {wanted.gpus}"
            yield _with(job, words, {"gpus": gpus}, gpus=gpus)


def _limit(
    job: QueuedJob,
    blockers: Collection[Blocker],
    _gpus: Collection[Slot],
    _facts: AdviceFacts,
    now: datetime,
) -> Iterator[Change]:
    """A time limit that ends before a time window or a reservation, or within the budget.

    Never below the time that half of the earlier runs took.
    """
    free = {end for blocker in blockers if (end := _free_until(blocker, job, now)) is not None}
    for end in sorted(free, reverse=True):
        limit = (end - now) // LIMIT_STEP * LIMIT_STEP
        is_shorter = job.lasts is None or limit < job.lasts
        if is_shorter and limit >= max(LIMIT_STEP, job.typical or LIMIT_STEP):
            words = f"Set the time limit to {duration(limit.total_seconds())}"
            value = f"{limit // timedelta(minutes=1)}min"
            changed = dataclasses.replace(job, time_limit=limit)
            yield Change(fields={"time_limit": value}, words=words, job=changed)


def _free_until(blocker: Blocker, job: QueuedJob, now: datetime) -> datetime | None:
    """Until when a job could run that this blocker keeps for its length; None = it does not."""
    case = blocker.detail("case")
    if blocker.code is Code.RESERVED_FOR and case == "window":
        starts = blocker.detail("starts")
        return None if starts is None else datetime.fromisoformat(starts)
    if blocker.code is Code.RESERVED_FOR and case in ("late", "unknown"):
        return blocker.until
    if blocker.code is Code.OUTSIDE_WINDOW and case in ("too long", "unknown"):
        return blocker.until
    if blocker.code is Code.BUDGET_DAY and blocker.detail("left"):
        return now + timedelta(minutes=blocker.detail("left") / max(1, job.requirement.gpus))
    return None


def _urgency(
    job: QueuedJob,
    _blockers: Collection[Blocker],
    _gpus: Collection[Slot],
    facts: AdviceFacts,
    _now: datetime,
) -> Iterator[Change]:
    for raised in range(job.priority + 1, min(facts.most_priority, max(PRIORITIES)) + 1):
        words = f"Raise the priority to {raised}"
        changed = dataclasses.replace(job, priority=raised)
        yield Change(fields={"priority": raised}, words=words, job=changed)
    if not job.preemptible:
        changed = dataclasses.replace(job, preemptible=True)
        yield Change(fields={"preemptible": True}, words="Make it preemptible", job=changed)


def _ask(
    job: QueuedJob,
    blockers: Collection[Blocker],
    gpus: Collection[Slot],
    _facts: AdviceFacts,
    _now: datetime,
) -> Iterator[Change]:
    """The users whose processes outside the queue hold memory that it needs.

    Of a user on several GPUs, each alone; for a job of several GPUs then all of them.
    """
    full = {b.gpu for b in blockers if b.code in (Code.GPU_MEMORY, Code.GPU_TAKEN) and b.holder}
    held: dict[str, list[tuple[Slot, list[Holder]]]] = {}
    for gpu in gpus:
        if gpu.index not in full:
            continue
        known = [holder for holder in gpu.foreign if holder.user and holder.memory_bytes]
        for user in {holder.user: None for holder in known}:
            its = [holder for holder in known if holder.user == user]
            held.setdefault(user, []).append((gpu, its))
    for user, on in held.items():
        for spot in on:
            yield _request_to(job, user, [spot], {"gpu": spot[0].index})
        if len(on) > 1 and job.requirement.gpus > 1:
            yield _request_to(job, user, on, {})


def _request_to(
    job: QueuedJob, user: str, on: Sequence[tuple[Slot, list[Holder]]], fields: Mapping[str, Value]
) -> Change:
    holders = [holder for _, its in on for holder in its]
    memory = size(sum(holder.memory_bytes or 0 for holder in holders))
    where = f"{'GPU' if len(on) == 1 else 'GPUs'} {', '.join(str(gpu.index) for gpu, _ in on)}"
    pids = ", ".join(dict.fromkeys(str(holder.pid) for holder in holders if holder.pid))
    request = f"Ask {user} to free {memory} on"
    if user == job.owner:
        request = f"Free {memory} that {user}'s own processes hold on"
    return Change(
        fields={"ask": user, **fields},
        words=f"{request} {where} (PID {pids})",
        job=job,
        leaves=([gpu.gpu_uuid for gpu, _ in on], user),
    )


def _with(job: QueuedJob, words: str, fields: Mapping[str, Value], **changes: object) -> Change:
    requirement: Requirement = dataclasses.replace(job.requirement, **changes)  # type: ignore[arg-type]
    return Change(fields=fields, words=words, job=dataclasses.replace(job, requirement=requirement))


RULES: tuple[Rule, ...] = (_release, _constraints, _less, _ask, _limit, _urgency)
