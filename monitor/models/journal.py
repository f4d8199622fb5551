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


# State of the loops


class Lease(models.Model):
    """The right to run a loop. A holder with an outdated `epoch` cannot commit (fencing)."""

    name = models.CharField(primary_key=True, max_length=140)
    loop = models.CharField(max_length=40)
    host = models.CharField(max_length=100)
    every_s = models.FloatField("ticks every (s)", default=1)
    pid = models.PositiveIntegerField(null=True, blank=True)
    start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    epoch = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField()
    acquired_at = models.DateTimeField(null=True, blank=True)
    last_tick_at = models.DateTimeField("last good tick", null=True, blank=True)
    ticks = models.BigIntegerField(default=0)
    lateness_p50_ms = models.FloatField(null=True, blank=True)
    lateness_p99_ms = models.FloatField(null=True, blank=True)
    failing_since_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    last_error_key = models.CharField(max_length=200, blank=True)
    last_error_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch})"


class PeriodicTask(models.Model):
    """A periodic task, such as pruning: when it was last queued and completed."""

    name = models.CharField(primary_key=True, max_length=40)
    queued_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)
    result = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.name


class ItemFault(models.Model):
    """A reported fault of one item of a loop, such as a job or a GPU.

    `fault` is the type and the place of the error. The row is deleted when the item works again.
    """

    host = models.CharField(max_length=100)
    part = models.CharField(max_length=40)
    item = models.CharField(max_length=200)
    fault = models.CharField(max_length=200)
    failures = models.PositiveIntegerField(default=1)
    since_at = models.DateTimeField()
    last_at = models.DateTimeField()
    retry_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "part", "item"], name="item_fault_item")
        ]

    def __str__(self) -> str:
        return f"{self.part}: {self.item} on {self.host}"
