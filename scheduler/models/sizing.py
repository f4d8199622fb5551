from __future__ import annotations

from django.db import models


class AttemptUse(models.Model):
    """GPU use of an ended attempt: scheduler.queue.sizing.facts.GpuUse.

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
