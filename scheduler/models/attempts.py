from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models

from monitor.facts.formats import in_utc
from monitor.facts.readings import used_pct
from scheduler.facts.jobs import Outcome


class Attempt(models.Model):
    """One try at running a job: where it was placed, which processes it is, how it ended.

    The row with its nonce and boot id is committed before anything is forked; the runner then
    writes its own identity (pid, start ticks, boot id) into the attempt's folder. An attempt
    that ended without an outcome never ran, and its job went back into the queue.
    """

    job = models.ForeignKey("scheduler.Job", models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    # Of the gpucoord that follows it and has its files.
    host = models.CharField(max_length=100)
    # The engine that runs it, its name there and its node; "" = gpucoord itself, on the host.
    engine = models.CharField(max_length=12, blank=True, default="")
    engine_ref = models.CharField(max_length=64, blank=True, default="")
    node = models.CharField(max_length=100, blank=True, default="")
    gpu_uuids = models.JSONField(default=list)
    nonce = models.CharField(max_length=32, unique=True)
    # The first of its TCP ports and their number; None = it has none.
    port = models.PositiveIntegerField(null=True, blank=True)
    ports = models.PositiveSmallIntegerField(default=0, db_default=0)
    account = models.CharField("runs as", max_length=150, blank=True)
    placed_at = models.DateTimeField()
    runner_pid = models.PositiveIntegerField(null=True, blank=True)
    runner_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    start_ticks = models.BigIntegerField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    # When the processes that its dead runner left were sent SIGTERM; SIGKILL follows.
    orphans_stopping_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(
        max_length=12, choices=[(o.value, o.value.replace("_", " ")) for o in Outcome], blank=True
    )
    problem = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.PositiveSmallIntegerField(null=True, blank=True)
    cpu_s = models.FloatField(null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField(null=True, blank=True)
    log_bytes = models.BigIntegerField(null=True, blank=True)
    # As the job reported it last, 0 to 1. None = it has reported none.
    progress = models.FloatField(null=True, blank=True)
    progress_message = models.CharField(max_length=200, blank=True)
    progress_at = models.DateTimeField(null=True, blank=True)
    # Of a worker: the items of its batch that it has completed.
    items_completed = models.PositiveIntegerField(default=0, db_default=0)
    # When it is expected to end: in half of the cases, and in nine of ten. None = unknown.
    ends_p50_at = models.DateTimeField(null=True, blank=True)
    ends_p90_at = models.DateTimeField(null=True, blank=True)
    # Of its whole job on this host, once that has ended: with the logs, and in a folder of its own.
    files_bytes = models.BigIntegerField(null=True, blank=True)
    saved_bytes = models.BigIntegerField(null=True, blank=True)
    # From when what it used of its GPUs can be recorded; None = it is, or there is none.
    use_due_at = models.DateTimeField(null=True, blank=True)
    files_gone_at = models.DateTimeField(null=True, blank=True)
    # Its host was confirmed down, and the job runs elsewhere: what is left there must end.
    abandoned = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(
                fields=["host"],
                name="attempt_abandoned",
                condition=models.Q(abandoned=True),
            ),
            models.Index(
                fields=["host", "use_due_at"],
                name="attempt_use_due",
                condition=models.Q(use_due_at__isnull=False),
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_job_number"),
            models.UniqueConstraint(
                fields=["host", "port"],
                name="attempt_port_once",
                condition=models.Q(ended_at__isnull=True, port__isnull=False),
            ),
            # No job runs twice: at most one attempt of a job has not ended.
            models.UniqueConstraint(
                fields=["job"], name="attempt_one_open", condition=models.Q(ended_at__isnull=True)
            ),
        ]

    @property
    def gpu_host(self) -> str:
        """The host whose GPUs it has."""
        return self.node or self.host

    @property
    def asked_to_leave(self) -> YieldRequest | None:
        """The yield request in force; None: there was none, or it was withdrawn."""
        request = getattr(self, "yield_request", None)
        return request if request is not None and request.withdrawn_at is None else None

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class YieldRequest(models.Model):
    """A request to an attempt to leave its GPUs by a deadline.

    for_job: the beneficiary of a preemption. counts: it counts towards the limit of requeues.
    """

    class Kind(models.TextChoices):
        PREEMPTION = "preemption"
        EVICTION = "eviction"

    attempt = models.OneToOneField(
        "scheduler.Attempt", models.CASCADE, related_name="yield_request"
    )
    kind = models.CharField(max_length=12, choices=Kind.choices)
    code = models.CharField(max_length=32)
    text = models.TextField()
    for_job = models.ForeignKey(
        "scheduler.Job", models.SET_NULL, related_name="+", null=True, blank=True
    )
    counts = models.BooleanField(default=True)
    asked_at = models.DateTimeField()
    deadline = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.kind} of {self.attempt}"


class GpuHold(models.Model):
    """A freed GPU, held for the job that it was freed for."""

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    job = models.ForeignKey("scheduler.Job", models.CASCADE, related_name="gpu_holds")
    until = models.DateTimeField()

    class Meta:
        verbose_name = "hold of a freed GPU"
        verbose_name_plural = "holds of freed GPUs"
        constraints = [
            models.UniqueConstraint(fields=["host", "gpu_uuid"], name="kept_gpu_once"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_uuid} for job {self.job_id}"


class AttemptUse(models.Model):
    """GPU use of an ended attempt: scheduler.queue.planner.sizing.GpuUse.

    fingerprint: of its job's owner and command. gpu_model: "" = its GPUs differ or are unknown.
    is_sample: it succeeded, so its peak tells how much memory such a job needs.
    """

    attempt = models.OneToOneField(
        "scheduler.Attempt", models.CASCADE, primary_key=True, related_name="use"
    )
    fingerprint = models.CharField(max_length=40)
    gpu_model = models.CharField("GPU model", max_length=120, blank=True)
    is_sample = models.BooleanField(default=False)
    gpu_s = models.FloatField("GPU-seconds held")
    sm_s = models.FloatField("GPU-seconds used", null=True, blank=True)
    coverage_pct = models.FloatField(null=True, blank=True)
    mean_pct = models.FloatField("mean utilisation", null=True, blank=True)
    p95_pct = models.FloatField("95 % of minutes below", null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField("peak GPU memory", null=True, blank=True)
    joules = models.FloatField(null=True, blank=True)

    class Meta:
        verbose_name = "use of an attempt"
        verbose_name_plural = "uses of attempts"
        indexes = [
            # For the newest runs of the same command.
            models.Index(
                fields=["fingerprint", "gpu_model", "-attempt"],
                name="attempt_use_samples",
                condition=models.Q(is_sample=True, peak_memory_bytes__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"use of attempt {self.attempt_id}"


# Tasks of another engine, such as jobs of Slurm


class EngineTask(models.Model):
    """A job that was handed to another engine, such as Slurm, until it has ended there.

    The row with its nonce is committed before the engine gets the task. The attempt with the same
    nonce is created when the engine has started it; until then the job waits.
    """

    # Closed tasks are deleted long before their jobs: deleting a job needs no statement for them.
    job = models.ForeignKey(
        "scheduler.Job", models.DO_NOTHING, related_name="engine_tasks", db_constraint=False
    )
    # Of the gpucoord that submits and follows it.
    host = models.CharField(max_length=100)
    engine = models.CharField(max_length=12)
    number = models.PositiveSmallIntegerField("attempt")
    nonce = models.CharField(max_length=32, unique=True)
    # Of what was requested: a changed job is submitted anew.
    digest = models.CharField(max_length=64, blank=True)
    # The engine's name of the task; "" = not acknowledged.
    ref = models.CharField(max_length=64, blank=True)
    word = models.CharField("state in the engine's words", max_length=200, blank=True)
    reason = models.CharField("reason in the engine's words", max_length=200, blank=True)
    nodes = models.CharField(max_length=200, blank=True)
    # The engine's own estimate; null = it has none.
    expected_start_at = models.DateTimeField(null=True, blank=True)
    gpus = models.PositiveSmallIntegerField(null=True, blank=True)
    # It was put on hold in the engine, as the job is held here.
    held = models.BooleanField(default=False)
    # Why the engine refused it last.
    refused = models.TextField(blank=True)
    created_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    # Since when answers of the engine do not contain it, or contain it as ended.
    missing_since = models.DateTimeField(null=True, blank=True)
    ended_since = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["host"],
                name="engine_task_open",
                condition=models.Q(closed_at__isnull=True),
            )
        ]
        constraints = [
            # No job is handed over twice at a time.
            models.UniqueConstraint(
                fields=["job"],
                name="engine_task_one_open",
                condition=models.Q(closed_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.engine} {self.ref or 'task'} of job {self.job_id}"


class EngineStatus(models.Model):
    """The engine of a host: whether it answers, and its nodes as of `nodes_at`."""

    host = models.CharField(primary_key=True, max_length=100)
    engine = models.CharField(max_length=12)
    version = models.CharField(max_length=100, blank=True)
    # Why it does not answer; "" = it answers.
    problem = models.TextField(blank=True)
    since_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    # Tasks of all programs.
    waiting = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    nodes = models.JSONField(default=list)
    nodes_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "engine states"

    def __str__(self) -> str:
        return f"{self.engine} of {self.host}"


class ThrottleState(models.Model):
    """The throttle of a host as of the controller's tick `at`, and the controller's state.

    Both are JSON texts, so that a reader can compare them cheaply. sharing: the number of jobs that
    shared GPUs then.
    """

    host = models.CharField(primary_key=True, max_length=100)
    at = models.DateTimeField()
    allowed = models.TextField()
    memory = models.TextField()
    sharing = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"throttle of {self.host}"


class ModeState(models.Model):
    """The mode of a host, and an operator's override."""

    host = models.CharField(primary_key=True, max_length=100)
    mode = models.CharField(max_length=12, default="cooperative")
    since_at = models.DateTimeField()
    reason = models.TextField(blank=True)
    # The mode without the override.
    automatic = models.CharField(max_length=12, default="cooperative")
    automatic_reason = models.TextField(blank=True)
    override = models.CharField(max_length=12, blank=True)
    override_until = models.DateTimeField(null=True, blank=True)
    override_by = models.CharField(max_length=150, blank=True)

    def __str__(self) -> str:
        return f"{self.host} is {self.mode}"


class HostCapability(models.Model):
    """An isolation feature of a host, as it was probed."""

    host = models.CharField(max_length=100)
    name = models.CharField(max_length=20)
    active = models.BooleanField(default=False)
    text = models.TextField(blank=True)
    since_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "host capabilities"
        constraints = [models.UniqueConstraint(fields=["host", "name"], name="means_host_name")]

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"


class LockRefusal(models.Model):
    """A runner could not lock a GPU; no job starts there before `wait_s` have passed."""

    gpu_uuid = models.CharField(max_length=96, primary_key=True)
    host = models.CharField(max_length=100)
    text = models.TextField()
    refused_at = models.DateTimeField()
    wait_s = models.FloatField()

    @property
    def until_at(self) -> datetime:
        return self.refused_at + timedelta(seconds=self.wait_s)

    def __str__(self) -> str:
        return f"{self.gpu_uuid} until {in_utc(self.until_at)}"


class HostForecast(models.Model):
    """The offers of a host to jobs of any host, for the planners of the other hosts.

    offers: by job, [expected start as Unix time, what speaks against its GPUs, jobs on them].
    """

    host = models.CharField(primary_key=True, max_length=100)
    at = models.DateTimeField()
    offers = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"offers of {self.host}"


class PlanVersion(models.Model):
    """One row for all hosts: the number of committed plans with placements.

    A plan is committed only if the number is unchanged since it was made. So of two plans that use
    the same part of a quota, the second one is made again.
    """

    taken = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"turn {self.taken}"


# Disks


class WatchedDisk(models.Model):
    """The space of the file system of a watched folder, as the controller of its host read it.

    level: scheduler.disk.policy.DiskLevel. problem: why it cannot be read; figures are then None.
    """

    host = models.CharField(max_length=100)
    path = models.CharField(max_length=1000)
    role = models.CharField(max_length=30)
    device = models.CharField(max_length=30, blank=True)
    used_bytes = models.BigIntegerField(null=True, blank=True)
    available_bytes = models.BigIntegerField(null=True, blank=True)
    level = models.CharField(max_length=12)
    since_at = models.DateTimeField()
    at = models.DateTimeField()
    problem = models.TextField(blank=True)

    class Meta:
        verbose_name = "watched folder"
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="watched_disk_path")]

    def __str__(self) -> str:
        return f"{self.path} on {self.host}"

    @property
    def used_pct(self) -> float | None:
        """Percent used, as `df` counts it; None = unknown."""
        return used_pct(self.used_bytes, self.available_bytes)


class CleaningRun(models.Model):
    """A clean-up of the file systems of a host, or its preview (dry_run), which deletes nothing.

    path: the watched folder whose file system is cleaned; "" = all. figures: by result, the number
    of files. listed: the first files with rule, path, size and result. candidates, candidate_bytes:
    all files that could be deleted. pause_until: the rest of it is done after that.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    host = models.CharField(max_length=100)
    path = models.CharField(max_length=1000, blank=True)
    dry_run = models.BooleanField(default=True)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    asked_by = models.CharField(max_length=150)
    asked_at = models.DateTimeField()
    at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    candidates = models.PositiveIntegerField(default=0)
    candidate_bytes = models.BigIntegerField(default=0)
    freed_bytes = models.BigIntegerField(default=0)
    figures = models.JSONField(default=dict, blank=True)
    listed = models.JSONField(default=list, blank=True)
    problems = models.JSONField(default=list, blank=True)

    class Meta:
        verbose_name = "clean-up"

    def __str__(self) -> str:
        return f"{'preview' if self.dry_run else 'clean-up'} {self.pk} of {self.host}"
