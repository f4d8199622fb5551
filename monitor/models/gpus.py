from __future__ import annotations

from typing import Any

from django.db import models

from monitor.facts.accounts import ClaimKind
from monitor.facts.gpus import ClosureKind, GpuField, GpuState
from monitor.facts.readings import GPU_FIELDS, HostState


class Host(models.Model):
    """A machine that runs gpucoord on this database: monitor.facts.readings.HostFact.

    silent_since_at: its silence was reported. A host is registered when its service starts.
    """

    name = models.CharField(primary_key=True, max_length=100)
    state = models.CharField(
        max_length=8,
        choices=[(s.value, s.value) for s in HostState],
        default=HostState.ACTIVE.value,
    )
    instance = models.CharField(max_length=40, blank=True)
    # Hosts with different secret keys could not read each other's logs and alert channels.
    key_mark = models.CharField("digest of its secret key", max_length=64, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    version = models.CharField(max_length=40, blank=True)
    address = models.CharField(max_length=300, blank=True)
    # Where other hosts read its logs; a host without pages can have one too.
    log_address = models.CharField(max_length=300, blank=True)
    # Of its endpoint for language models, for the endpoints of other hosts.
    models_address = models.CharField(max_length=300, blank=True, default="", db_default="")
    profile = models.CharField(max_length=20, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    changed_by = models.CharField(max_length=150, blank=True)
    changed_at = models.DateTimeField(null=True, blank=True)
    joined_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    silent_since_at = models.DateTimeField(null=True, blank=True)
    down_at = models.DateTimeField("confirmed down at", null=True, blank=True)
    down_by = models.CharField("confirmed down by", max_length=150, blank=True)

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one host register, once. Only its SHA-256 is stored."""

    digest = models.CharField(max_length=64, unique=True)
    made_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"join token of {self.made_by}"


class Gpu(models.Model):
    """A GPU seen on a host. The row stays when the GPU is removed, to keep its history."""

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
    tasks_completed = models.PositiveIntegerField("jobs that succeeded on it", default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        verbose_name = "GPU"
        verbose_name_plural = "GPUs"

    def __str__(self) -> str:
        return f"GPU {self.index} on {self.host}"


class GpuClosure(models.Model):
    """A healthy GPU that takes no new work because an operator paused it or it is in quarantine.

    `pid` and `memory_bytes`: the process of an ended job and the memory that it still holds.
    """

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    kind = models.CharField(
        max_length=12,
        choices=[(k.value, k.value) for k in ClosureKind if k is not ClosureKind.UNKNOWN],
    )
    reason = models.TextField(blank=True)
    by = models.CharField(max_length=150, blank=True)
    job_ref = models.CharField(max_length=40, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "pause or quarantine of a GPU"
        verbose_name_plural = "pauses and quarantines of GPUs"
        constraints = [
            models.UniqueConstraint(
                fields=["gpu_uuid", "kind"],
                name="gpu_closure_one_open",
                condition=models.Q(until_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.gpu_uuid} {self.kind}"


class Claim(models.Model):
    """A job's hold on a GPU. The scheduler writes it, so the monitor need not import the scheduler.

    task: the job's name. progress: 0 to 1, as the job reports it. ends_at: when it is expected to
    end (median). seen_at: when a process of the job was first seen on the GPU. freed_at: when the
    memory of its processes was free after the job had ended. holder: of a lock file, in words; of a
    job, the owner's agent that submitted it. port, expected_ready_at: of a model. tasks_completed:
    by this model or worker; null = it is neither.
    """

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    job_ref = models.CharField(max_length=40)
    owner = models.CharField(max_length=150)
    kind = models.CharField(
        max_length=8,
        choices=[(k.value, k.value) for k in ClaimKind if k is not ClaimKind.UNKNOWN],
        default=ClaimKind.SCRIPT.value,
    )
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    exclusive = models.BooleanField(default=False)
    holder = models.CharField(max_length=200, blank=True)
    # Of a model: booting, ready, busy or sleeping; of a worker: booting or busy; "" = unknown.
    phase = models.CharField(max_length=8, blank=True)
    task = models.CharField(max_length=120, blank=True)
    script = models.CharField(max_length=64, blank=True)
    port = models.PositiveIntegerField(null=True, blank=True)
    expected_ready_at = models.DateTimeField(null=True, blank=True)
    progress = models.FloatField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    tasks_completed = models.PositiveBigIntegerField(null=True, blank=True)
    leader_pid = models.PositiveIntegerField(null=True, blank=True)
    leader_start_ticks = models.BigIntegerField(null=True, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    freed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            # For the sampler, which reads open and cooling claims of its host at each sweep.
            models.Index(
                fields=["host"], name="claim_held", condition=models.Q(freed_at__isnull=True)
            ),
            # For the scheduler, which charges for the time held since the last charge.
            models.Index(fields=["until_at"], name="claim_until"),
        ]

    def __str__(self) -> str:
        return f"{self.owner} (job {self.job_ref}) on {self.gpu_uuid}"


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
