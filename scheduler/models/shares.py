from __future__ import annotations

from django.db import models


class SharedOut(models.Model):
    """The GPUs of a host that are shared out, and until when their use has been charged."""

    host = models.CharField(max_length=100, primary_key=True)
    at = models.DateTimeField()
    gpu_uuids = models.JSONField(default=list)
    gpu_bytes = models.BigIntegerField(null=True)

    class Meta:
        verbose_name_plural = "shared out"

    def __str__(self) -> str:
        return f"{len(self.gpu_uuids)} GPUs of {self.host}"


class UsedShare(models.Model):
    """What a person took of a host's GPUs: a mean in which the past fades, and what they take now.

    usage: of the host's capacity, 0..1. charge, outside: in GPUs, at the last look. seen_s,
    known_s: seconds on GPUs, fading as the usage does, and for how many of these it was known.
    """

    host = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    usage = models.FloatField(default=0)
    charge = models.FloatField(default=0)
    outside = models.FloatField(default=0)
    seen_s = models.FloatField(default=0)
    known_s = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "owner"], name="used_share_host_owner")
        ]

    def __str__(self) -> str:
        return f"{self.owner} on {self.host}"


class GpuDay(models.Model):
    """GPU-seconds of a person on a host in one day of the ledger; `from_at` is its midnight.

    job_s: kept by their jobs. outside_s: used by their other processes.
    """

    host = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    from_at = models.DateTimeField()
    job_s = models.FloatField(default=0)
    outside_s = models.FloatField(default=0)

    class Meta:
        verbose_name = "GPU day"
        constraints = [
            models.UniqueConstraint(fields=["from_at", "owner", "host"], name="gpu_day_once")
        ]

    def __str__(self) -> str:
        return f"{self.owner} on {self.from_at:%Y-%m-%d}"
