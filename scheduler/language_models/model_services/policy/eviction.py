"""Policy: whether waiting scripts evict a model, and which one.

The three rules, with S queued scripts, L queued prompts and R GPUs in `llm_ready`:

1. R > 0 and S > `min_script_queue_for_evict`
2. S > 20 and L = 0
3. R > 0 and S × average script seconds ÷ R > boot seconds of the model
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, combinations
from math import inf

from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import QueuedJob
from scheduler.facts.language_models import InstanceFact, InstanceState, Role
from scheduler.facts.plans import Slot

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The instances that leave, and the GPUs that the job then gets."""

    chosen: tuple[Candidate, ...]
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
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
