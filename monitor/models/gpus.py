from __future__ import annotations

from django.db import models

from monitor.gpu_states import GpuState


class Gpu(models.Model):
    """A GPU once seen on a host; kept when it goes, so that its history stays."""

    uuid = models.CharField(primary_key=True, max_length=96)
    host = models.CharField(max_length=100)
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=120, blank=True)
    pci_id = models.CharField(max_length=40, blank=True)
    memory_total_bytes = models.BigIntegerField(null=True, blank=True)
    power_limit_w = models.FloatField(null=True, blank=True)
    compute_capability = models.CharField(max_length=8, blank=True)
    state = models.CharField(
        max_length=16, choices=[(s.value, s.value) for s in GpuState], default=GpuState.IDLE.value
    )
    state_since_at = models.DateTimeField()
    problem = models.TextField(blank=True)
    simulated = models.BooleanField(default=False)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        verbose_name = "GPU"
        verbose_name_plural = "GPUs"

    def __str__(self) -> str:
        return f"GPU {self.index} on {self.host}"
