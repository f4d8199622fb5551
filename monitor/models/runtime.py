from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """The right to run a loop. A holder with an outdated `epoch` cannot commit (fencing)."""

    name = models.CharField(primary_key=True, max_length=140)
    loop = models.CharField(max_length=40)
    host = models.CharField(max_length=100)
    every_s = models.FloatField("ticks every (s)", default=1)
    pid = models.PositiveIntegerField(null=True, blank=True)
    start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    epoch = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField()
    acquired_at = models.DateTimeField(null=True, blank=True)
    last_tick_at = models.DateTimeField("last good tick", null=True, blank=True)
    ticks = models.BigIntegerField(default=0)
    lateness_p50_ms = models.FloatField(null=True, blank=True)
    lateness_p99_ms = models.FloatField(null=True, blank=True)
    failing_since_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    last_error_key = models.CharField(max_length=200, blank=True)
    last_error_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch})"


class PeriodicTask(models.Model):
    """A periodic task, such as pruning: when it was last queued and completed."""

    name = models.CharField(primary_key=True, max_length=40)
    queued_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)
    result = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.name


class ItemFault(models.Model):
    """A reported fault of one item of a loop, such as a job or a GPU.

    `fault` is the type and the place of the error. The row is deleted when the item works again.
    """

    host = models.CharField(max_length=100)
    part = models.CharField(max_length=40)
    item = models.CharField(max_length=200)
    fault = models.CharField(max_length=200)
    failures = models.PositiveIntegerField(default=1)
    since_at = models.DateTimeField()
    last_at = models.DateTimeField()
    retry_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "part", "item"], name="item_fault_item")
        ]

    def __str__(self) -> str:
        return f"{self.part}: {self.item} on {self.host}"
