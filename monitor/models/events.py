from __future__ import annotations

from django.db import models


class Event(models.Model):
    """Something that happened and that people may want to know. `kind` is a stable name."""

    class Severity(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        ERROR = "error"

    at = models.DateTimeField(db_index=True)
    kind = models.CharField(max_length=48)
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.INFO)
    host = models.CharField(max_length=100, blank=True)
    gpu_uuid = models.CharField(max_length=96, blank=True)
    job_ref = models.CharField(max_length=40, blank=True)
    owner = models.CharField(max_length=150, blank=True)
    text = models.TextField()

    class Meta:
        indexes = [
            models.Index(fields=["kind", "at"], name="event_kind_at"),
            # The pages of a GPU, a person and a job, and the filters of the page of events.
            models.Index(fields=["gpu_uuid", "at"], name="event_gpu_at"),
            models.Index(fields=["owner", "at"], name="event_owner_at"),
            models.Index(fields=["job_ref", "at"], name="event_job_at"),
            models.Index(fields=["severity", "at"], name="event_severity_at"),
        ]

    def __str__(self) -> str:
        return self.text
