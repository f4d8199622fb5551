from __future__ import annotations

from django.db import models


class Chore(models.Model):
    """Work to be done again and again, such as pruning: when it was last queued and done."""

    name = models.CharField(primary_key=True, max_length=40)
    queued_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)
    result = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.name
