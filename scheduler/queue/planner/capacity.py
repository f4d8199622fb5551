"""Policy: free resources of each GPU and of the host, from a snapshot and the claims of jobs.

free = total - reserved by the driver
     - max(used - used by jobs, memory of foreign processes, their peaks plus headroom)
     - sum over jobs of max(declared, observed, peak plus headroom if above declared)
     - margin

Unknown memory is never counted as free. Of the host, jobs reserve memory and CPUs at placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.accounts import ASLEEP, ClaimFact
from monitor.facts.formats import GIB
from monitor.facts.gpus import Condition
from monitor.facts.readings import (
    ComputeMode,
    GpuReading,
    Health,
    OwnerReading,
    Presence,
    ProcessReading,
    Snapshot,
)
from monitor.facts.thresholds import percent, threshold
from monitor.gpus.policy import capability
from monitor.gpus.policy.capability import NOT_OURS, has_no_figure, hidden
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots
from scheduler.facts.units import size
from scheduler.queue.planner.matching import version

MPS_SERVER = "nvidia-cuda-mps-server"
# Parts of the names of the driver's calls for memory and for lists of processes.
MEMORY_CALL, LIST_CALL = "nvmlDeviceGetMemoryInfo", "RunningProcesses"
# The most memory that a process ever held, by GPU, pid and start ticks.
Peaks = Mapping[tuple[str, int, int | None], int]


# %: memory reserved for a running process above its highest use so far.
ABOVE_PEAK_PCT = 10.0
# %: a job that requests this share of a GPU's memory is a heavy start; only one starts there at a
# time. It is complete at this share of the declared memory, or after this time.
HEAVY_PCT, RAMPED_PCT, RAMP = 30.0, 50.0, timedelta(seconds=60)


class CapacityContext(Struct, frozen=True, kw_only=True):
    """Facts about the GPUs besides the newest reading, by UUID. powers: ranks by model."""

    peaks: Peaks = field(default_factory=dict)
    closed: Mapping[str, tuple[Blocker, ...]] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    powers: Mapping[str, float] = field(default_factory=dict)


def slots(
    snapshot: Snapshot | None,
    claims: Sequence[ClaimFact],
    policy: PlanPolicy,
    now: datetime,
    *,
    host: str,
    cpu_jobs: int = 0,
    context: CapacityContext | None = None,
) -> Slots:
    """Resources of `host` at `now`. claims: the open claims of that host."""
    builder = _SlotBuilder(policy, context or CapacityContext(), now)
    return Slots(
        host=host,
        gpus=builder.slots(snapshot, claims) if snapshot else (),
        cpu_jobs=cpu_jobs,
        blocker=_blocker(snapshot, policy, now),
    )


def _blocker(snapshot: Snapshot | None, policy: PlanPolicy, now: datetime) -> Blocker | None:
    """Why the readings as a whole allow no placement."""
    if snapshot is None:
        return Blocker(code=BlockerCode.NO_READING, tier=Tier.MACHINE)
    if now - snapshot.at > policy.stale_after:
        limit = f"{policy.stale_after.total_seconds():.0f} s"
        return Blocker(code=BlockerCode.STALE_READING, tier=Tier.MACHINE, requested=limit)
    if not snapshot.gpus:
        why = snapshot.problem or "the machine has none"
        return Blocker(code=BlockerCode.NO_GPU, tier=Tier.MACHINE, holder=why)
    return None


class _SlotBuilder(Struct, frozen=True):
    """Computes the slots of a snapshot."""

    policy: PlanPolicy
    context: CapacityContext
    now: datetime

    def slots(self, snapshot: Snapshot, claims: Sequence[ClaimFact]) -> tuple[Slot, ...]:
        left_out = hidden(snapshot.gpus, snapshot.host.limits)
        pairs = [(gpu, self._slot(snapshot, gpu, claims)) for gpu in snapshot.gpus]
        return tuple(
            replace(slot, healthy=False, problem=NOT_OURS) if gpu.uuid in left_out else slot
            for gpu, slot in pairs
        )

    def _slot(self, snapshot: Snapshot, gpu: GpuReading, claims: Sequence[ClaimFact]) -> Slot:
        # Claims that are not jobs count through their processes, or close the GPU.
        jobs = (c for c in claims if c.gpu_uuid == gpu.uuid and c.job_ref.isdigit())
        own_claims = sorted(jobs, key=lambda claim: int(claim.job_ref))
        refs = {c.job_ref for c in own_claims}
        processes = snapshot.on(gpu.uuid)
        own = [p for p in processes if p.job_ref in refs]
        foreign = [p for p in processes if p.job_ref not in refs]
        held_bytes = tuple(
            self._reserved(c, [p for p in own if p.job_ref == c.job_ref]) for c in own_claims
        )
        total = gpu.memory_total_bytes
        lone = lets_one_in(gpu, snapshot)
        ramping = next((c for c in own_claims if self._ramps(c, own, total)), None)
        return Slot(
            gpu_uuid=gpu.uuid,
            host=snapshot.host.name,
            index=gpu.index,
            total_bytes=total,
            free_bytes=self._free(gpu, sum(held_bytes), own, foreign),
            healthy=gpu.health is Health.OK and gpu.condition in (None, Condition.HEALTHY),
            problem=gpu.problem or gpu.condition_reason,
            jobs=tuple(int(c.job_ref) for c in own_claims),
            held_bytes=held_bytes,
            exclusive=any(c.exclusive for c in own_claims) or (lone and bool(own_claims)),
            lone=lone,
            undeclared=any(c.memory_bytes is None and not c.exclusive for c in own_claims),
            foreign=_holders(gpu, own, foreign, self.policy),
            growth_bytes=self._growth(gpu, own, foreign),
            model=gpu.name,
            capability=version(gpu.compute_capability),
            power=capability.of(gpu, self.context.powers).power,
            closed=self.context.closed.get(gpu.uuid, ()),
            reserved_for=self.context.kept.get(gpu.uuid),
            heavy_bytes=None if total is None else int(total * HEAVY_PCT / 100),
            ramping=None if ramping is None else int(ramping.job_ref),
            unsettled=any(
                (end := self._ramps_until(c)) is None or self.now < end for c in own_claims
            ),
            ramps_until=None if ramping is None else self._ramps_until(ramping),
            memory_unsupported=has_no_figure(gpu),
            failed_call=_failed(gpu, MEMORY_CALL),
        )

    def _free(
        self,
        gpu: GpuReading,
        reserved: int,
        own: Sequence[ProcessReading],
        foreign: Sequence[ProcessReading],
    ) -> int | None:
        if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
            return None
        others = _by_others(gpu.memory_used_bytes, own, foreign) + self._growth(gpu, own, foreign)
        taken = (gpu.memory_reserved_bytes or 0) + others + reserved + self.policy.margin_bytes
        return max(0, gpu.memory_total_bytes - taken)

    def _growth(
        self, gpu: GpuReading, own: Sequence[ProcessReading], foreign: Sequence[ProcessReading]
    ) -> int:
        """Memory that is kept for foreign processes above what they hold now."""
        now_bytes = _by_others(gpu.memory_used_bytes or 0, own, foreign)
        return max(0, self._above(self._peak(foreign)) - now_bytes)

    def _reserved(self, claim: ClaimFact, own: Sequence[ProcessReading]) -> int:
        """The declared memory, unless the job used more; of a sleeping model, what it holds."""
        declared, peak = claim.memory_bytes or 0, self._peak(own)
        if claim.phase == ASLEEP:
            return max(declared, _held(own))
        return max(declared, _held(own), self._above(peak) if peak > declared else 0)

    def _peak(self, processes: Sequence[ProcessReading]) -> int:
        """The sum of the peaks of these running processes; 0 where unknown."""
        peaks = self.context.peaks
        return sum(peaks.get((p.gpu_uuid, p.pid, p.start_ticks), 0) for p in processes)

    def _above(self, peak: int) -> int:
        return round(peak * (1 + ABOVE_PEAK_PCT / 100))

    def _ramps(self, claim: ClaimFact, own: Sequence[ProcessReading], total: int | None) -> bool:
        """Whether a heavy start is not complete: the job has not yet taken its memory."""
        declared, until = claim.memory_bytes, self._ramps_until(claim)
        if claim.exclusive or declared is None or total is None or until is None:
            return False
        if declared < total * HEAVY_PCT / 100 or self.now >= until:
            return False
        listed_bytes = _held(p for p in own if p.job_ref == claim.job_ref)
        return listed_bytes < declared * RAMPED_PCT / 100

    def _ramps_until(self, claim: ClaimFact) -> datetime | None:
        return None if claim.since is None else claim.since + RAMP


def _failed(gpu: GpuReading, part: str) -> str | None:
    """The first failed call of the GPU with this in its name, in words."""
    return next((call for call in gpu.failed_calls or () if part in call), None)


def _by_others(
    used_bytes: int, own: Sequence[ProcessReading], foreign: Sequence[ProcessReading]
) -> int:
    """The memory in use that no job of the queue holds."""
    return max(used_bytes - _held(own), _held(foreign))


def _held(processes: Iterable[ProcessReading]) -> int:
    """The sum of known values. The unknown memory of jobs then counts as foreign."""
    return sum(p.memory_bytes or 0 for p in processes)


def _holders(
    gpu: GpuReading,
    own: Sequence[ProcessReading],
    foreign: Sequence[ProcessReading],
    policy: PlanPolicy,
) -> tuple[Holder, ...]:
    """Foreign processes with memory (or with memory unknown), the largest first.

    Where neither the used memory nor the list of processes can be read, an unknown process is one.
    """
    holders = [_holder(process) for process in foreign]
    holders = [h for h in holders if h.memory_bytes != 0]
    listed = [*own, *foreign]
    if gpu.memory_used_bytes is not None and all(p.memory_bytes is not None for p in listed):
        unlisted = gpu.memory_used_bytes - _held(listed)
        if unlisted > policy.unlisted_bytes:
            holders.append(Holder(name="a process that can't be seen", memory_bytes=unlisted))
    elif gpu.memory_used_bytes is None and (call := _failed(gpu, LIST_CALL)):
        holders.append(Holder(name=f"a process that can't be listed ({call})"))
    return tuple(sorted(holders, key=lambda h: (-(h.memory_bytes or 0), h.name)))


def lets_one_in(gpu: GpuReading, snapshot: Snapshot) -> bool:
    """Whether only one process may compute there. An MPS server admits further processes."""
    return gpu.compute_mode is ComputeMode.EXCLUSIVE and not any(
        "M" in process.kinds or process.program == MPS_SERVER for process in snapshot.on(gpu.uuid)
    )


def _holder(process: ProcessReading) -> Holder:
    held_bytes = process.memory_bytes
    if process.job_ref is not None:
        name = f"job {process.job_ref}, which has just ended,"
        return Holder(name=name, memory_bytes=held_bytes)
    user, pid = process.user or "", process.pid
    name = f"{user or 'unknown user'}/{process.program or f'pid {pid}'}"
    return Holder(name=name, memory_bytes=held_bytes, user=user, pid=pid)


def owner_closures(snapshot: Snapshot) -> dict[str, tuple[Blocker, ...]]:
    """Blockers of GPUs that a user outside the queue uses, by UUID."""
    if not snapshot.owners:
        return {}
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    return {
        owner.gpu_uuid: (_owner_blocker(owner, indices[owner.gpu_uuid]),)
        for owner in snapshot.owners
        if owner.keeps_closed and owner.gpu_uuid in indices
    }


def _owner_blocker(owner: OwnerReading, gpu: int) -> Blocker:
    return Blocker(
        code=BlockerCode.OWNER_PRESENT,
        tier=Tier.MACHINE,
        gpu=gpu,
        holder=f"{owner.user or 'unknown user'}/{owner.program or 'a program'}",
        until=owner.until,
        details=details(who=owner.description, leaving=owner.presence is Presence.LEAVING),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """Host memory and CPUs that jobs reserve at their placement."""

    # fmt: off
    memory_pct: float = percent(100.0, "Memory for jobs",
        "Part of the host's memory that running jobs may reserve together. 0 = jobs reserve none. "
        "In a container or pod, its limit counts as the host's memory. Requests of a pod reserve "
        "nothing, because a pod may use more than it requests; /status/ shows them.")
    cpus_pct: float = threshold(100.0, "CPUs for jobs", unit="%", ge=0, le=10_000,
        help="Part of the host's CPUs that running jobs may reserve together; more than 100 "
             "overcommits. 0 = jobs reserve none.")
    from_history: bool = threshold(True, "Undeclared jobs from history",
        "A job that declares no host memory or CPUs reserves what earlier runs of its owner under "
        "the same name took. Without such runs, the two values below apply.")
    default_memory_gib: float = threshold(0.0, "Memory of undeclared jobs", unit="GiB", ge=0,
        le=100_000, help="Reserved by a job that declares no host memory. 0 = nothing.")
    default_cpus: float = threshold(0.0, "CPUs of undeclared jobs", ge=0, le=10_000,
        help="Reserved by a job that declares no CPUs. 0 = nothing.")
    # fmt: on


class HostRoom:
    """Resources of the host that jobs may still reserve; each placement of a pass reduces them."""

    def __init__(
        self, policy: PlanPolicy, rules: HostPolicy, running: Iterable[RunningJob]
    ) -> None:
        self._rules = rules
        memory, cpus = policy.host_memory_bytes, policy.host_cpus
        self.memory = None if memory is None else memory * rules.memory_pct / 100
        self.cpus = None if cpus is None else cpus * rules.cpus_pct / 100
        self.reserved_memory = self.reserved_cpus = 0.0
        for job in running:
            self.take(job.requirement)

    def take(self, requirement: Requirement) -> None:
        self.reserved_memory += self._memory_of(requirement)
        self.reserved_cpus += self._cpus_of(requirement)

    @property
    def is_used(self) -> bool:
        """Whether a job has reserved anything."""
        return bool(self.reserved_memory or self.reserved_cpus)

    def free(self, requirement: Requirement) -> None:
        """Record that a job has ended."""
        self.reserved_memory -= self._memory_of(requirement)
        self.reserved_cpus -= self._cpus_of(requirement)

    def lacks(self, requirement: Requirement) -> tuple[Blocker, ...]:
        """Why such a job finds no room on the host."""
        wants, cpus = self._memory_of(requirement), self._cpus_of(requirement)
        blockers: tuple[Blocker, ...] = ()
        if wants and self.memory and self.reserved_memory + wants > self.memory:
            blockers += (self._memory_blocker(wants, requirement),)
        if cpus and self.cpus and self.reserved_cpus + cpus > self.cpus:
            blockers += (self._cpus_blocker(cpus, requirement),)
        return blockers

    def _memory_of(self, requirement: Requirement) -> float:
        if requirement.host_memory_bytes is not None:
            return requirement.host_memory_bytes
        default = self._rules.default_memory_gib * GIB
        return self._of_history(requirement.usual_memory_bytes, self.memory, default)

    def _cpus_of(self, requirement: Requirement) -> float:
        if requirement.cpus is not None:
            return requirement.cpus
        return self._of_history(requirement.usual_cpus, self.cpus, self._rules.default_cpus)

    def _of_history(self, usual: float | None, whole: float | None, default: float) -> float:
        """At most all of the host: a job that ran before can run again."""
        if usual is None or not self._rules.from_history:
            return default
        return usual if whole is None else min(usual, whole)

    def _memory_blocker(self, wants: float, requirement: Requirement) -> Blocker:
        whole = self.memory or 0.0
        free = max(0.0, whole - self.reserved_memory)
        return Blocker(
            code=BlockerCode.HOST_MEMORY,
            requested=size(int(wants)),
            available=size(int(free)),
            never=wants > whole,
            details=details(
                wants=int(wants),
                free=int(free),
                whole=int(whole),
                undeclared=requirement.host_memory_bytes is None,
            ),
        )

    def _cpus_blocker(self, wants: float, requirement: Requirement) -> Blocker:
        whole = self.cpus or 0.0
        free = max(0.0, whole - self.reserved_cpus)
        return Blocker(
            code=BlockerCode.HOST_CPUS,
            requested=f"{wants:g} CPUs",
            available=f"{free:g} CPUs",
            never=wants > whole,
            details=details(
                wants=wants, free=free, whole=whole, undeclared=requirement.cpus is None
            ),
        )
