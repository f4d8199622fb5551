from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

EVERY = [("day", "day"), ("week", "week (from Monday)"), ("month", "month")]


class ReportSchedule(models.Model):
    """A report of each past day, week or month for operators.

    reported_until: the end of the last period with a report, made at sent_at. failures, retry_at,
    problem: of the period that could not be reported yet.
    """

    name = models.CharField(max_length=60, unique=True)
    enabled = models.BooleanField(default=True)
    every = models.CharField(max_length=5, choices=EVERY, default="week")
    hour = models.PositiveSmallIntegerField(
        default=7,
        validators=[MinValueValidator(0), MaxValueValidator(23)],
        help_text="Made after this hour of the first day after the period, in the server's zone.",
    )
    scope = models.CharField(
        max_length=200,
        default="all",
        help_text="all, user:NAME, group:NAME, gpu:UUID or host:NAME.",
    )
    channels = models.ManyToManyField(
        "monitor.Channel",
        blank=True,
        related_name="+",
        limit_choices_to={"owner": None, "to_owners": False},
        help_text="Alert channels that get the report. Without one it is only stored.",
    )
    keep_days = models.PositiveIntegerField(
        default=400,
        validators=[MinValueValidator(1), MaxValueValidator(36_500)],
        help_text="Stored reports are deleted after this time.",
    )
    reported_until = models.DateTimeField(null=True, blank=True, editable=False)
    sent_at = models.DateTimeField(null=True, blank=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    retry_at = models.DateTimeField(null=True, blank=True, editable=False)
    problem = models.CharField(max_length=300, blank=True, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ReportSubscription(models.Model):
    """Whether a user gets a report about the own use each week. Columns as of a schedule.

    is_on: None = the user has not chosen, so the policy `delivery` decides.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+"
    )
    is_on = models.BooleanField("on", null=True, blank=True, default=True, db_default=True)
    since_at = models.DateTimeField()
    reported_until = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"weekly report of {self.user}"


class StoredReport(models.Model):
    """A report as it was made. It never changes; it is only deleted, when its time is over.

    viewer: the user whose view it is; "" = an operator's, which only operators may open. missing:
    formats that could not be made, with the reason.
    """

    class Kind(models.TextChoices):
        SCHEDULED = "scheduled"
        OWN = "own"
        INCIDENT = "incident"
        REQUESTED = "requested"

    kind = models.CharField(max_length=9, choices=Kind.choices)
    title = models.CharField(max_length=200)
    viewer = models.CharField(max_length=150, blank=True)
    scope = models.CharField(max_length=200)
    period = models.CharField(max_length=20)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField()
    made_at = models.DateTimeField()
    made_by = models.CharField(max_length=150)
    keep_until = models.DateTimeField(db_index=True)
    schedule = models.ForeignKey(
        ReportSchedule, models.SET_NULL, null=True, blank=True, related_name="reports"
    )
    incident = models.OneToOneField(
        "monitor.Incident", models.SET_NULL, null=True, blank=True, related_name="+"
    )
    missing = models.JSONField(default=dict, blank=True)

    class Meta:
        indexes = [models.Index(fields=["viewer", "-made_at"], name="stored_report_viewer")]

    def __str__(self) -> str:
        return self.title

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("A stored report never changes.")
        super().save(*args, **kwargs)


class StoredFile(models.Model):
    """A stored report in one format."""

    report = models.ForeignKey(StoredReport, models.CASCADE, related_name="files")
    format = models.CharField(max_length=8)
    content = models.BinaryField()
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["report", "format"], name="stored_file_format")
        ]

    def __str__(self) -> str:
        return f"{self.report_id} as {self.format}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("A stored report never changes.")
        super().save(*args, **kwargs)


class ReportAccess(models.Model):
    """Has no table: it carries the permissions of reports, which the admin lists."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = "report"
        permissions = [("view_group_report", "view group report")]

    def __str__(self) -> str:
        return "reports"


class CapacityResult(models.Model):
    """The newest capacity figures of a host, as REST returns them.

    requested_at: an operator asked for new ones, which are not there yet. problem: why the last
    computation failed; "" = it did not.
    """

    host = models.CharField(primary_key=True, max_length=100)
    at = models.DateTimeField(null=True, blank=True)
    body = models.JSONField(default=dict, blank=True)
    seconds = models.FloatField("computing time", null=True, blank=True)
    requested_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"capacity of {self.host}"
