"""A snapshot and what is booked, sorted into who is accountable for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.claims import ClaimKind
from monitor.demand import Demand
from monitor.policy.findings import Group, Scene, key_of
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
    """Since when booked GPUs have had no process of their job."""

    seen_t: dict[Booking, float] = field(default_factory=dict)

    def look(self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]) -> None:
        """Remember who is where at this look."""
        t = snapshot.at.timestamp()
        for process in snapshot.processes:
            booking = (process.job_ref or "", process.gpu_uuid)
            if booking in claims:
                self.seen_t[booking] = t
        for booking in [b for b in self.seen_t if b not in claims]:
            del self.seen_t[booking]

    def since(
        self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]
    ) -> dict[Booking, float | None]:
        """None where it can't be told: the GPU is silent, or somebody unknown is on it."""
        t = snapshot.at.timestamp()
        can_read = readable(snapshot)
        unknown = {p.gpu_uuid for p in snapshot.processes if not (p.user or p.job_ref)}
        found: dict[Booking, float | None] = {}
        for booking, claim in claims.items():
            if self.seen_t.get(booking) == t:
                continue
            booked_t = claim.since.timestamp() if claim.since else t
            tellable = booking[1] in can_read and booking[1] not in unknown
            found[booking] = max(self.seen_t.get(booking, 0.0), booked_t) if tellable else None
        return found


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
        empty_t=emptiness.since(snapshot, found.claims),
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
