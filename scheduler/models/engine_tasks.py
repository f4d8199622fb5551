from __future__ import annotations

from django.db import models


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
