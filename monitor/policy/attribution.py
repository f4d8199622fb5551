"""Whose process it is: what the driver lists, who the pids are, which job they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monitor.readings import ClaimFact, GpuProcess, ProcessIdentity, ProcessReading


def attribute(
    processes: Iterable[GpuProcess],
    identities: Mapping[int, ProcessIdentity],
    claims: Iterable[ClaimFact],
) -> tuple[ProcessReading, ...]:
    """Every process with its owner and job, as far as they are known."""
    leaders = {c.leader_pid: c for c in claims if c.leader_pid is not None}
    return tuple(_reading(p, identities.get(p.pid), leaders) for p in processes)


def _reading(
    process: GpuProcess, identity: ProcessIdentity | None, leaders: Mapping[int, ClaimFact]
) -> ProcessReading:
    claim = _claim(process.pid, identity, leaders)
    return ProcessReading(
        gpu_uuid=process.gpu_uuid,
        pid=process.pid,
        start_ticks=identity.start_ticks if identity else None,
        created_at=identity.created_at if identity else None,
        uid=identity.uid if identity else None,
        user=identity.user if identity else None,
        program=identity.program if identity else None,
        command=identity.command if identity else None,
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
        kinds=process.kinds,
        source=process.source,
        container=identity.container if identity else None,
        instance=process.instance,
        job_ref=claim.job_ref if claim else None,
        job_owner=claim.owner if claim else None,
    )


def _claim(
    pid: int, identity: ProcessIdentity | None, leaders: Mapping[int, ClaimFact]
) -> ClaimFact | None:
    """The job whose leader is the process itself, leads its session, or is among its parents."""
    own = leaders.get(pid)
    if own is not None:
        # The same pid with another start is another process: the leader has ended.
        known = identity is not None and own.leader_start_ticks is not None
        return own if not known or _ticks(identity) == own.leader_start_ticks else None
    if identity is None:
        return None
    for other in (identity.session, *identity.lineage):
        claim = leaders.get(other) if other is not None else None
        if claim is not None and _may_descend(identity, claim):
            return claim
    return None


def _ticks(identity: ProcessIdentity | None) -> int | None:
    return identity.start_ticks if identity else None


def _may_descend(identity: ProcessIdentity, claim: ClaimFact) -> bool:
    """A process older than a job's leader is no child of it: that pid was someone else then."""
    return claim.leader_start_ticks is None or identity.start_ticks >= claim.leader_start_ticks
