from __future__ import annotations

from django.db import models


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
