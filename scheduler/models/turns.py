from __future__ import annotations

from django.db import models


class PlanTurn(models.Model):
    """One row for all hosts of this database: how many plans have placed something.

    Whoever commits a plan takes the turn after the one that it was made at; so of two plans that
    gave the same room of somebody's quota away, the second is made anew.
    """

    taken = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"turn {self.taken}"
