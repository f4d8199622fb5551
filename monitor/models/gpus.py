from __future__ import annotations

from django.db import models

from monitor.facts.claims import ClaimKind
from monitor.facts.gpu_states import ClosureKind, GpuState
from monitor.facts.hosts import HostState


class Host(models.Model):
    """A machine that runs gpucoord on this database: monitor.facts.hosts.HostFact.

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
