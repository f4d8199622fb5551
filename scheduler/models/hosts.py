from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models

from monitor.facts.formats import in_utc
from monitor.facts.readings import used_pct


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
