from __future__ import annotations

from django.db import models


class Rollup(models.Model):
    """Sums over a stretch of time from `t` on; they add up to those of longer stretches.

    A sample stands for one second. A mean is a sum by its known seconds, never by all seconds.
    """

    t = models.BigIntegerField("epoch seconds")
    seen_s = models.PositiveIntegerField("seconds with a sample")

    class Meta:
        abstract = True


class GpuRollup(Rollup):
    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, db_index=False, related_name="+")
    utilization_pct_s = models.FloatField()
    utilization_known_s = models.PositiveIntegerField()
    utilization_max_pct = models.FloatField(null=True)
    memory_byte_s = models.BigIntegerField()
    memory_known_s = models.PositiveIntegerField()
    memory_max_bytes = models.BigIntegerField(null=True)
    energy_j = models.FloatField()
    power_known_s = models.PositiveIntegerField()
    power_max_w = models.FloatField(null=True)
    temperature_max_c = models.FloatField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.gpu_id} at {self.t}"


class GpuMinute(GpuRollup):
    class Meta:
        verbose_name = "GPU minute"
        constraints = [models.UniqueConstraint(fields=["gpu", "t"], name="gpu_minute_gpu_t")]


class GpuHour(GpuRollup):
    class Meta:
        verbose_name = "GPU hour"
        constraints = [models.UniqueConstraint(fields=["gpu", "t"], name="gpu_hour_gpu_t")]


class HostRollup(Rollup):
    host = models.CharField(max_length=100)
    cpu_pct_s = models.FloatField()
    cpu_known_s = models.PositiveIntegerField()
    cpu_max_pct = models.FloatField(null=True)
    load_s = models.FloatField()
    load_known_s = models.PositiveIntegerField()
    load_max = models.FloatField(null=True)
    memory_byte_s = models.BigIntegerField()
    memory_known_s = models.PositiveIntegerField()
    memory_max_bytes = models.BigIntegerField(null=True)
    swap_max_bytes = models.BigIntegerField(null=True)
    disk_read_bytes = models.FloatField()
    disk_written_bytes = models.FloatField()
    disk_known_s = models.PositiveIntegerField()
    cpu_pressure_pct_s = models.FloatField()
    memory_pressure_pct_s = models.FloatField()
    io_pressure_pct_s = models.FloatField()
    pressure_known_s = models.PositiveIntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.host} at {self.t}"


class HostMinute(HostRollup):
    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "t"], name="host_minute_host_t")]


class HostHour(HostRollup):
    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "t"], name="host_hour_host_t")]


class ProcessHour(models.Model):
    """What a process did on a GPU in one hour: the sums of its minutes."""

    use = models.ForeignKey(
        "monitor.ProcessUse", models.CASCADE, db_index=False, related_name="hours"
    )
    t = models.BigIntegerField("epoch seconds")
    sm_s = models.FloatField()
    held_s = models.FloatField()
    known_s = models.FloatField()
    memory_byte_s = models.FloatField()
    peak_memory_bytes = models.BigIntegerField(null=True)
    joules = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["use", "t"], name="process_hour_use_t")]
        # A whole stretch of hours, of all processes, is made anew or thrown away at once.
        indexes = [models.Index(fields=["t"], name="process_hour_t")]

    def __str__(self) -> str:
        return f"{self.use_id} at {self.t}"
