"""Policy: the next state of an instance, from its job, its health and the clock.

Pure: `next_step` is asked for each instance at each pass, and answers with one change or none.

Policy: how many instances a service will need, by the same hour of earlier weeks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import chain, combinations
from math import ceil, inf

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import JobState, Outcome, QueuedJob
from scheduler.facts.language_models import SERVING, InstanceFact, InstanceState, Role, ServiceFact
from scheduler.facts.plans import Slot

# Whether waiting scripts evict a model, and which one.
#
# The three rules, with S queued scripts, L queued prompts and R GPUs in `llm_ready`:
#
# 1. R > 0 and S > `min_script_queue_for_evict` 2. S > 20 and L = 0 3. R > 0 and S × average
# script seconds ÷ R > boot seconds of the model


# With more candidates on one GPU, not every set of them is tried.
MOST_TRIED = 8


# Without waiting prompts, a model is evicted when more jobs than this wait for a GPU.
LONG_SCRIPT_QUEUE = 20
SLEEPS = "the model there sleeps"
# Run time of a job until jobs have ended and one is measured.
SCRIPT_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """Unloading of language models for jobs that wait for a GPU."""

    # fmt: off
    enabled: bool = threshold(True, "Evict models for waiting jobs",
        "A model gives its GPU to waiting jobs by the rules of this policy.")
    min_script_queue_for_evict: int = threshold(5, "Evict above this number of waiting jobs", ge=0,
        help="A model that no request uses is evicted when more jobs wait for a GPU.")
    prefer_idle_llm_eviction: bool = threshold(True, "Evict idle models only",
        "Models that answer requests stay; otherwise they end their requests first.")
    never_evict_brain: bool = threshold(True, "Never evict brain models",
        "Models with the role brain_primary or brain_secondary stay.")
    # fmt: on


class Queues(Struct, frozen=True, kw_only=True):
    """S, L and R of the rules, and the average seconds of a script; None = none has ended."""

    scripts: int
    prompts: int
    ready: int
    script_s: float | None = None


def should_evict_for_scripts(queues: Queues, boot_s: float, policy: EvictionPolicy) -> str | None:
    """The first rule that holds, in words; None = no model is evicted."""
    scripts, ready = queues.scripts, queues.ready
    if ready > 0 and scripts > policy.min_script_queue_for_evict:
        return f"{scripts} jobs wait for a GPU, more than {policy.min_script_queue_for_evict}"
    if scripts > LONG_SCRIPT_QUEUE and queues.prompts == 0:
        return f"{scripts} jobs wait for a GPU, more than {LONG_SCRIPT_QUEUE}, and no prompt waits"
    script_s = SCRIPT_S if queues.script_s is None else queues.script_s
    if ready > 0 and scripts * script_s / ready > boot_s:
        return (
            f"{scripts} waiting jobs need about {scripts * script_s / ready:.0f} s,"
            f" longer than the model boots ({boot_s:.0f} s)"
        )
    return None


class Candidate(Struct, frozen=True, kw_only=True):
    """A loaded instance. reload_s: its expected boot time. min_residency_s: of its service."""

    instance: InstanceFact
    name: str
    role: Role = Role.WORKER_OR_SCRIPT
    pin: bool = False
    reload_s: float = 120.0
    requests_per_hour: float = 0.0
    min_residency_s: float = 60.0

    @property
    def cost(self) -> float:
        """Seconds of reloading in an hour, if each request found it unloaded."""
        return self.reload_s * self.requests_per_hour


def may_leave(candidate: Candidate, policy: EvictionPolicy, now: datetime) -> bool:
    """Whether this instance may be evicted at all."""
    instance = candidate.instance
    if instance.state not in (InstanceState.READY, InstanceState.SLEEPING) or candidate.pin:
        return False
    if instance.state is InstanceState.SLEEPING:
        return not (policy.never_evict_brain and candidate.role.is_brain)
    if policy.never_evict_brain and candidate.role.is_brain:
        return False
    if policy.prefer_idle_llm_eviction and instance.is_busy:
        return False
    return now >= _free_from(candidate)


def _free_from(candidate: Candidate) -> datetime:
    ready_at = candidate.instance.ready_at or candidate.instance.since
    return ready_at + timedelta(seconds=candidate.min_residency_s)


class Victims(Struct, frozen=True, kw_only=True):
    """The instances that leave, and the GPUs that the job then gets."""

    chosen: tuple[Candidate, ...]
    gpu_uuids: tuple[str, ...]


class Decision(Struct, frozen=True, kw_only=True):
    """The instances that leave for a job, and why."""

    job: QueuedJob
    victims: Victims
    reason: str

    @property
    def model_jobs(self) -> tuple[int, ...]:
        return tuple(each.instance.job_id or 0 for each in self.victims.chosen)

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        return self.victims.gpu_uuids


class Loaded(Struct, frozen=True, kw_only=True):
    """The models on the GPUs of a host, and what decides which of them leave.

    prompts: number of waiting prompts. script_s: as in Queues. leaving: jobs of instances that are
    leaving.
    """

    candidates: tuple[Candidate, ...]
    policy: EvictionPolicy
    prompts: int = 0
    script_s: float | None = None
    leaving: tuple[int, ...] = ()

    def may_any_leave(self, scripts: int, now: datetime) -> bool:
        """Whether the rules let any leave, if that makes room for a job."""
        can_leave = any(may_leave(each, self.policy, now) for each in self.candidates)
        return self.policy.enabled and can_leave and self._is_due(scripts, self.candidates)

    def free_from(self) -> Iterable[datetime]:
        """When each may leave at the earliest."""
        return [_free_from(candidate) for candidate in self.candidates]

    def decide(
        self,
        scripts: int,
        jobs: Sequence[QueuedJob],
        gpus: Sequence[Slot],
        fits: Callable[[QueuedJob, Slot], bool],
        now: datetime,
        gone: Collection[int] = (),
    ) -> Decision | None:
        """For the first of these jobs for which instances leave.

        scripts: number of waiting jobs with GPUs. fits: whether a hypothetical state of a GPU can
        take a job. gone: jobs of instances that have left.
        """
        here = [each for each in self.candidates if each.instance.job_id not in gone]
        if not self._is_due(scripts, here):
            return None
        asleep = [each for each in here if each.instance.state is InstanceState.SLEEPING]
        for job in jobs:
            # Sleeping models answer no requests, so they make room for any job.
            leaving = self._victims(asleep, job, gpus, fits, now)
            if leaving is not None:
                return Decision(job=job, victims=leaving, reason=SLEEPS)
            leaving = self._victims(here, job, gpus, fits, now)
            if leaving is None:
                continue
            boot_s = max(candidate.reload_s for candidate in leaving.chosen)
            reason = self._reason(scripts, here, boot_s)
            if reason is not None:
                return Decision(job=job, victims=leaving, reason=reason)
        return None

    def _is_due(self, scripts: int, here: Sequence[Candidate]) -> bool:
        """Sleeping models leave at once. Of others the one that boots fastest: if it need not
        leave, none need."""
        if any(each.instance.state is InstanceState.SLEEPING for each in here):
            return True
        boot_s = min((candidate.reload_s for candidate in here), default=inf)
        return self._reason(scripts, here, boot_s) is not None

    def _reason(self, scripts: int, here: Sequence[Candidate], boot_s: float) -> str | None:
        waiting = Queues(
            scripts=scripts, prompts=self.prompts, ready=ready_gpus(here), script_s=self.script_s
        )
        return should_evict_for_scripts(waiting, boot_s, self.policy)

    def _victims(
        self,
        candidates: Sequence[Candidate],
        job: QueuedJob,
        gpus: Sequence[Slot],
        fits: Callable[[QueuedJob, Slot], bool],
        now: datetime,
    ) -> Victims | None:
        return victims(candidates, gpus, job.requirement.gpus, partial(fits, job), self.policy, now)


def ready_gpus(candidates: Iterable[Candidate]) -> int:
    """GPUs with a loaded model and no request in flight."""
    idle = (
        candidate.instance
        for candidate in candidates
        if candidate.instance.state is InstanceState.READY and not candidate.instance.is_busy
    )
    return len({uuid for instance in idle for uuid in instance.gpu_uuids})


def victims(
    candidates: Iterable[Candidate],
    gpus: Sequence[Slot],
    wanted: int,
    fits: Callable[[Slot], bool],
    policy: EvictionPolicy,
    now: datetime,
) -> Victims | None:
    """The cheapest instances without which the job gets `wanted` GPUs; None = there are none.

    fits: whether a hypothetical state of a GPU can take the job.
    """
    leaving = [candidate for candidate in candidates if may_leave(candidate, policy, now)]
    if not policy.enabled or not leaving or wanted < 1:
        return None
    choices = []
    for gpu in gpus:
        chosen = _cheapest_on(
            gpu, [candidate for candidate in leaving if _is_on(candidate, gpu)], fits
        )
        if chosen is not None:
            choices.append((_cost(chosen, now), gpu.index, gpu.gpu_uuid, chosen))
    best = sorted(choices, key=lambda each: each[:3])[:wanted]
    gone = {candidate.instance.id: candidate for *_, chosen in best for candidate in chosen}
    if len(best) < wanted or not gone:
        return None
    return Victims(
        chosen=tuple(gone[id_] for id_ in sorted(gone)), gpu_uuids=tuple(each[2] for each in best)
    )


def beside_sleeping(gpu: Slot, job_id: int, left_bytes: int) -> Slot:
    """The GPU once the instance of this job sleeps and holds only `left_bytes`."""
    without = gpu.without({job_id})
    if job_id not in gpu.jobs:
        return gpu
    free = None if without.free_bytes is None else max(0, without.free_bytes - left_bytes)
    return replace(
        without,
        free_bytes=free,
        jobs=(*without.jobs, job_id),
        held_bytes=(*without.held_by_job, left_bytes),
    )


def _is_on(candidate: Candidate, gpu: Slot) -> bool:
    return gpu.gpu_uuid in candidate.instance.gpu_uuids


def _cheapest_on(
    gpu: Slot, there: list[Candidate], fits: Callable[[Slot], bool]
) -> tuple[Candidate, ...] | None:
    """The cheapest set without which the GPU fits; () = it fits now; None = never."""
    tried = sorted(there, key=lambda candidate: (candidate.cost, candidate.instance.id))[
        :MOST_TRIED
    ]
    sets = chain.from_iterable(combinations(tried, n) for n in range(len(tried) + 1))
    able = [
        chosen
        for chosen in sets
        if fits(gpu.without({candidate.instance.job_id or 0 for candidate in chosen}))
    ]
    return min(
        able,
        key=lambda chosen: (sum(candidate.cost for candidate in chosen), len(chosen)),
        default=None,
    )


def _cost(chosen: tuple[Candidate, ...], now: datetime) -> tuple[float, int, float]:
    """The price of a set; of equal ones, the one that was idle for longest."""
    used = [candidate.instance.idle_since or now for candidate in chosen]
    idle_s = sum((now - at).total_seconds() for at in used)
    return (sum(candidate.cost for candidate in chosen), len(chosen), -idle_s)


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


class JobView(Struct, frozen=True, kw_only=True):
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


class Change(Struct, frozen=True, kw_only=True):
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


class Scale(Struct, frozen=True, kw_only=True):
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


class Demand(Struct, frozen=True, kw_only=True):
    """Requests of a service in the hour that comes, one figure per earlier week.

    answer_s: mean seconds from a request to its last byte; None = not measured.
    """

    weeks: Sequence[float] = ()
    answer_s: float | None = None

    @property
    def per_hour(self) -> float:
        return sum(self.weeks) / len(self.weeks) if self.weeks else 0.0


class Prediction(Struct, frozen=True):
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
