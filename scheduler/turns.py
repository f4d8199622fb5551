"""Rows: of two hosts that plan at the same time, only one may place with what both have seen.

A quota is of all hosts together, so a placement counts for the plans of all. Nobody holds anything
while they plan: who is killed keeps nobody waiting. That all who commit a plan touch this row first
also keeps them from waiting for each other's jobs in a circle.
"""

from __future__ import annotations

from django.db.models import F, QuerySet

from monitor.prepared import prepared
from scheduler.models import PlanTurn

THE_ONE = 1
_TURN = PlanTurn.objects.filter(pk=THE_ONE)


def now() -> int:
    """The turn to plan at; to be asked before anything that a plan is made with is read."""
    found = _rows()
    if not found:
        PlanTurn.objects.bulk_create([PlanTurn(pk=THE_ONE)], ignore_conflicts=True)
    return found[0].taken if found else 0


@prepared
def _rows() -> QuerySet[PlanTurn]:
    return _TURN.all()


def take(turn: int, *, places: bool) -> bool:
    """First in the transaction that keeps a plan: False = another has placed something since."""
    return _TURN.filter(taken=turn).update(taken=F("taken") + int(places)) == 1
