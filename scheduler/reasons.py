"""Rows: why jobs wait, as it is stored with them; written only when it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.blockers import Blocker
from scheduler.jobs import JobState
from scheduler.models import Job

Reasons = tuple[tuple[str, str | None, str | None, str | None], ...]


def keys(blockers: Iterable[Blocker]) -> Reasons:
    """What makes reasons to wait the same or new ones."""
    return tuple(blocker.key for blocker in blockers)


def told() -> dict[int, Reasons]:
    """The reasons that are stored with waiting jobs."""
    rows = Job.objects.filter(state=JobState.QUEUED.value).values_list("id", "blockers")
    return {id_: keys(_blocker(body) for body in found) for id_, found in rows}


def explain(blockers: Mapping[int, Sequence[Blocker]]) -> int:
    """Store why jobs wait; how many rows changed. Jobs with the same reasons share a statement."""
    same: dict[tuple[Blocker, ...], list[int]] = {}
    for job_id, reasons in blockers.items():
        same.setdefault(tuple(reasons), []).append(job_id)
    return sum(_explain(ids, reasons) for reasons, ids in same.items())


def _explain(ids: Sequence[int], reasons: Iterable[Blocker]) -> int:
    body = [blocker_body(reason) for reason in reasons]
    return sum(
        Job.objects.filter(pk__in=ids[at : at + 500], state=JobState.QUEUED.value).update(
            blockers=body
        )
        for at in range(0, len(ids), 500)
    )


def _blocker(body: Mapping[str, str | None]) -> Blocker:
    return Blocker(
        code=body.get("code") or "",
        text=body.get("text") or "",
        requested=body.get("requested"),
        available=body.get("available"),
        holder=body.get("holder"),
    )


def blocker_body(blocker: Blocker) -> dict[str, str | int | None]:
    """A blocker as it is stored with its job, and given out by the API."""
    return {
        "code": blocker.code,
        "text": blocker.text,
        "tier": int(blocker.tier),
        "requested": blocker.requested,
        "available": blocker.available,
        "holder": blocker.holder,
        "until": blocker.until.isoformat() if blocker.until else None,
    }
