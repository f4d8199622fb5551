"""Rows -> facts: the waiting jobs that something else than a place keeps back, and what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db.models import Count

from scheduler.blockers import Blocker
from scheduler.dependencies import is_met
from scheduler.jobs import After, JobState
from scheduler.models import Attempt, Job, JobDependency
from scheduler.models.jobs import conditional
from scheduler.policy.waits import Condition, waits

Pending = dict[int, list[tuple[int, After]]]
# Made once, as making such a query takes longer than answering it.
_CONDITIONAL = Job.objects.filter(conditional(), state=JobState.QUEUED.value).values_list(
    "id", "held", "held_by", "begin_at", "retry_at", "failures", "array", "array_limit", "depends"
)


def load(now: datetime) -> dict[int, tuple[Blocker, ...]]:
    """By job; one look at an index that is empty while nobody asks for such things."""
    rows = list(_CONDITIONAL.all())
    if not rows:
        return {}
    pending, arrays = _pending() if any(row[-1] for row in rows) else ({}, frozenset[int]())
    refused = _refused([row[0] for row in rows if row[4] is not None and row[4] > now])
    limited = {row[6] for row in rows if row[6] is not None and row[7] is not None}
    return waits(
        (
            Condition(
                id=id_,
                held=held,
                held_by=held_by,
                begin_at=begin_at,
                retry_at=retry_at,
                failures=failures,
                refused=refused.get(id_, ""),
                array=array,
                array_limit=limit,
                pending=tuple(pending.get(id_, ())),
                arrays=arrays,
            )
            for id_, held, held_by, begin_at, retry_at, failures, array, limit, _ in rows
        ),
        _placed(list(limited)) if limited else {},
        now,
        settings.TIME_ZONE,
    )


def _refused(jobs: Sequence[int]) -> dict[int, str]:
    """Of those whose last attempt never ran: why."""
    if not jobs:
        return {}
    rows = Attempt.objects.filter(job__in=jobs).order_by("number")
    last = {
        job: (outcome, why) for job, outcome, why in rows.values_list("job", "outcome", "problem")
    }
    return {job: why for job, (outcome, why) in last.items() if not outcome}


def _pending() -> tuple[Pending, frozenset[int]]:
    """What waiting jobs still wait for of others, in the order of these; which are arrays."""
    rows = list(
        JobDependency.objects.filter(job__state=JobState.QUEUED.value, job__depends=True)
        .order_by("on_id")
        .values_list("job_id", "on_id", "after", "on__state", "on__outcome", "on__array")
    )
    arrays = frozenset(on for _, on, _, _, _, array in rows if array == on)
    unmet = _unmet(arrays)
    found: Pending = defaultdict(list)
    for job, on, text, state, outcome, _ in rows:
        after = After(text)
        if after in unmet.get(on, ()) or not is_met(after, state, outcome):
            found[job].append((on, after))
    return found, arrays


def _unmet(arrays: frozenset[int]) -> dict[int, set[After]]:
    """Of arrays that are waited for: which waits are not over for all of their jobs."""
    found: dict[int, set[After]] = defaultdict(set)
    rows = Job.objects.filter(array__in=arrays).order_by() if arrays else Job.objects.none()
    for array, state, outcome in rows.values_list("array", "state", "outcome").distinct():
        if array is not None:
            found[array] |= {after for after in After if not is_met(after, state, outcome)}
    return found


def _placed(arrays: Sequence[int]) -> dict[int, int]:
    """How many jobs of each have a place."""
    placed = Job.objects.exclude(state__in=(JobState.QUEUED.value, JobState.FINISHED.value))
    rows = placed.filter(array__in=arrays).order_by().values_list("array").annotate(Count("id"))
    return {array: count for array, count in rows if array is not None}
