from __future__ import annotations

from typing import Any

from django.db import models

from monitor.facts.gpu_fields import GpuField
from monitor.facts.readings import GPU_FIELDS


class Sample(models.Model):
    """Readings of one GPU in one second; the largest table. `t` is in whole epoch seconds.

    The columns of figures follow from GPU_FIELDS.
    """

    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, db_index=False)
    t = models.BigIntegerField("epoch seconds")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "t"], name="sample_gpu_t")]

    def __str__(self) -> str:
        return f"{self.gpu_id} at {self.t}"


def _value(figure: GpuField) -> models.Field[Any, Any]:
    """A column for a value of this figure; null = unknown."""
    if figure.unit == "bytes":
        return models.BigIntegerField(null=True)
    if figure.kind is int:
        return models.PositiveIntegerField(null=True)
    return models.FloatField(null=True)


for _figure in GPU_FIELDS:
    if _figure.is_sampled:
        Sample.add_to_class(_figure.name, _value(_figure))


class HostSample(models.Model):
    """Readings of one host in one second."""

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

    `carry`: the accounting state that the next sampler continues from. `owned`: number of GPUs in
    use by their owner, kept here so that readers need not parse `body`.
    """

    host = models.CharField(primary_key=True, max_length=100)
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    body = models.TextField()
    carry = models.TextField(blank=True, default="")
    owned = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.host} #{self.seq}"


class Rollup(models.Model):
    """Sums over the minute or hour that begins at `t`.

    Each sample stands for one second. A mean is a sum divided by its known seconds.
    """

    t = models.BigIntegerField("epoch seconds")
    seen_s = models.PositiveIntegerField("seconds with a sample")

    class Meta:
        abstract = True


class GpuRollup(Rollup):
    """The columns of figures follow from GPU_FIELDS."""

    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, db_index=False, related_name="+")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.gpu_id} at {self.t}"


for _figure in GPU_FIELDS:
    if _rollup := _figure.rollup:
        if _rollup.total:
            _sum = models.BigIntegerField if _figure.kind is int else models.FloatField
            # Of rows from before the figure was stored, no second is known.
            GpuRollup.add_to_class(_rollup.total, _sum(default=0))
        if _rollup.known_s:
            GpuRollup.add_to_class(_rollup.known_s, models.PositiveIntegerField(default=0))
        GpuRollup.add_to_class(_rollup.greatest, _value(_figure))


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


# GPU time of processes


class Sums(models.Model):
    """Usage of a GPU by a process. Seconds without a measurement are not part of known_s.

    sm_s: GPU-seconds used. held_s: seconds on the GPU. known_s: seconds of held_s with measured
    use. memory_known_s: seconds of held_s with measured memory; None in rows of older versions.
    """

    sm_s = models.FloatField(default=0)
    held_s = models.FloatField(default=0)
    known_s = models.FloatField(default=0)
    memory_byte_s = models.FloatField(default=0)
    memory_known_s = models.FloatField(null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField(null=True, blank=True)
    joules = models.FloatField(null=True, blank=True)

    class Meta:
        abstract = True


class ProcessUse(Sums):
    """One process on one GPU, with its totals."""

    host = models.CharField(max_length=100)
    pid = models.PositiveIntegerField()
    start_ticks = models.BigIntegerField(default=0)
    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, db_index=False)
    user = models.CharField(max_length=150, blank=True)
    uid = models.BigIntegerField(null=True, blank=True)
    program = models.CharField(max_length=200, blank=True)
    container = models.CharField(max_length=200, blank=True)
    job_ref = models.CharField(max_length=40, blank=True)
    job_owner = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(null=True, blank=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=20, default="unknown")
    owner_source = models.CharField(max_length=10, default="unknown")
    memory_known_s = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "pid", "start_ticks", "gpu"], name="process_use_identity"
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "last_seen_at"], name="process_use_gpu"),
            models.Index(fields=["user", "last_seen_at"], name="process_use_user"),
            models.Index(fields=["job_owner", "last_seen_at"], name="process_use_job_owner"),
            models.Index(fields=["last_seen_at"], name="process_use_last_seen"),
        ]

    def __str__(self) -> str:
        return f"{self.program or 'process'} {self.pid} on {self.gpu_id}"


class ProcessMinute(Sums):
    """Usage of a GPU by a process in the minute that begins at `t`."""

    use = models.ForeignKey(ProcessUse, models.CASCADE, db_index=False, related_name="minutes")
    t = models.BigIntegerField("epoch seconds")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["use", "t"], name="process_minute_use_t")]

    def __str__(self) -> str:
        return f"{self.use_id} at {self.t}"


class ProcessHour(models.Model):
    """Usage of a GPU by a process in one hour: the sum of its minutes."""

    use = models.ForeignKey(
        "monitor.ProcessUse", models.CASCADE, db_index=False, related_name="hours"
    )
    t = models.BigIntegerField("epoch seconds")
    sm_s = models.FloatField()
    held_s = models.FloatField()
    known_s = models.FloatField()
    memory_byte_s = models.FloatField()
    memory_known_s = models.FloatField(null=True)
    peak_memory_bytes = models.BigIntegerField(null=True)
    joules = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["use", "t"], name="process_hour_use_t")]
        # For rolling up and pruning, which select the hours of all processes by time.
        indexes = [models.Index(fields=["t"], name="process_hour_t")]

    def __str__(self) -> str:
        return f"{self.use_id} at {self.t}"
