from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from scheduler.jobs import Outcome

if TYPE_CHECKING:
    from scheduler.models.yields import YieldRequest


class Attempt(models.Model):
    """One try at running a job: where it was placed, which processes it is, how it ended.

    The row with its nonce and boot id is committed before anything is forked; the runner then
    writes its own identity (pid, start ticks, boot id) into the attempt's folder. An attempt
    that ended without an outcome never ran, and its job went back into the queue.
    """

    job = models.ForeignKey("scheduler.Job", models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    host = models.CharField(max_length=100)
    gpu_uuids = models.JSONField(default=list)
    nonce = models.CharField(max_length=32, unique=True)
    account = models.CharField("runs as", max_length=150, blank=True)
    placed_at = models.DateTimeField()
    runner_pid = models.PositiveIntegerField(null=True, blank=True)
    runner_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    start_ticks = models.BigIntegerField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
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
    # Of its whole job on this host, once that has ended: with the logs, and in a folder of its own.
    files_bytes = models.BigIntegerField(null=True, blank=True)
    saved_bytes = models.BigIntegerField(null=True, blank=True)
    files_gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_job_number"),
            # No job runs twice: at most one attempt of a job has not ended.
            models.UniqueConstraint(
                fields=["job"], name="attempt_one_open", condition=models.Q(ended_at__isnull=True)
            ),
        ]

    @property
    def asked_to_leave(self) -> YieldRequest | None:
        """The request that stands; None when there was none, or it may stay after all."""
        asked = getattr(self, "yield_request", None)
        return asked if asked is not None and asked.withdrawn_at is None else None

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"
