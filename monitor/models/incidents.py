from __future__ import annotations

from datetime import timedelta

from django.db import models

from monitor.models.journal import Event


class Incident(models.Model):
    """Excessive use of GPUs or of a host by a user, job or process.

    Each row is one rule on one GPU. The rows of one `subject` are one incident: the first is its
    lead, the others are its facets. over_at: when the rule of the lead stopped holding although
    a facet still holds.
    key: identifies user and place; at most one open row for each rule and key. since_at: when it
    began. opened_at: when the minimum duration was reached. last_seen_at: when the rule last held.
    expected_pct, measured_pct: share of the machine; peak_pct, mean_pct: of what the rule
    measures. `waiting`: jobs of other users that waited meanwhile; waited_s: sum of their waits.
    is_muted: an operator closed it while the rule held; it cannot reopen before the rule stops.
    hog_spans: [begin, end] in epoch seconds of the times with use above the own share while other
    users waited, or with memory held idle.
    """

    host = models.CharField(max_length=100)
    gpu = models.ForeignKey(
        "monitor.Gpu", models.SET_NULL, null=True, blank=True, related_name="incidents"
    )
    rule = models.CharField(max_length=40)
    key = models.CharField(max_length=300)
    use = models.ForeignKey(
        "monitor.ProcessUse", models.SET_NULL, null=True, blank=True, related_name="incidents"
    )
    pid = models.PositiveIntegerField(null=True, blank=True)
    start_ticks = models.BigIntegerField(null=True, blank=True)
    program = models.CharField(max_length=200, blank=True)
    container = models.CharField(max_length=200, blank=True)
    user = models.CharField(max_length=150, blank=True)
    job_ref = models.CharField(max_length=40, blank=True)
    job_owner = models.CharField(max_length=150, blank=True)
    since_at = models.DateTimeField()
    opened_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_by = models.CharField(max_length=150, blank=True)
    is_muted = models.BooleanField(default=False)
    subject = models.CharField(max_length=400, blank=True)
    lead = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="facets", db_index=True
    )
    over_at = models.DateTimeField(null=True, blank=True)
    severity = models.CharField(
        max_length=8, choices=Event.Severity.choices, default=Event.Severity.INFO
    )
    peak_pct = models.FloatField(null=True, blank=True)
    mean_pct = models.FloatField(null=True, blank=True)
    expected_pct = models.FloatField(null=True, blank=True)
    measured_pct = models.FloatField(null=True, blank=True)
    coverage = models.FloatField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    waiting = models.JSONField(default=list, blank=True)
    waited_jobs = models.PositiveIntegerField(default=0)
    waited_s = models.FloatField(default=0)
    hog_spans = models.JSONField(default=list, blank=True)
    text = models.TextField()
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    explanation = models.TextField(blank=True)
    snoozed_until = models.DateTimeField(null=True, blank=True)
    exempt_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "rule", "key"],
                name="incident_open_once",
                condition=models.Q(closed_at__isnull=True),
            )
        ]
        indexes = [
            models.Index(
                fields=["host"], name="incident_open", condition=models.Q(closed_at__isnull=True)
            ),
            models.Index(fields=["host"], name="incident_muted", condition=models.Q(is_muted=True)),
            models.Index(fields=["host", "last_seen_at"], name="incident_host_seen"),
            models.Index(fields=["user", "-opened_at"], name="incident_user_opened"),
            models.Index(fields=["-opened_at"], name="incident_opened"),
        ]

    def __str__(self) -> str:
        return self.text

    @property
    def lasts(self) -> timedelta:
        """The duration without the quiet minutes at the end."""
        return self.last_seen_at - self.since_at

    @property
    def is_hog(self) -> bool:
        return bool(self.hog_spans)

    @property
    def parts(self) -> list[Incident]:
        """The lead and its facets, in the order in which they opened."""
        return [self, *sorted(self.facets.all(), key=lambda row: row.pk)]

    @property
    def coverage_pct(self) -> float | None:
        return None if self.coverage is None else 100 * self.coverage


class CpuScanState(models.Model):
    """The latest scans of all processes of a host, from which the next controller continues."""

    host = models.CharField(max_length=100, primary_key=True)
    at = models.DateTimeField()
    body = models.TextField()

    class Meta:
        verbose_name = "CPU scan state"

    def __str__(self) -> str:
        return self.host


class Exemption(models.Model):
    """A user, program or container exempt from incident rules; permanent if `until_at` is empty."""

    class Scope(models.TextChoices):
        USER = "user"
        PROGRAM = "program"
        CONTAINER = "container"

    scope = models.CharField(max_length=10, choices=Scope.choices)
    name = models.CharField(max_length=200)
    rule = models.CharField(
        max_length=40, blank=True, help_text="Leave empty to exempt from all rules."
    )
    reason = models.TextField(blank=True)
    by = models.CharField(max_length=150, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["until_at"], name="exemption_until")]

    def __str__(self) -> str:
        return f"{self.get_scope_display()} {self.name}"


class Pattern(models.Model):
    """Recurring heavy use of a GPU by a user's program at the same time of day.

    days: its weekdays, such as "01234"; 0 = Monday. Minutes are counted from midnight in `zone`;
    an end that is not after the start is on the next day.
    """

    host = models.CharField(max_length=100)
    gpu = models.ForeignKey("monitor.Gpu", models.CASCADE, related_name="patterns")
    user = models.CharField(max_length=150)
    program = models.CharField(max_length=200, blank=True)
    days = models.CharField(max_length=7, default="0123456")
    start_minute = models.PositiveSmallIntegerField()
    end_minute = models.PositiveSmallIntegerField()
    zone = models.CharField(max_length=60)
    hits = models.PositiveSmallIntegerField("times seen")
    chances = models.PositiveSmallIntegerField("times looked at")
    mean_pct = models.FloatField()
    text = models.TextField()
    found_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["host"], name="pattern_host")]

    def __str__(self) -> str:
        return self.text
