from __future__ import annotations

from django.db import models

from monitor.facts.disk_space import used_pct


class WatchedDisk(models.Model):
    """The space of the file system of a watched folder, as the controller of its host read it.

    level: scheduler.disk.facts.DiskLevel. problem: why it cannot be read; figures are then None.
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
