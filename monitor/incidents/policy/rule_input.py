"""Input of the rules: processes and bookings of a snapshot, grouped by accountable user or job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from monitor.facts.claims import JOB_KINDS, ClaimFact, Demand
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot
from monitor.incidents.policy.findings import (
    EmptyBooking,
    ExemptionRule,
    Group,
    RuleInput,
    is_exempt,
    key_of,
)
from monitor.incidents.policy.thresholds import GpuTimePolicy
from monitor.incidents.policy.usage_buffers import ProcessPresence, UsageBuffers
from monitor.incidents.policy.usage_series import Series

# (job, GPU)
Booking = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GroupedProcesses:
    """Processes by group, without exempt processes."""

    groups: Mapping[str, list[ProcessReading]]
    claims: Mapping[Booking, ClaimFact]


def group_key(process: ProcessReading, claims: Mapping[Booking, ClaimFact]) -> str:
    """The group of a process: a job on a GPU, or a user on a GPU in one container.

    Processes of one container with an unknown owner form a group, too. Any other process with an
    unknown owner is a group of its own.
    """
    return group_name(
        process.gpu_uuid,
        process.job_ref if (process.job_ref, process.gpu_uuid) in claims else None,
        process.job_owner or process.user,
        process.container,
        process.pid,
    )


def group_name(
    gpu_uuid: str, job_ref: str | None, user: str | None, container: str | None, pid: int
) -> str:
    if job_ref:
        return f"{gpu_uuid}|job {job_ref}"
    if user or container:
        return f"{gpu_uuid}|{user or ''}|{container or ''}"
    return f"{gpu_uuid}|pid {pid}"


def bookings(claims: Sequence[ClaimFact]) -> dict[Booking, ClaimFact]:
    """The claims of jobs and model services; external locks are not bookings."""
    return {(c.job_ref, c.gpu_uuid): c for c in claims if c.kind in JOB_KINDS and c.until is None}


def group_processes(
    processes: Iterable[ProcessReading],
    claims: Mapping[Booking, ClaimFact],
    policy: GpuTimePolicy,
    exempt: Sequence[ExemptionRule],
) -> GroupedProcesses:
    groups: dict[str, list[ProcessReading]] = {}
    for process in processes:
        key = group_key(process, claims)
        # Processes of a job on its booked GPUs belong to the job, also if their user is exempt.
        booked = (process.job_ref, process.gpu_uuid) in claims
        if booked or not is_exempt(process, policy, exempt):
            groups.setdefault(key, []).append(process)
    return GroupedProcesses(groups, claims)


def presences(grouped: GroupedProcesses) -> list[ProcessPresence]:
    """The present processes, as input of the usage buffers."""
    return [
        ProcessPresence(
            key_of(process),
            group,
            process.sm_pct,
            process.memory_bytes,
            process.created_at.timestamp() if process.created_at else None,
        )
        for group, processes in grouped.groups.items()
        for process in processes
    ]


def readable_gpus(snapshot: Snapshot) -> set[str]:
    """The GPUs whose processes are all known."""
    return {gpu.uuid for gpu in snapshot.gpus if gpu.health is Health.OK}


@dataclass(slots=True)
class EmptyBookingTracker:
    """Since when booked GPUs have had no process of their job, and how long this was unknown.

    If two updates are more than `gap_s` apart, the time between them is unknown.
    """

    gap_s: float = 15.0
    seen_t: dict[Booking, float] = field(default_factory=dict)
    blind_s: dict[Booking, float] = field(default_factory=dict)
    looked_t: float | None = None

    def look(self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]) -> None:
        """Update from the processes of this snapshot."""
        t = snapshot.at.timestamp()
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        silent = _gpus_with_unknown_processes(snapshot)
        there = {(process.job_ref or "", process.gpu_uuid) for process in snapshot.processes}
        for booking in claims:
            if booking in there:
                self.seen_t[booking], self.blind_s[booking] = t, 0.0
            elif booking[1] in silent or passed > self.gap_s:
                self.blind_s[booking] = self.blind_s.get(booking, 0.0) + passed
        for booking in [b for b in (*self.seen_t, *self.blind_s) if b not in claims]:
            self.seen_t.pop(booking, None)
            self.blind_s.pop(booking, None)
        self.looked_t = t

    def since(
        self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]
    ) -> dict[Booking, EmptyBooking | None]:
        """The empty bookings. None: the GPU cannot be read, or an unknown process is on it."""
        t = snapshot.at.timestamp()
        silent = _gpus_with_unknown_processes(snapshot)
        result: dict[Booking, EmptyBooking | None] = {}
        for booking, claim in claims.items():
            if self.seen_t.get(booking) == t:
                continue
            since = self.begin_of(booking, claim, t)
            blind = self.blind_s.get(booking, 0.0) / (t - since) if t > since else 0.0
            tellable = booking[1] not in silent
            result[booking] = EmptyBooking(since, max(0.0, 1.0 - blind)) if tellable else None
        return result

    def begin_of(self, booking: Booking, claim: ClaimFact, t: float) -> float:
        """When the GPU was booked, or a process of its job was last seen there."""
        booked_t = claim.since.timestamp() if claim.since else t
        return max(self.seen_t.get(booking, 0.0), booked_t)


def _gpus_with_unknown_processes(snapshot: Snapshot) -> set[str]:
    """GPUs on which the owner of a process is unknown."""
    can_read = readable_gpus(snapshot)
    unknown = {p.gpu_uuid for p in snapshot.processes if not (p.user or p.job_ref)}
    return unknown | {gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in can_read}


def build(
    snapshot: Snapshot,
    grouped: GroupedProcesses,
    windows: UsageBuffers,
    empty_bookings: EmptyBookingTracker,
    demand: Sequence[Demand],
    shares: Mapping[str, float] | None = None,
) -> RuleInput:
    """Return the input of the rules."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    groups: list[Group] = []
    strays: list[Group] = []
    jobs: dict[str, list[Group]] = {}
    booked = {ref for ref, _ in grouped.claims}
    for key, processes in grouped.groups.items():
        first = processes[0]
        gpu = gpus.get(first.gpu_uuid)
        if gpu is None:
            continue
        claim = grouped.claims.get((first.job_ref or "", first.gpu_uuid))
        group = _group(key, gpu, processes, claim, windows)
        if claim is not None:
            jobs.setdefault(claim.job_ref, []).append(group)
            continue
        groups.append(group)
        if any(p.job_ref in booked for p in processes):
            strays.append(group)
    for (job_ref, uuid), claim in grouped.claims.items():
        key = group_name(uuid, job_ref, None, None, 0)
        if key not in grouped.groups and uuid in gpus:
            jobs.setdefault(job_ref, []).append(_group(key, gpus[uuid], (), claim, windows))
    return RuleInput(
        t=snapshot.at.timestamp(),
        gpus=snapshot.gpus,
        groups=tuple(groups),
        jobs={ref: tuple(parts) for ref, parts in jobs.items()},
        strays=tuple(strays),
        empty=empty_bookings.since(snapshot, grouped.claims),
        series=windows.processes,
        demand=demand,
        shares=shares or {},
        series_of=windows.by_user,
        in_turn=windows.turns.ranks,
    )


def _group(
    key: str,
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    claim: ClaimFact | None,
    windows: UsageBuffers,
) -> Group:
    first = processes[0] if processes else None
    return Group(
        key=key,
        gpu=gpu,
        series=windows.groups.get(key) or Series(),
        user=(first.job_owner or first.user) if first else None,
        container=first.container if first else None,
        claim=claim,
        processes=tuple(processes),
    )
