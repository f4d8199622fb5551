from __future__ import annotations

from django.db import models

from monitor.claims import ClaimKind


class Claim(models.Model):
    """Who may use a GPU: written by the scheduler, read by the monitor (so it never imports it).

    seen_at: when a process of it was first seen on the GPU; freed_at: when, after its end, the
    memory of its processes was back.
    """

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    job_ref = models.CharField(max_length=40)
    owner = models.CharField(max_length=150)
    kind = models.CharField(
        max_length=8,
        choices=[(k.value, k.value) for k in ClaimKind],
        default=ClaimKind.SCRIPT.value,
    )
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    exclusive = models.BooleanField(default=False)
    holder = models.CharField(max_length=200, blank=True)
    leader_pid = models.PositiveIntegerField(null=True, blank=True)
    leader_start_ticks = models.BigIntegerField(null=True, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    freed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            # The sampler reads the open claims of its host, and those that cool, at each sweep.
            models.Index(
                fields=["host"], name="claim_held", condition=models.Q(freed_at__isnull=True)
            ),
            # What was held since the scheduler last charged for it.
            models.Index(fields=["until_at"], name="claim_until"),
        ]

    def __str__(self) -> str:
        return f"{self.owner} (job {self.job_ref}) on {self.gpu_uuid}"
