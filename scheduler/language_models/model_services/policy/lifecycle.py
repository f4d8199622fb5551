"""Policy: the next state of an instance, from its job, its health and the clock.

Pure: `next_step` is asked for each instance at each pass, and answers with one change or none.

Policy: how many instances a service will need, by the same hour of earlier weeks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.language_models import SERVING, InstanceFact, InstanceState, ServiceFact

# Whether an instance sleeps instead of ending, and whether its memory was given back.
#
# The ladder: sleep level 1 (weights in host memory, if there is room) · level 2 · stop.


GIB = 1024**3
# A sleeping instance may keep this much memory, or this part of its peak.
LEAST_LEFT_BYTES, LEFT_PART = 2 * GIB, 0.1
RELEASES_WITHIN = timedelta(seconds=15)
LEVEL = "{level}"
# The server has this long to answer that it sleeps or is awake.
ANSWERS_WITHIN = timedelta(seconds=60)


class Release(StrEnum):
    """Whether the driver lists the memory as given back. awaited: there is still time."""

    AWAITED = "awaited"
    RELEASED = "released"
    LEFT = "left"


def level(
    instance: InstanceFact,
    sleep_path: str,
    *,
    needs_bytes: int | None,
    host_free_bytes: int | None,
) -> int:
    """The level at which it sleeps; 0 = it is stopped.

    needs_bytes: of the host at level 1. An instance whose last sleep left memory is stopped.
    Without {level} in its path, a server decides what it keeps, so host memory is planned.
    """
    if not sleep_path or instance.left_memory:
        return 0
    has_room = needs_bytes is not None and host_free_bytes is not None
    if has_room and (needs_bytes or 0) <= (host_free_bytes or 0):
        return 1
    return 2 if LEVEL in sleep_path else 0


def path_of(sleep_path: str, level: int) -> str:
    return sleep_path.replace(LEVEL, str(level))


def most_left(peak_bytes: int | None) -> int:
    """The most memory of a sleeping instance on a GPU where it held `peak_bytes` awake."""
    return max(LEAST_LEFT_BYTES, round(LEFT_PART * (peak_bytes or 0)))


def held(
    own_bytes: Sequence[int | None], *, used_bytes: int | None, others_bytes: int
) -> int | None:
    """The memory of an instance on a GPU, at most; None = unknown.

    own_bytes: of its processes there, as listed. Without any, its memory is what the GPU has in
    use beside the listed memory of other processes.
    """
    if own_bytes:
        known = [size for size in own_bytes if size is not None]
        return sum(known) if len(known) == len(own_bytes) else None
    return None if used_bytes is None else max(0, used_bytes - others_bytes)


def judge(held_bytes: int | None, most_bytes: int, since: datetime, now: datetime) -> Release:
    """held_bytes: what its processes hold on its fullest GPU. Unknown is never free."""
    if held_bytes is not None and held_bytes < most_bytes:
        return Release.RELEASED
    return Release.AWAITED if now - since < RELEASES_WITHIN else Release.LEFT


# A request that is under way when an instance is drained has this long to end.
DRAIN_FOR = timedelta(seconds=60)
# A ready instance that answers no health check for this long is replaced.
STALLS_AFTER = timedelta(seconds=120)
# A demand that is not repeated counts for this long.
DEMAND_FOR = timedelta(seconds=60)
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 5.0, 600.0


class Command(StrEnum):
    """Effect on the instance's job besides the change of state."""

    NONE = ""
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The job of an instance. leaves: it was asked to leave its GPU.

    problem: how it ended, in words.
    """

    state: JobState
    outcome: Outcome | None = None
    leaves: bool = False
    problem: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state is JobState.FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The new state of an instance. is_failure: it counts against its service.

    is_eviction: another user or job needs its GPU, so it is loaded again later.
    """

    state: InstanceState
    reason: str = ""
    command: Command = Command.NONE
    is_failure: bool = False
    is_eviction: bool = False


def next_step(
    instance: InstanceFact,
    job: JobView | None,
    *,
    is_healthy: bool,
    boot_timeout_s: float,
    now: datetime,
    call: bool | None = None,
) -> Change | None:
    """The change of one instance; None = it stays as it is.

    call: whether its server has done what it was asked to, sleep or wake; None = no answer yet.
    """
    if job is None:
        return Change(state=InstanceState.FAILED, reason="Its job is gone.")
    if job.has_ended:
        return _ended(instance, job)
    if instance.state is InstanceState.COOLING:
        return None
    if job.state is JobState.STOPPING or job.leaves:
        reason = job.problem or "It was asked to leave."
        return Change(state=InstanceState.COOLING, reason=reason, is_eviction=job.leaves)
    if instance.state is InstanceState.SLEEPING:
        return None
    if instance.wakes:
        return _waking(instance, call, now)
    if instance.state is InstanceState.BOOTING:
        return _booting(instance, is_healthy=is_healthy, timeout_s=boot_timeout_s, now=now)
    if instance.state is InstanceState.DRAINING:
        return _draining(instance, call, now)
    return _ready(instance, now)


def _ended(instance: InstanceFact, job: JobView) -> Change:
    """A process that was not asked to stop has failed."""
    was_asked = instance.state is InstanceState.COOLING or job.leaves
    if was_asked or job.outcome in (Outcome.CANCELLED, Outcome.PREEMPTED):
        return Change(state=InstanceState.STOPPED)
    reason = job.problem or "Its process ended."
    return Change(state=InstanceState.FAILED, reason=reason, is_failure=True)


def _booting(
    instance: InstanceFact, *, is_healthy: bool, timeout_s: float, now: datetime
) -> Change | None:
    if is_healthy:
        return Change(state=InstanceState.READY)
    began = instance.started_boot_at
    if began is not None and now - began > timedelta(seconds=timeout_s):
        reason = f"It was not ready after {timeout_s:g} s."
        return Change(
            state=InstanceState.COOLING, reason=reason, command=Command.CANCEL, is_failure=True
        )
    return None


def _waking(instance: InstanceFact, call: bool | None, now: datetime) -> Change | None:
    if call:
        return Change(state=InstanceState.READY)
    if call is None and now - instance.since < ANSWERS_WITHIN:
        return None
    return Change(state=InstanceState.COOLING, reason="It did not wake.", command=Command.CANCEL)


def is_drained(instance: InstanceFact, now: datetime) -> bool:
    """Whether its requests have ended, or had their time."""
    return not instance.in_flight or now - instance.since >= DRAIN_FOR


def _draining(instance: InstanceFact, call: bool | None, now: datetime) -> Change | None:
    if not is_drained(instance, now):
        return None
    if not instance.sleep_level:
        return Change(state=InstanceState.COOLING, command=Command.CANCEL)
    if call:
        return Change(state=InstanceState.SLEEPING)
    if call is None and now - instance.since < DRAIN_FOR + ANSWERS_WITHIN:
        return None
    reason = "Its server did not go to sleep."
    return Change(state=InstanceState.COOLING, reason=reason, command=Command.CANCEL)


def _ready(instance: InstanceFact, now: datetime) -> Change | None:
    answered = instance.answered_at or instance.ready_at or instance.since
    if now - answered > STALLS_AFTER:
        reason = f"It answered no health check for {STALLS_AFTER.total_seconds():g} s."
        return Change(
            state=InstanceState.COOLING, reason=reason, command=Command.CANCEL, is_failure=True
        )
    return None


def backoff(failures: int) -> timedelta:
    """The pause before the next boot after so many failures in a row."""
    return timedelta(seconds=min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures - 1, 16)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many instances a service starts now, and which ones it unloads, each with the reason."""

    boot: int = 0
    unload: tuple[tuple[int, str], ...] = ()


def scale(
    service: ServiceFact,
    instances: list[InstanceFact],
    now: datetime,
    *,
    scripts_wait: bool = False,
    others_boot: bool = False,
) -> Scale:
    """Boots for the minimum and for requests that wait; unloads of what is not needed.

    instances: those of the service that have not ended. An evicted service is loaded again when no
    job waits for a GPU (scripts_wait) and no other evicted one is being loaded (others_boot).
    """
    if not service.enabled:
        return Scale(unload=_all(instances, "The service is disabled."))
    serving = [instance for instance in instances if instance.state in SERVING]
    boots = max(0, service.least - len(serving))
    if service.evicted_at is not None:
        boots = 0 if scripts_wait or others_boot or serving else max(1, service.least)
    if not boots and _is_demanded(service, serving, now):
        boots = 1
    # Instances that are ending still hold their GPU.
    room = max(0, service.max_instances - len(serving))
    is_delayed = service.retry_at is not None and now < service.retry_at
    if is_delayed or service.is_held:
        boots = 0
    return Scale(boot=min(boots, room), unload=_idle(service, serving, now))


def _is_demanded(service: ServiceFact, serving: list[InstanceFact], now: datetime) -> bool:
    """Whether a request waits that neither a ready instance nor a boot under way takes."""
    wanted_at = service.wanted_at
    if wanted_at is None or now - wanted_at > DEMAND_FOR:
        return False
    # A demand from before an instance was ready has been served by it.
    for instance in serving:
        if instance.state is InstanceState.BOOTING or instance.in_flight < service.concurrency:
            return False
        if instance.ready_at is not None and wanted_at < instance.ready_at:
            return False
    return True


def _all(instances: list[InstanceFact], reason: str) -> tuple[tuple[int, str], ...]:
    states = (InstanceState.BOOTING, InstanceState.READY, InstanceState.SLEEPING)
    return tuple((instance.id, reason) for instance in instances if instance.state in states)


def _idle(
    service: ServiceFact, serving: list[InstanceFact], now: datetime
) -> tuple[tuple[int, str], ...]:
    """Those above the maximum, then those above the minimum that were idle for long."""
    idle = sorted(
        (instance.idle_since, instance.id)
        for instance in serving
        if instance.idle_since is not None
    )
    chosen = []
    left = len(serving)
    for since, id_ in idle:
        if left > service.max_instances:
            chosen.append((id_, f"More than {service.max_instances} instances are loaded."))
        elif left > service.least and _is_over(service, since, now):
            chosen.append((id_, f"It was idle for {service.keep_alive_s:g} s."))
        else:
            continue
        left -= 1
    return tuple(chosen)


def _is_over(service: ServiceFact, since: datetime, now: datetime) -> bool:
    if service.keep_alive_s is None:
        return False
    return now - since >= timedelta(seconds=service.keep_alive_s)


# Instances are planned for this part of their places, so that requests seldom queue.
BUSY_PART = 0.7
# A week with fewer requests in the hour does not count as demand.
LEAST_REQUESTS = 1.0
# Until answers were measured.
ANSWER_S = 10.0
# Needed to call it a pattern.
LEAST_WEEKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests of a service in the hour that comes, one figure per earlier week.

    answer_s: mean seconds from a request to its last byte; None = not measured.
    """

    weeks: Sequence[float] = ()
    answer_s: float | None = None

    @property
    def per_hour(self) -> float:
        return sum(self.weeks) / len(self.weeks) if self.weeks else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """How many instances are needed, and why."""

    instances: int
    reason: str


def predict(demand: Demand, concurrency: int, least: int, most: int) -> Prediction | None:
    """None: earlier weeks show no demand in this hour."""
    used = [count for count in demand.weeks if count >= LEAST_REQUESTS]
    if len(used) < LEAST_WEEKS or len(used) * 2 < len(demand.weeks):
        return None
    answer_s = ANSWER_S if demand.answer_s is None else demand.answer_s
    busy = demand.per_hour * answer_s / 3600
    needed = ceil(busy / (concurrency * BUSY_PART)) if busy else 1
    number = min(most, max(least, 1, needed))
    return Prediction(
        number,
        f"{demand.per_hour:.0f} requests an hour came in this hour of the last"
        f" {len(demand.weeks)} weeks, and an answer takes {answer_s:.1f} s.",
    )
