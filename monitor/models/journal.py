from __future__ import annotations

from django.db import models


class Event(models.Model):
    """An entry of the event log. `kind` is a stable name; `text` may change between versions."""

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
            # For the pages of a GPU, a user and a job, and the filters of the events page.
            models.Index(fields=["gpu_uuid", "at"], name="event_gpu_at"),
            models.Index(fields=["owner", "at"], name="event_owner_at"),
            models.Index(fields=["job_ref", "at"], name="event_job_at"),
            models.Index(fields=["severity", "at"], name="event_severity_at"),
        ]

    def __str__(self) -> str:
        return self.text


class AuditEntry(models.Model):
    """An action of an operator or user. Entries are never changed or deleted on the admin pages."""

    at = models.DateTimeField(db_index=True)
    by = models.CharField(max_length=150, blank=True)
    action = models.CharField(max_length=48)
    subject = models.CharField(max_length=200)
    text = models.TextField()
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["subject", "-at"], name="audit_subject_at")]

    def __str__(self) -> str:
        return self.text


class Counter(models.Model):
    """A persistent counter for Prometheus. It survives the pruning of the rows that it counted.

    Each host has its own rows, so that hosts do not contend for locks.
    """

    name = models.CharField(max_length=40)
    host = models.CharField(max_length=100)
    subject = models.CharField(max_length=150, blank=True)
    value = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "host", "subject"], name="tally_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.subject} on {self.host}: {self.value:g}"


class Constraint(models.Model):
    """A scarce resource of a host; it is still scarce while `until_at` is empty."""

    host = models.CharField(max_length=100)
    kind = models.CharField(max_length=32)
    subject = models.CharField(max_length=200, blank=True)
    text = models.TextField()
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "kind", "subject"],
                name="constraint_open_once",
                condition=models.Q(until_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return self.text
