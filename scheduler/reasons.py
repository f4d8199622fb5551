"""Rows: why jobs wait, as it is stored with them; written only when it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from scheduler.blockers import Blocker
from scheduler.jobs import JobState
from scheduler.models import Job

Reasons = tuple[tuple[str, str | None, str | None, str | None], ...]
# Figures of a machine that works never stand still: alone they are no news for so long.
FIGURES_FOR = timedelta(hours=1)


class Told:
    """The reasons that are stored with each waiting job, and since when."""

    def __init__(self, stored: Mapping[int, Reasons], now: datetime) -> None:
        self._stored = {id_: (key, now) for id_, key in stored.items()}

    def news(self, keys: Mapping[int, Reasons], now: datetime) -> list[int]:
        """The jobs whose reasons are to be stored."""
        return [id_ for id_, key in keys.items() if self._is_news(id_, key, now)]

    def _is_news(self, job_id: int, key: Reasons, now: datetime) -> bool:
        old, at = self._stored.get(job_id, (None, now))
        if old is None or old == key:
            return old is None
        return now - at >= FIGURES_FOR or _without_figures(old) != _without_figures(key)

    def keep(self, keys: Mapping[int, Reasons], news: Collection[int], now: datetime) -> None:
        """These are stored now; who is not among `keys` does not wait any more."""
        self._stored = {
            id_: (key, now) if id_ in news else self._stored[id_] for id_, key in keys.items()
        }


@lru_cache(maxsize=4096)
def _without_figures(key: Reasons) -> frozenset[tuple[str | None, ...]]:
    """Nor the order, which follows from them."""
    return frozenset((code, requested, holder) for code, requested, _, holder in key)


def keys(blockers: Iterable[Blocker]) -> Reasons:
    """What makes reasons to wait the same or new ones."""
    return tuple(blocker.key for blocker in blockers)


def keys_of(blockers: Mapping[int, tuple[Blocker, ...]]) -> dict[int, Reasons]:
    """What makes each job's reasons the same or new ones. Most jobs share theirs with others."""
    known: dict[int, Reasons] = {}
    found = {}
    for job_id, why in blockers.items():
        key = known.get(id(why))
        if key is None:
            key = known[id(why)] = keys(why)
        found[job_id] = key
    return found


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
