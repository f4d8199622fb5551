"""A person's own page: what they use now, what they hold idle, what they are asked to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from monitor import formats, idle_rows, patterns, policies, store
from monitor.incident_letters import told
from monitor.models import Incident, ProcessUse
from monitor.pages import cards, incident_badges
from monitor.pages.cards import ProcessRow
from monitor.policy.hog_policies import HogPolicy, MemoryPolicy
from monitor.policy.hog_rules import IDLE_HELD
from monitor.policy.incident_words import Told
from monitor.readings import ProcessReading, Snapshot

# A process that has just come is not idle yet.
LEAST_S = 600.0


@dataclass(frozen=True, slots=True)
class Now:
    """One process of theirs; `idle_since`: nothing has used what it holds since then."""

    row: ProcessRow
    gpu_uuid: str
    gpu: str
    idle_since: datetime | None


@dataclass(frozen=True, slots=True)
class Asked:
    """An open incident, said to the one whom it concerns."""

    incident: Incident
    told: Told


def context(name: str, now: datetime) -> dict[str, Any]:
    """Template variables of the part that only the person and operators see.

    `idle`: what they hold idle and are not asked about already.
    """
    asked = incident_badges.open_of(name)
    mine = _processes(store.newest_all(), name, now)
    known = {(row.gpu_id, row.pid) for row in asked if row.rule == IDLE_HELD}
    idle = [p for p in mine if p.idle_since and (p.gpu_uuid, p.row.pid) not in known]
    return {
        "asked": [Asked(incident, told(incident)) for incident in asked],
        "mine": mine,
        "idle": idle,
        "idle_bytes": sum(process.row.memory_bytes or 0 for process in idle),
        "patterns": patterns.of_person(name),
    }


def _processes(snapshots: Sequence[Snapshot], name: str, now: datetime) -> list[Now]:
    badges = incident_badges.current(now)
    several = len(snapshots) > 1
    found: list[Now] = []
    for snapshot in snapshots:
        gpus = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        own = [p for p in snapshot.processes if (p.job_owner or p.user) == name]
        idle = _idle(snapshot.host.name, own, now) if own else {}
        found += [
            Now(
                cards.process_row(p, badges),
                p.gpu_uuid,
                f"{snapshot.host.name} GPU {gpus[p.gpu_uuid]}"
                if several
                else f"GPU {gpus[p.gpu_uuid]}",
                idle.get((p.gpu_uuid, p.pid)),
            )
            for p in own
            if p.gpu_uuid in gpus
        ]
    return sorted(found, key=lambda n: (n.idle_since is None, -(n.row.memory_bytes or 0)))


def _idle(
    host: str, own: Sequence[ProcessReading], now: datetime
) -> dict[tuple[str, int], datetime]:
    """Since when each process that holds much has used nothing, as far as it is known."""
    force = policies.InForce()
    memory, coverage = force.of(MemoryPolicy), force.of(HogPolicy).coverage_pct / 100
    least = memory.idle_gib * formats.GIB
    big = {(p.gpu_uuid, p.pid) for p in own if (p.memory_bytes or 0) >= least}
    uses = ProcessUse.objects.filter(host=host, pid__in={pid for _, pid in big}, ended_at=None)
    held = {use.pk: use for use in uses if (use.gpu_id, use.pid) in big}
    since = idle_rows.idle_since(held.values(), now, below_pct=memory.idle_pct, coverage=coverage)
    return {
        (held[pk].gpu_id, held[pk].pid): begin
        for pk, begin in since.items()
        if (now - begin).total_seconds() >= LEAST_S
    }
