"""Policy: which running jobs must leave so that a more important one can start.

Only a preemptible job of a lower class, which has run for a while and is not leaving already:
inside a class nobody is preempted, so no two jobs can drive each other out in turns. Of the sets
that free enough, the smallest; then the lowest priority, the least work lost (run time, as nobody
knows when a job saved last, for each GPU), the youngest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations

from scheduler.jobs import CLASSES, PriorityClass, QueuedJob
from scheduler.plans import RunningJob, Slot, Slots, Yield

CODE = "Preempted"
# Up to so many candidates every set of them is looked at.
MOST_TRIED = 8
_RANK = {kind: rank for rank, kind in enumerate(reversed(PriorityClass))}
_Cost = tuple[int, int, float, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """When running jobs are made to leave, how, and what becomes of them."""

    enabled: bool = field(
        default=True,
        metadata={
            "label": "Preempt",
            "help": "More important jobs may make preemptible ones of a lower class leave.",
        },
    )
    min_run_minutes: float = field(
        default=10.0,
        metadata={
            "label": "Left alone at first",
            "help": "A job that has run for less is never preempted.",
            "unit": "min",
            "least": 0,
        },
    )
    young_minutes: float = field(
        default=10.0,
        metadata={
            "label": "Nothing to save yet",
            "help": "A job that asked to be run again, and has run for less, is given no time when "
            "the owner of its GPU comes.",
            "unit": "min",
            "least": 0,
        },
    )
    most_grace_minutes: float = field(
        default=10.0,
        metadata={
            "label": "Longest grace",
            "help": "However long a job asks for to save its work.",
            "unit": "min",
            "least": 0,
        },
    )
    keep_s: float = field(
        default=60.0,
        metadata={
            "label": "Keep a freed GPU",
            "help": "So long after the latest moment at which it is free, for the job that it was "
            "freed for.",
            "unit": "s",
            "least": 0,
        },
    )
    cool_down_minutes: float = field(
        default=30.0,
        metadata={
            "label": "Cool-down",
            "help": "A job that was preempted preempts nobody for so long.",
            "unit": "min",
            "least": 0,
        },
    )
    most_requeues: int = field(
        default=5,
        metadata={
            "label": "Most requeues",
            "help": "A job that was preempted more often is held until a person releases it. "
            "Owners who come to their GPUs, and lost GPUs, don't count.",
            "least": 0,
        },
    )


def victims(
    job: QueuedJob,
    running: Iterable[RunningJob],
    slots: Slots,
    policy: PreemptionPolicy,
    now: datetime,
    fits: Callable[[Slot], bool],
) -> tuple[Yield, ...] | None:
    """Who must leave so that `job` gets its GPUs; None when that can't be, or is under way.

    `fits`: whether a GPU, as it would be then, could take the job.
    """
    if not policy.enabled or (job.may_preempt_at is not None and now < job.may_preempt_at):
        return None
    if job.requirement.gpus == 0 or any(slot.kept_for == job.id for slot in slots.gpus):
        return None
    able = [one for one in running if _may_go(one, job, policy, now)]
    search = _Search(job.requirement.gpus, slots.gpus, able, now, fits)
    found = search.run()
    if found is None or not found.gone:
        return None
    return tuple(_yield(one, job, found.gpu_uuids) for one in sorted(found.gone, key=_id))


def released(slot: Slot, gone: Iterable[RunningJob]) -> Slot:
    """The GPU as it would be without these jobs."""
    held = dict(zip(slot.jobs, slot.held_bytes, strict=False))
    here = {one.id: one for one in gone if one.id in slot.jobs}
    if not here:
        return slot
    stay = tuple(id_ for id_ in slot.jobs if id_ not in here)
    given = sum(held.get(id_, one.requirement.memory_bytes or 0) for id_, one in here.items())
    free = None if slot.free_bytes is None else slot.free_bytes + given
    if free is not None and slot.total_bytes is not None:
        free = min(free, slot.total_bytes)
    return replace(
        slot,
        free_bytes=free,
        jobs=stay,
        held_bytes=tuple(held[id_] for id_ in stay if id_ in held),
        # Only one job can have a GPU alone, or have said nothing of its memory.
        exclusive=slot.exclusive and bool(stay),
        undeclared=slot.undeclared and bool(stay),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """Who must leave, and the GPUs that the job then gets."""

    gone: tuple[RunningJob, ...]
    gpu_uuids: tuple[str, ...]


class _Search:
    """For the smallest set of jobs without which enough GPUs suit."""

    def __init__(
        self,
        wanted: int,
        gpus: Sequence[Slot],
        able: Sequence[RunningJob],
        now: datetime,
        fits: Callable[[Slot], bool],
    ) -> None:
        self._wanted = wanted
        self._now = now
        self._fits = fits
        self._able = sorted(able, key=lambda one: self._cost([one]))
        in_order = sorted(gpus, key=lambda gpu: (gpu.index, gpu.gpu_uuid))
        # No other GPU can ever suit.
        self._gpus = [gpu for gpu in in_order if fits(released(gpu, able))]

    def run(self) -> _Found | None:
        if len(self._gpus) < self._wanted:
            return None
        if self._wanted > 1:
            return self._on(self._gpus)
        found = [self._on([gpu]) for gpu in self._gpus]
        return min(found, key=lambda one: self._cost(one.gone))

    def _on(self, gpus: Sequence[Slot]) -> _Found:
        here = {id_ for gpu in gpus for id_ in gpu.jobs}
        able = [one for one in self._able if one.id in here]
        gone = self._smallest(able, gpus) if len(able) <= MOST_TRIED else self._spared(able, gpus)
        ids = {one.id for one in gone}
        fitting = [gpu for gpu in gpus if self._fits(released(gpu, gone))]
        # Those first that were freed for it.
        fitting.sort(key=lambda gpu: ids.isdisjoint(gpu.jobs))
        return _Found(gone, tuple(gpu.gpu_uuid for gpu in fitting[: self._wanted]))

    def _suffices(self, gone: Sequence[RunningJob], gpus: Sequence[Slot]) -> bool:
        return sum(self._fits(released(gpu, gone)) for gpu in gpus) >= self._wanted

    def _smallest(self, able: Sequence[RunningJob], gpus: Sequence[Slot]) -> tuple[RunningJob, ...]:
        for count in range(len(able)):
            enough = [set_ for set_ in combinations(able, count) if self._suffices(set_, gpus)]
            if enough:
                return min(enough, key=self._cost)
        return tuple(able)

    def _spared(self, able: Sequence[RunningJob], gpus: Sequence[Slot]) -> tuple[RunningJob, ...]:
        """Of very many, let the dearest stay as long as the others suffice."""
        left = tuple(able)
        for one in reversed(able):
            without = tuple(other for other in left if other is not one)
            if self._suffices(without, gpus):
                left = without
        return left

    def _cost(self, set_: Sequence[RunningJob]) -> _Cost:
        lost = [(self._now - one.started_at).total_seconds() * len(one.gpu_uuids) for one in set_]
        return (
            len(set_),
            max((one.priority for one in set_), default=0),
            sum(lost),
            tuple(sorted(-one.id for one in set_)),
        )


def _may_go(one: RunningJob, job: QueuedJob, policy: PreemptionPolicy, now: datetime) -> bool:
    has_run = now - one.started_at >= timedelta(minutes=policy.min_run_minutes)
    is_lower = _RANK[CLASSES[one.priority]] < _RANK[CLASSES[job.priority]]
    return one.preemptible and is_lower and has_run and not one.yields and bool(one.gpu_uuids)


def _yield(one: RunningJob, job: QueuedJob, kept: tuple[str, ...]) -> Yield:
    kind = CLASSES[job.priority].value
    text = f"Job {job.id} of {job.owner} ({kind}) needs its GPU."
    return Yield(job_id=one.id, code=CODE, text=text, for_job=job.id, gpu_uuids=kept)


def _id(one: RunningJob) -> int:
    return one.id


def deadline_of(
    wish: Yield,
    *,
    grace: timedelta,
    requeue: bool,
    ran_for: timedelta,
    policy: PreemptionPolicy,
    now: datetime,
) -> datetime:
    """When what is left of the job is killed.

    A GPU's owner waits for nobody who has nothing to save and will be run again.
    """
    if wish.deadline is not None:
        return max(now, wish.deadline)
    is_young = ran_for < timedelta(minutes=policy.young_minutes)
    if wish.for_job is None and requeue and is_young:
        return now
    return now + min(grace, timedelta(minutes=policy.most_grace_minutes))
