from __future__ import annotations

from django.db import models


class Sample(models.Model):
    """One GPU in one second. `t` is whole epoch seconds: this is the table with the most rows."""

    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, db_index=False)
    t = models.BigIntegerField("epoch seconds")
    utilization_pct = models.FloatField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)
    power_w = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)
    sm_clock_mhz = models.PositiveIntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "t"], name="sample_gpu_t")]

    def __str__(self) -> str:
        return f"{self.gpu_id} at {self.t}"


class HostSample(models.Model):
    """One host in one second."""

    host = models.CharField(max_length=100)
    t = models.BigIntegerField("epoch seconds")
    cpu_pct = models.FloatField(null=True)
    load_1 = models.FloatField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)
    swap_used_bytes = models.BigIntegerField(null=True)
    disk_read_bps = models.FloatField(null=True)
    disk_write_bps = models.FloatField(null=True)
    cpu_pressure_pct = models.FloatField(null=True)
    memory_pressure_pct = models.FloatField(null=True)
    io_pressure_pct = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "t"], name="host_sample_host_t")]

    def __str__(self) -> str:
        return f"{self.host} at {self.t}"


class LatestSnapshot(models.Model):
    """The newest snapshot of a host, whole, as JSON: what pages and the live hub read.

    `carry` is what the next sampler goes on counting with. `owned`: on so many GPUs somebody is
    whom jobs give way to; so that nobody need read the whole to know.
    """

    host = models.CharField(primary_key=True, max_length=100)
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    body = models.TextField()
    carry = models.TextField(blank=True, default="")
    owned = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.host} #{self.seq}"
