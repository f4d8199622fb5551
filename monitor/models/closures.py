from __future__ import annotations

from django.db import models

from monitor.gpu_closures import ClosureKind


class GpuClosure(models.Model):
    """A GPU that is well but takes no new work: an operator paused it, or it is in quarantine.

    `pid` and `memory_bytes`: which process of an ended job has not given back how much.
    """

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    kind = models.CharField(max_length=12, choices=[(k.value, k.value) for k in ClosureKind])
    reason = models.TextField(blank=True)
    by = models.CharField(max_length=150, blank=True)
    job_ref = models.CharField(max_length=40, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "GPU closure"
        constraints = [
            models.UniqueConstraint(
                fields=["gpu_uuid", "kind"],
                name="gpu_closure_one_open",
                condition=models.Q(until_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.gpu_uuid} {self.kind}"
