from __future__ import annotations

from django.db import models


class YieldRequest(models.Model):
    """An attempt was asked to leave its GPUs: why, for whom, until when.

    counts: whether its job is held after too many of these. withdrawn_at: it may stay after all.
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


class KeptGpu(models.Model):
    """A GPU that was freed for a job is kept for it, for a while."""

    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField(max_length=96)
    job = models.ForeignKey("scheduler.Job", models.CASCADE, related_name="kept_gpus")
    until = models.DateTimeField()

    class Meta:
        verbose_name = "kept GPU"
        constraints = [
            models.UniqueConstraint(fields=["host", "gpu_uuid"], name="kept_gpu_once"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_uuid} for job {self.job_id}"
