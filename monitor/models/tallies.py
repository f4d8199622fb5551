from __future__ import annotations

from django.db import models


class Tally(models.Model):
    """How often something has happened: it only grows, also when the rows it counted are pruned.

    Each host counts in rows of its own, so that hosts never wait for each other here.
    """

    name = models.CharField(max_length=40)
    host = models.CharField(max_length=100)
    subject = models.CharField(max_length=150, blank=True)
    value = models.FloatField(default=0)

    class Meta:
        verbose_name_plural = "tallies"
        constraints = [
            models.UniqueConstraint(fields=["name", "host", "subject"], name="tally_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.subject} on {self.host}: {self.value:g}"
