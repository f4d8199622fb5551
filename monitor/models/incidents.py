from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models

from monitor.facts.incidents import headline


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
    def lasts_s(self) -> float:
        return self.lasts.total_seconds()

    @property
    def is_hog(self) -> bool:
        return bool(self.hog_spans)

    @property
    def parts(self) -> list[Incident]:
        """The lead and its facets, in the order in which they opened."""
        return [self, *sorted(self.facets.all(), key=lambda row: row.pk)]

    @property
    def headline(self) -> str:
        """Its one line on each page and in lists."""
        return headline(self.parts)

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(part.rule for part in self.parts))

    @property
    def gpus(self) -> list[str]:
        """The UUIDs of all GPUs."""
        return list(dict.fromkeys(part.gpu_id for part in self.parts if part.gpu_id))

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


class Channel(models.Model):
    """A destination of alerts. Its address holds secrets: it is stored encrypted and never shown.

    rules, kinds, gpus, hosts: filters, empty = all. from_event: the last event before the channel
    was enabled. seen_event: the last event processed. quiet_from, quiet_until: the quiet hours.
    """

    name = models.CharField(max_length=60, unique=True)
    # A service of one user, for messages about own jobs; alerts do not go there.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, null=True, blank=True, editable=False,
        related_name="+",
    )  # fmt: skip
    enabled = models.BooleanField(default=True)
    service = models.CharField(max_length=60, blank=True, editable=False)
    encrypted_address = models.TextField(editable=False)
    is_mail = models.BooleanField(default=False, editable=False)
    to_owners = models.BooleanField(
        "to the owners",
        default=False,
        help_text="Send incidents by e-mail to the owner of the process instead of the receiver in"
        " the address. Requires a mail server address. The e-mail address of the user account is"
        " used.",
    )
    least = models.CharField(
        "from severity",
        max_length=8,
        choices=Event.Severity.choices,
        default=Event.Severity.WARNING,
        help_text="Less severe events are not sent.",
    )
    kinds = models.JSONField("events", default=list, blank=True)
    rules = models.JSONField("rules of incidents", default=list, blank=True)
    gpus = models.JSONField("GPUs", default=list, blank=True)
    hosts = models.JSONField("hosts", default=list, blank=True)
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    working_days_only = models.BooleanField(
        default=False,
        help_text="Send on working days only. The policy “alerts” defines the working days.",
    )
    errors_at_once = models.BooleanField(
        default=True, help_text="Send errors during quiet hours and on free days too."
    )
    from_event = models.BigIntegerField(default=0, editable=False)
    seen_event = models.BigIntegerField(default=0, editable=False)
    failing_since = models.DateTimeField(null=True, blank=True, editable=False)
    problem = models.CharField(max_length=300, blank=True, editable=False)
    worked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "alert channel"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Message(models.Model):
    """An alert for a channel. A task sends it and retries with increasing delays.

    about: its subject ("incident:12", "event:7"), sent once for each severity. number: 0 is the
    notification, 1 and 2 are the warnings to an owner before enforcement, 3 is a report about an
    incident whose notification was sent before. attachment: the file that is sent with it, as
    "KIND:KEY"; the subject that registered the kind reads it.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        FAILED = "failed"
        DROPPED = "dropped"

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="messages")
    about = models.CharField(max_length=60)
    incident = models.ForeignKey(
        Incident, models.CASCADE, null=True, blank=True, related_name="messages"
    )
    severity = models.CharField(max_length=8, choices=Event.Severity.choices)
    number = models.PositiveSmallIntegerField(default=0)
    person = models.CharField(max_length=150, blank=True)
    receiver = models.CharField(max_length=254, blank=True)
    rule = models.CharField(max_length=40, blank=True)
    repeat_key = models.CharField(max_length=200, blank=True)
    title = models.CharField(max_length=200)
    text = models.TextField()
    attachment = models.CharField(max_length=60, blank=True)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    attempts = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
        verbose_name = "alert message"
        constraints = [
            models.UniqueConstraint(
                fields=["channel", "about", "severity", "person", "number"],
                name="message_once",
            )
        ]
        indexes = [
            models.Index(
                fields=["due_at"], name="message_due", condition=models.Q(state="waiting")
            ),
            models.Index(fields=["person", "rule", "created_at"], name="message_person_rule"),
            models.Index(fields=["channel", "repeat_key", "created_at"], name="message_repeat"),
            models.Index(fields=["created_at"], name="message_created"),
        ]

    def __str__(self) -> str:
        return self.title


class Response(models.Model):
    """An enforcement step for an incident, taken or only logged (is_dry_run).

    planned: taken at the next tick. `before`: the values that undoing restores. by: the operator
    who requested it; "" = a step of the policy.
    """

    class State(models.TextChoices):
        PLANNED = "planned"
        DONE = "done"
        REFUSED = "refused"
        UNDONE = "undone"

    incident = models.ForeignKey(Incident, models.CASCADE, related_name="responses")
    step = models.CharField(max_length=20)
    is_dry_run = models.BooleanField(default=True)
    state = models.CharField(max_length=8, choices=State.choices, default=State.PLANNED)
    at = models.DateTimeField()
    undone_at = models.DateTimeField(null=True, blank=True)
    text = models.TextField(blank=True)
    before = models.JSONField(default=dict, blank=True)
    by = models.CharField(max_length=150, blank=True, default="", db_default="")

    class Meta:
        verbose_name = "enforcement step"
        constraints = [
            models.UniqueConstraint(
                fields=["incident", "step", "is_dry_run"],
                name="response_once",
                condition=models.Q(undone_at__isnull=True),
            )
        ]
        indexes = [models.Index(fields=["at"], name="response_at")]

    def __str__(self) -> str:
        return self.text or self.step
