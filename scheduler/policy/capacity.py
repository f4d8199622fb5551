"""Policy: what each GPU can still give, from the newest snapshot and our own claims.

free = total - reserved by the driver
     - max(used - used by our jobs, sum of what foreign processes hold, their peaks and a bit)
     - sum over our jobs of max(declared, observed, peak and a bit once that is above declared)
     - margin

What is not known is never counted as free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from monitor.health import Condition
from monitor.policy import capability
from monitor.policy.limits import NOT_OURS, hidden
from monitor.readings import ClaimFact, ComputeMode, GpuReading, Health, ProcessReading, Snapshot
from scheduler.blockers import Blocker, Tier
from scheduler.plans import Holder, PlanPolicy, Slot, Slots
from scheduler.policy.suiting import version

MPS_SERVER = "nvidia-cuda-mps-server"
# The most memory that a process ever held, by GPU, pid and start ticks.
Peaks = Mapping[tuple[str, int, int | None], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy:
    """What is kept free for what will be taken again, or has not been taken yet."""

    above_peak_pct: float = field(
        default=10.0,
        metadata={
            "label": "Kept above a peak",
            "help": "A process may take its highest memory so far again, and so much more.",
            "unit": "%",
            "least": 0,
            "most": 100,
        },
    )
    heavy_pct: float = field(
        default=30.0,
        metadata={
            "label": "A heavy start",
            "help": "A shared job that asks for so much of a GPU's memory: one at a time there.",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )
    ramped_pct: float = field(
        default=50.0,
        metadata={
            "label": "Ramped at",
            "help": "A heavy start is over when the job holds so much of what it declared.",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )
    ramp_s: float = field(
        default=60.0,
        metadata={
            "label": "Ramped after",
            "help": "A heavy start is over after this time, whatever it holds.",
            "unit": "s",
            "least": 0,
            "most": 3600,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is known of the GPUs beside the newest reading, by UUID; powers: ranks by model."""

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
    around: Around | None = None,
    capacity: CapacityPolicy | None = None,
) -> Slots:
    """Say what `host` can give at `now`; `claims` are the open ones of that host."""
    look = _Look(policy, capacity or CapacityPolicy(), around or Around(), now)
    return Slots(
        host=host,
        gpus=look.slots(snapshot, claims) if snapshot else (),
        cpu_jobs=cpu_jobs,
        blocker=_blocker(snapshot, policy, now),
    )


def _blocker(snapshot: Snapshot | None, policy: PlanPolicy, now: datetime) -> Blocker | None:
    """Why the readings as a whole allow no placement."""
    if snapshot is None:
        return Blocker(code="NoReading", tier=Tier.MACHINE, text="The GPUs have not been read yet.")
    if now - snapshot.at > policy.stale_after:
        limit = f"{policy.stale_after.total_seconds():.0f} s"
        text = f"The last reading of the GPUs is older than {limit}, so nothing is placed on it."
        return Blocker(code="StaleReading", tier=Tier.MACHINE, text=text, requested=limit)
    if not snapshot.gpus:
        why = snapshot.problem or "the machine has none"
        text = f"No GPU can be used now: {why}"
        return Blocker(code="NoGpu", tier=Tier.MACHINE, text=text, holder=why)
    return None


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the GPUs of a snapshot."""

    policy: PlanPolicy
    capacity: CapacityPolicy
    around: Around
    now: datetime

    def slots(self, snapshot: Snapshot, claims: Sequence[ClaimFact]) -> tuple[Slot, ...]:
        left_out = hidden(snapshot.gpus, snapshot.host.limits)
        found = [(gpu, self._slot(snapshot, gpu, claims)) for gpu in snapshot.gpus]
        return tuple(
            replace(slot, healthy=False, problem=NOT_OURS) if gpu.uuid in left_out else slot
            for gpu, slot in found
        )

    def _slot(self, snapshot: Snapshot, gpu: GpuReading, claims: Sequence[ClaimFact]) -> Slot:
        # What is no job of ours counts with its processes, or closes the GPU.
        jobs = (c for c in claims if c.gpu_uuid == gpu.uuid and c.job_ref.isdigit())
        here = sorted(jobs, key=lambda claim: int(claim.job_ref))
        refs = {c.job_ref for c in here}
        processes = snapshot.on(gpu.uuid)
        own = [p for p in processes if p.job_ref in refs]
        foreign = [p for p in processes if p.job_ref not in refs]
        held = tuple(self._reserved(c, [p for p in own if p.job_ref == c.job_ref]) for c in here)
        total = gpu.memory_total_bytes
        lone = lets_one_in(gpu, snapshot)
        ramping = next((c for c in here if self._ramps(c, own, total)), None)
        return Slot(
            gpu_uuid=gpu.uuid,
            host=snapshot.host.name,
            index=gpu.index,
            total_bytes=total,
            free_bytes=self._free(gpu, sum(held), own, foreign),
            healthy=gpu.health is Health.OK and gpu.condition in (None, Condition.HEALTHY),
            problem=gpu.problem or gpu.condition_reason,
            jobs=tuple(int(c.job_ref) for c in here),
            held_bytes=held,
            exclusive=any(c.exclusive for c in here) or (lone and bool(here)),
            lone=lone,
            undeclared=any(c.memory_bytes is None and not c.exclusive for c in here),
            foreign=_holders(gpu, own, foreign, self.policy),
            model=gpu.name,
            capability=version(gpu.compute_capability),
            power=capability.of(gpu, self.around.powers).power,
            closed=self.around.closed.get(gpu.uuid, ()),
            kept_for=self.around.kept.get(gpu.uuid),
            heavy_bytes=None if total is None else int(total * self.capacity.heavy_pct / 100),
            ramping=None if ramping is None else int(ramping.job_ref),
            unsettled=any((end := self._ramps_until(c)) is None or self.now < end for c in here),
            ramps_until=None if ramping is None else self._ramps_until(ramping),
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
        others = max(
            gpu.memory_used_bytes - _held(own), _held(foreign), self._above(self._peak(foreign))
        )
        taken = (gpu.memory_reserved_bytes or 0) + others + reserved + self.policy.margin_bytes
        return max(0, gpu.memory_total_bytes - taken)

    def _reserved(self, claim: ClaimFact, own: Sequence[ProcessReading]) -> int:
        """What is declared holds until the job has been seen with more."""
        declared, peak = claim.memory_bytes or 0, self._peak(own)
        return max(declared, _held(own), self._above(peak) if peak > declared else 0)

    def _peak(self, processes: Sequence[ProcessReading]) -> int:
        """The sum of the most that each of these, which all live, ever held; 0 where unknown."""
        peaks = self.around.peaks
        return sum(peaks.get((p.gpu_uuid, p.pid, p.start_ticks), 0) for p in processes)

    def _above(self, peak: int) -> int:
        return round(peak * (1 + self.capacity.above_peak_pct / 100))

    def _ramps(self, claim: ClaimFact, own: Sequence[ProcessReading], total: int | None) -> bool:
        """Whether a job that will take much of the GPU has not yet taken its part of it."""
        declared, until = claim.memory_bytes, self._ramps_until(claim)
        if claim.exclusive or declared is None or total is None or until is None:
            return False
        if declared < total * self.capacity.heavy_pct / 100 or self.now >= until:
            return False
        seen = _held(p for p in own if p.job_ref == claim.job_ref)
        return seen < declared * self.capacity.ramped_pct / 100

    def _ramps_until(self, claim: ClaimFact) -> datetime | None:
        return (
            None if claim.since is None else claim.since + timedelta(seconds=self.capacity.ramp_s)
        )


def _held(processes: Iterable[ProcessReading]) -> int:
    """The sum of what is known. For our own, the unknown rest then counts as someone else's."""
    return sum(p.memory_bytes or 0 for p in processes)


def _holders(
    gpu: GpuReading,
    own: Sequence[ProcessReading],
    foreign: Sequence[ProcessReading],
    policy: PlanPolicy,
) -> tuple[Holder, ...]:
    """Foreign processes with memory (or with memory unknown), the largest first."""
    holders = [Holder(name=_name(p), memory_bytes=p.memory_bytes) for p in foreign]
    holders = [h for h in holders if h.memory_bytes != 0]
    everyone = [*own, *foreign]
    if gpu.memory_used_bytes is not None and all(p.memory_bytes is not None for p in everyone):
        unlisted = gpu.memory_used_bytes - _held(everyone)
        if unlisted > policy.unlisted_bytes:
            holders.append(Holder(name="a process that can't be seen", memory_bytes=unlisted))
    return tuple(sorted(holders, key=lambda h: (-(h.memory_bytes or 0), h.name)))


def lets_one_in(gpu: GpuReading, snapshot: Snapshot) -> bool:
    """Whether only one process may compute there. The one may be MPS's, which lets others in."""
    return gpu.compute_mode is ComputeMode.EXCLUSIVE and not any(
        "M" in process.kinds or process.program == MPS_SERVER for process in snapshot.on(gpu.uuid)
    )


def _name(process: ProcessReading) -> str:
    if process.job_ref is not None:
        return f"job {process.job_ref}, which has just ended,"
    return f"{process.user or 'someone unknown'}/{process.program or f'pid {process.pid}'}"
