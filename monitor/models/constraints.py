from __future__ import annotations

from django.db import models


class Constraint(models.Model):
    """Something that a host is short of, from when to when; it holds while `until_at` is empty."""

    host = models.CharField(max_length=100)
    kind = models.CharField(max_length=32)
    subject = models.CharField(max_length=200, blank=True)
    text = models.TextField()
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "kind", "subject"],
                name="constraint_open_once",
                condition=models.Q(until_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return self.text
