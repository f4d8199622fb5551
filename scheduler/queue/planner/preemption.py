"""Policy: which running jobs must leave for another job, or for a user outside the queue.

A candidate is preemptible, of a lower priority class, has run for a minimum time, and is not
leaving already. Jobs never preempt jobs of the same class, so preemption chains are finite. Jobs
of agents have no minimum time. Of the
sets that free enough GPUs, the smallest is chosen; then the lowest priority, the least lost work
(run time times GPUs, as the last checkpoint is unknown), and the youngest jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from msgspec import Struct

from monitor.facts.readings import OwnerReading, Presence
from monitor.facts.thresholds import threshold
from monitor.gpus.policy.presence import PresencePolicy
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import CLASSES, PriorityClass, QueuedJob
from scheduler.facts.language_models import OWNER
from scheduler.facts.plans import RunningJob, Slot, Slots, Yield

CODE = "Preempted"
# With more candidates, not every set of them is tried.
MOST_TRIED = 8
_RANK = {kind: rank for rank, kind in enumerate(reversed(PriorityClass))}
_Cost = tuple[int, int, int, float, tuple[int, ...]]


# A requeued job with a shorter run time is killed at once when a user returns to the GPU, because
# it has nothing to save.
YOUNG = timedelta(minutes=10)
# A freed GPU stays reserved for the preempting job for this time after it must be free.
KEEP_FREED = timedelta(seconds=60)
# A preempted job cannot preempt other jobs for this time.
COOL_DOWN = timedelta(minutes=30)
# A job preempted more often is held until it is released. Evictions by returning users and lost
# GPUs do not count.
MOST_REQUEUES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """Preemption of running jobs, their grace periods and requeues."""

    # fmt: off
    enabled: bool = threshold(True, "Preempt jobs",
        "Jobs of a higher priority class may preempt preemptible jobs of a lower class.")
    min_run_minutes: float = threshold(10.0, "Minimum run time", unit="min", ge=0,
        help="A job is not preempted before it has run for this time.")
    most_grace_minutes: float = threshold(10.0, "Maximum grace period", unit="min", ge=0,
        help="Upper limit for the grace period that a job requests.")
    # fmt: on


def rank(job: QueuedJob | RunningJob) -> int:
    """Jobs of a higher rank preempt those of a lower one; idle work has the lowest."""
    return -1 if job.idle_work else _RANK[CLASSES[job.priority]]


def victims(
    job: QueuedJob,
    running: Iterable[RunningJob],
    slots: Slots,
    policy: PreemptionPolicy,
    now: datetime,
    fits: Callable[[Slot], bool],
) -> tuple[Yield, ...] | None:
    """Yield requests so that `job` gets its GPUs. None: impossible, or already under way.

    fits: whether a hypothetical state of a GPU could take the job.
    """
    if (
        job.idle_work
        or not policy.enabled
        or (job.may_preempt_at is not None and now < job.may_preempt_at)
    ):
        return None
    if job.requirement.gpus == 0 or any(slot.reserved_for == job.id for slot in slots.gpus):
        return None
    candidates = [candidate for candidate in running if _may_go(candidate, job, policy, now)]
    if not candidates:
        return None
    search = _Search(job.requirement.gpus, slots.gpus, candidates, now, fits)
    chosen = search.run()
    if chosen is None or not chosen.gone:
        return None
    return tuple(
        _yield(candidate, job, chosen.gpu_uuids) for candidate in sorted(chosen.gone, key=_id)
    )


class _Victims(Struct, frozen=True):
    """The jobs that must leave, and the GPUs that the job then gets."""

    gone: tuple[RunningJob, ...]
    gpu_uuids: tuple[str, ...]


class _Search:
    """Searches the smallest set of jobs without which enough GPUs fit."""

    def __init__(
        self,
        wanted: int,
        gpus: Sequence[Slot],
        candidates: Sequence[RunningJob],
        now: datetime,
        fits: Callable[[Slot], bool],
    ) -> None:
        self._wanted = wanted
        self._now = now
        self._fits = fits
        self._able = sorted(candidates, key=lambda candidate: self._cost([candidate]))
        in_order = sorted(gpus, key=lambda gpu: (gpu.index, gpu.gpu_uuid))
        # No other GPU can fit, whichever candidates leave.
        self._gpus = [gpu for gpu in in_order if fits(gpu.without(_ids(candidates)))]

    def run(self) -> _Victims | None:
        if len(self._gpus) < self._wanted:
            return None
        if self._wanted > 1:
            return self._on(self._gpus)
        choices = [self._on([gpu]) for gpu in self._gpus]
        return min(choices, key=lambda choice: self._cost(choice.gone))

    def _on(self, gpus: Sequence[Slot]) -> _Victims:
        job_ids = {id_ for gpu in gpus for id_ in gpu.jobs}
        candidates = [candidate for candidate in self._able if candidate.id in job_ids]
        leaving = (
            self._smallest(candidates, gpus)
            if len(candidates) <= MOST_TRIED
            else self._is_exempt(candidates, gpus)
        )
        ids = _ids(leaving)
        fitting = [gpu for gpu in gpus if self._fits(gpu.without(ids))]
        # GPUs that were freed for the job come first.
        fitting.sort(key=lambda gpu: ids.isdisjoint(gpu.jobs))
        return _Victims(leaving, tuple(gpu.gpu_uuid for gpu in fitting[: self._wanted]))

    def _suffices(self, leaving: Sequence[RunningJob], gpus: Sequence[Slot]) -> bool:
        ids = _ids(leaving)
        return sum(self._fits(gpu.without(ids)) for gpu in gpus) >= self._wanted

    def _smallest(
        self, candidates: Sequence[RunningJob], gpus: Sequence[Slot]
    ) -> tuple[RunningJob, ...]:
        idle = [candidate for candidate in candidates if candidate.idle_work]
        if len(idle) < len(candidates) and self._suffices(idle, gpus):
            return self._smallest(idle, gpus)
        for count in range(len(candidates)):
            enough = [
                set_ for set_ in combinations(candidates, count) if self._suffices(set_, gpus)
            ]
            if enough:
                return min(enough, key=self._cost)
        return tuple(candidates)

    def _is_exempt(
        self, candidates: Sequence[RunningJob], gpus: Sequence[Slot]
    ) -> tuple[RunningJob, ...]:
        """Of too many candidates, keep the costliest while the others suffice."""
        leaving = tuple(candidates)
        for candidate in reversed(candidates):
            without = tuple(other for other in leaving if other is not candidate)
            if self._suffices(without, gpus):
                leaving = without
        return leaving

    def _cost(self, set_: Sequence[RunningJob]) -> _Cost:
        lost = [(self._now - job.started_at).total_seconds() * len(job.gpu_uuids) for job in set_]
        return (
            # Idle work goes first, however many jobs that are.
            sum(not job.idle_work for job in set_),
            len(set_),
            max((job.priority for job in set_), default=0),
            sum(lost),
            tuple(sorted(-job.id for job in set_)),
        )


def _may_go(candidate: RunningJob, job: QueuedJob, policy: PreemptionPolicy, now: datetime) -> bool:
    has_run = now - candidate.started_at >= timedelta(minutes=policy.min_run_minutes)
    is_lower = _RANK[CLASSES[candidate.priority]] < _RANK[CLASSES[job.priority]]
    has_run = has_run or candidate.is_of_agent
    if candidate.idle_work:
        # Any other job takes its GPU, at once.
        has_run = is_lower = True
    return (
        candidate.preemptible
        and is_lower
        and has_run
        and not candidate.yields
        and bool(candidate.gpu_uuids)
    )


def leave_from(
    job_ids: Iterable[int],
    preemptible: Mapping[int, RunningJob],
    priority: int,
    policy: PreemptionPolicy,
) -> datetime | None:
    """When all of these jobs may be asked to leave for a job of this priority. None: never."""
    holders = [preemptible.get(id_) for id_ in job_ids]
    shortest = timedelta(minutes=policy.min_run_minutes)
    moments = [
        holder.started_at + shortest
        for holder in holders
        if holder is not None
        and not holder.yields
        and _RANK[CLASSES[holder.priority]] < _RANK[CLASSES[priority]]
    ]
    return max(moments) if policy.enabled and holders and len(moments) == len(holders) else None


def _yield(candidate: RunningJob, job: QueuedJob, gpu_uuids: tuple[str, ...]) -> Yield:
    kind = CLASSES[job.priority].value
    text = f"Job {job.id} of {job.owner} ({kind}) needs its GPU."
    return Yield(job_id=candidate.id, code=CODE, text=text, for_job=job.id, gpu_uuids=gpu_uuids)


def _ids(jobs: Iterable[RunningJob]) -> set[int]:
    return {job.id for job in jobs}


def _id(job: RunningJob) -> int:
    return job.id


def deadline_of(
    request: Yield,
    *,
    grace: timedelta,
    requeue: bool,
    ran_for: timedelta,
    policy: PreemptionPolicy,
    now: datetime,
) -> datetime:
    """When the rest of the job is killed.

    An eviction kills a young job with `requeue` at once, as it has nothing to save.
    """
    if request.deadline is not None:
        return max(now, request.deadline)
    is_young = ran_for < YOUNG
    if request.for_job is None and requeue and is_young and not request.spares_young:
        return now
    longest = timedelta(minutes=policy.most_grace_minutes)
    return now + min(
        grace, longest, longest if request.longest_grace is None else request.longest_grace
    )


# An older snapshot does not describe the present.
STALE_AFTER = timedelta(seconds=10)


def owner_evictions(
    owners: Iterable[OwnerReading],
    running: Iterable[RunningJob],
    indices: Mapping[str, int],
    policy: PresencePolicy,
) -> tuple[Yield, ...]:
    """Yield requests to jobs on GPUs that a user outside the queue uses.

    They do not count towards the limit of requeues.
    """
    owners_by_gpu = {owner.gpu_uuid: owner for owner in owners if owner.presence is Presence.OWNER}
    requests = []
    for job in running:
        uuid = next((uuid for uuid in job.gpu_uuids if uuid in owners_by_gpu), None)
        if uuid is not None and _gives_way(job, policy):
            text = f"{owners_by_gpu[uuid].description} needs GPU {indices.get(uuid, '?')}."
            longest = timedelta(seconds=policy.max_grace_s)
            requests.append(
                Yield(
                    job_id=job.id,
                    code=BlockerCode.OWNER_PRESENT,
                    text=text,
                    counts=False,
                    longest_grace=longest,
                )
            )
    return tuple(requests)


def _gives_way(job: RunningJob, policy: PresencePolicy) -> bool:
    if job.yields or policy.yields == "none":
        return False
    # A model is started again elsewhere, and its requests are retried.
    return job.preemptible or policy.yields == "all" or job.owner == OWNER
