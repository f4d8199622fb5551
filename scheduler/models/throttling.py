from __future__ import annotations

from django.db import models


class ThrottleState(models.Model):
    """What the controller allows on a host, as of its look `at`, and what it goes on judging with:

    both as JSON text, so that a reader sees cheaply that nothing has changed. `sharing`: how
    many of our jobs shared GPUs then.
    """

    host = models.CharField(primary_key=True, max_length=100)
    at = models.DateTimeField()
    allowed = models.TextField()
    memory = models.TextField()
    sharing = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"throttle of {self.host}"


class ModeState(models.Model):
    """Cooperative or defensive, why and since when; and what an operator decided instead."""

    host = models.CharField(primary_key=True, max_length=100)
    mode = models.CharField(max_length=12, default="cooperative")
    since_at = models.DateTimeField()
    reason = models.TextField(blank=True)
    # What the hogs alone would give.
    automatic = models.CharField(max_length=12, default="cooperative")
    automatic_reason = models.TextField(blank=True)
    override = models.CharField(max_length=12, blank=True)
    override_until = models.DateTimeField(null=True, blank=True)
    override_by = models.CharField(max_length=150, blank=True)

    def __str__(self) -> str:
        return f"{self.host} is {self.mode}"
