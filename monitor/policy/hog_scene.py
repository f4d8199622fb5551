"""A snapshot and what is booked, sorted into who is accountable for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.claims import ClaimKind
from monitor.demand import Demand
from monitor.policy.findings import Empty, Group, Scene, key_of
from monitor.policy.hog_policies import HogPolicy
from monitor.policy.sparing import Exempt, spared
from monitor.policy.use_series import Series
from monitor.policy.use_windows import Present, Windows
from monitor.readings import ClaimFact, GpuReading, Health, ProcessReading, Snapshot

# (job, GPU)
Booking = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sorted:
    """The processes of a snapshot by group; those of nobody who may be accused are in none."""

    groups: Mapping[str, list[ProcessReading]]
    claims: Mapping[Booking, ClaimFact]


def group_key(process: ProcessReading, claims: Mapping[Booking, ClaimFact]) -> str:
    """Together: what a job has on a GPU, or what a person has there in one container.

    A process whose owner nobody knows stands for itself.
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
    if user:
        return f"{gpu_uuid}|{user}|{container or ''}"
    return f"{gpu_uuid}|pid {pid}"


def bookings(claims: Sequence[ClaimFact]) -> dict[Booking, ClaimFact]:
    """The claims of jobs and models; somebody's lock on a GPU is none."""
    return {
        (c.job_ref, c.gpu_uuid): c
        for c in claims
        if c.kind is not ClaimKind.LOCK and c.until is None
    }


def sort(
    snapshot: Snapshot,
    claims: Mapping[Booking, ClaimFact],
    policy: HogPolicy,
    exempt: Sequence[Exempt],
) -> Sorted:
    groups: dict[str, list[ProcessReading]] = {}
    for process in snapshot.processes:
        key = group_key(process, claims)
        # What a job has within its bookings counts as its own whoever is exempt.
        booked = (process.job_ref, process.gpu_uuid) in claims
        if booked or not spared(process, policy, exempt):
            groups.setdefault(key, []).append(process)
    return Sorted(groups, claims)


def present(found: Sorted) -> list[Present]:
    """What the windows are fed with."""
    return [
        Present(
            key_of(process),
            group,
            process.sm_pct,
            process.memory_bytes,
            process.created_at.timestamp() if process.created_at else None,
        )
        for group, processes in found.groups.items()
        for process in processes
    ]


def readable(snapshot: Snapshot) -> set[str]:
    """The GPUs of which it is known who is on them."""
    return {gpu.uuid for gpu in snapshot.gpus if gpu.health is Health.OK}


@dataclass(slots=True)
class Emptiness:
    """Since when booked GPUs have had no process of their job, and for how long nobody could tell.

    Looks further apart than `gap_s` tell nothing of the time between.
    """

    gap_s: float = 15.0
    seen_t: dict[Booking, float] = field(default_factory=dict)
    blind_s: dict[Booking, float] = field(default_factory=dict)
    looked_t: float | None = None

    def look(self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]) -> None:
        """Remember who is where at this look."""
        t = snapshot.at.timestamp()
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        silent = _silent(snapshot)
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
    ) -> dict[Booking, Empty | None]:
        """None where it can't be told now: the GPU is silent, or somebody unknown is on it."""
        t = snapshot.at.timestamp()
        silent = _silent(snapshot)
        found: dict[Booking, Empty | None] = {}
        for booking, claim in claims.items():
            if self.seen_t.get(booking) == t:
                continue
            since = self.begin_of(booking, claim, t)
            blind = self.blind_s.get(booking, 0.0) / (t - since) if t > since else 0.0
            tellable = booking[1] not in silent
            found[booking] = Empty(since, max(0.0, 1.0 - blind)) if tellable else None
        return found

    def begin_of(self, booking: Booking, claim: ClaimFact, t: float) -> float:
        """When it was booked, or its job last seen there."""
        booked_t = claim.since.timestamp() if claim.since else t
        return max(self.seen_t.get(booking, 0.0), booked_t)


def _silent(snapshot: Snapshot) -> set[str]:
    """The GPUs of which nobody can tell who is on them."""
    can_read = readable(snapshot)
    unknown = {p.gpu_uuid for p in snapshot.processes if not (p.user or p.job_ref)}
    return unknown | {gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in can_read}


def scene(
    snapshot: Snapshot,
    found: Sorted,
    windows: Windows,
    emptiness: Emptiness,
    demand: Sequence[Demand],
) -> Scene:
    """What the rules look at."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    groups: list[Group] = []
    strays: list[Group] = []
    jobs: dict[str, list[Group]] = {}
    booked = {ref for ref, _ in found.claims}
    for key, processes in found.groups.items():
        first = processes[0]
        gpu = gpus.get(first.gpu_uuid)
        if gpu is None:
            continue
        claim = found.claims.get((first.job_ref or "", first.gpu_uuid))
        group = _group(key, gpu, processes, claim, windows)
        if claim is not None:
            jobs.setdefault(claim.job_ref, []).append(group)
            continue
        groups.append(group)
        if any(p.job_ref in booked for p in processes):
            strays.append(group)
    for (job_ref, uuid), claim in found.claims.items():
        key = group_name(uuid, job_ref, None, None, 0)
        if key not in found.groups and uuid in gpus:
            jobs.setdefault(job_ref, []).append(_group(key, gpus[uuid], (), claim, windows))
    return Scene(
        t=snapshot.at.timestamp(),
        gpus=snapshot.gpus,
        groups=tuple(groups),
        jobs={ref: tuple(parts) for ref, parts in jobs.items()},
        strays=tuple(strays),
        empty=emptiness.since(snapshot, found.claims),
        series=windows.processes,
        demand=demand,
    )


def _group(
    key: str,
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    claim: ClaimFact | None,
    windows: Windows,
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
