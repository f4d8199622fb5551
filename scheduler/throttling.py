"""Rows <-> facts: what the controller allows on a host, and what it remembers from look to look."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from monitor.prepared import prepared
from scheduler.blockers import Blocker, Tier
from scheduler.jobs import PriorityClass
from scheduler.models import ThrottleState
from scheduler.plans import RunningJob, Throttle
from scheduler.policy.adaptive import LoadTier
from scheduler.policy.pressure import Deferral, Strain
from scheduler.policy.smoothing import Smoothed
from scheduler.policy.throttle import GpuMemory, Memory
from scheduler.policy.utilisation import Level

# A controller that has been silent for so long holds nobody back.
STALE_AFTER = timedelta(minutes=2)
# What a host's row said when it was last read, and what that means.
_read: dict[str, tuple[str, Throttle]] = {}


def throttle(host: str, now: datetime, running: Sequence[RunningJob]) -> Throttle:
    """What is allowed on `host` now, one small query.

    Of `running` those that share a GPU count: what came or went since the controller's look.
    """
    rows = ThrottleState.objects.filter(host=host)
    found = rows.values_list("allowed", "at", "sharing").first()
    if found is None or now - found[1] > STALE_AFTER:
        return Throttle()
    text, _, sharing = found
    kept = _read.get(host)
    if kept is None or kept[0] != text:
        kept = _read[host] = (text, _allowed(text))
    if kept[1].starts is None:
        return kept[1]
    more = sharing - sum(job.requirement.shares for job in running)
    return replace(kept[1], starts=max(0, kept[1].starts + more)) if more else kept[1]


def load(host: str) -> tuple[Memory, datetime | None]:
    """What the last look left, and when it was."""
    row = next((row for row in _by_host() if row.host == host), None)
    return (Memory(), None) if row is None else (_memory(json.loads(row.memory)), row.at)


def save(host: str, memory: Memory, allowed: Throttle, now: datetime) -> None:
    """Keep a look."""
    row = ThrottleState(
        host=host,
        at=now,
        allowed=json.dumps(_throttle_row(allowed), separators=(",", ":")),
        sharing=memory.level.running,
        memory=json.dumps(_memory_row(memory), separators=(",", ":")),
    )
    ThrottleState.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["host"],
        update_fields=["at", "allowed", "sharing", "memory"],
    )


def shown() -> list[tuple[str, datetime, Throttle, Memory]]:
    """Each host's name, its last look, what is allowed there and why; for pages."""
    return [
        (row.host, row.at, _allowed(row.allowed), _memory(json.loads(row.memory)))
        for row in _by_host()
    ]


@prepared
def _by_host() -> QuerySet[ThrottleState]:
    return ThrottleState.objects.order_by("host")


def _allowed(text: str) -> Throttle:
    """What another version of this code wrote holds nobody back: the next look is near."""
    try:
        return _throttle(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return Throttle()


def _throttle_row(allowed: Throttle) -> dict[str, Any]:
    return {
        "closed": {kind.value: _blocker_row(b) for kind, b in allowed.closed.items()},
        "closed_gpus": {
            kind.value: {uuid: _blocker_row(b) for uuid, b in gpus.items()}
            for kind, gpus in allowed.closed_gpus.items()
        },
        "starts": allowed.starts,
        "multipliers": dict(allowed.multipliers),
        "reason": allowed.reason,
        "target": allowed.target,
        "saturated": sorted(allowed.saturated),
        "uses": dict(allowed.uses),
    }


def _throttle(body: Mapping[str, Any]) -> Throttle:
    return Throttle(
        closed={PriorityClass(kind): _blocker(row) for kind, row in body["closed"].items()},
        closed_gpus={
            PriorityClass(kind): {uuid: _blocker(row) for uuid, row in gpus.items()}
            for kind, gpus in body["closed_gpus"].items()
        },
        starts=body["starts"],
        multipliers=body["multipliers"],
        reason=body["reason"],
        target=body["target"],
        saturated=frozenset(body["saturated"]),
        uses=body["uses"],
    )


def _blocker_row(blocker: Blocker) -> dict[str, Any]:
    return {
        "text": blocker.text,
        "code": blocker.code,
        "available": blocker.available,
        "holder": blocker.holder,
        "until": blocker.until and blocker.until.isoformat(),
    }


def _blocker(row: Mapping[str, Any]) -> Blocker:
    until = row["until"] and datetime.fromisoformat(row["until"])
    return Blocker(
        code=row["code"],
        text=row["text"],
        tier=Tier.MACHINE,
        available=row.get("available"),
        holder=row["holder"],
        until=until,
    )


def _memory_row(memory: Memory) -> dict[str, Any]:
    return {
        "gpus": {
            uuid: [_smoothed_row(gpu.use), _smoothed_row(gpu.others), gpu.tier, gpu.full_since_t]
            for uuid, gpu in memory.gpus.items()
        },
        "use": _smoothed_row(memory.use),
        "busy": {kind.value: sorted(uuids) for kind, uuids in memory.busy.items()},
        "early": sorted(memory.early),
        "deferrals": {kind.value: asdict(found) for kind, found in memory.deferrals.items()},
        "level": asdict(memory.level),
        "told": memory.told,
        "free_since_t": memory.free_since_t,
        "overloaded": memory.overloaded,
        "named": memory.named,
    }


def _memory(row: Mapping[str, Any]) -> Memory:
    """What another version of this code wrote is a new beginning."""
    try:
        return Memory(
            gpus={
                uuid: GpuMemory(
                    use=Smoothed(*use),
                    others=Smoothed(*others),
                    tier=None if tier is None else LoadTier(tier),
                    full_since_t=full_since_t,
                )
                for uuid, (use, others, tier, full_since_t) in row["gpus"].items()
            },
            use=Smoothed(*row["use"]),
            busy={PriorityClass(kind): frozenset(found) for kind, found in row["busy"].items()},
            early=frozenset(row["early"]),
            deferrals={
                PriorityClass(kind): _deferral(found) for kind, found in row["deferrals"].items()
            },
            level=Level(**row["level"]),
            told=row["told"],
            free_since_t=row["free_since_t"],
            overloaded=row["overloaded"],
            named=row["named"],
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return Memory()


def _smoothed_row(mean: Smoothed) -> list[float]:
    return [round(part, 4) for part in (mean.sum, mean.known, mean.total)]


def _deferral(row: Mapping[str, Any]) -> Deferral:
    return Deferral(**{**row, "strains": tuple(Strain(**strain) for strain in row["strains"])})
