from __future__ import annotations

from django.db import models

from monitor.models.events import Event
from monitor.models.incidents import Incident


class Channel(models.Model):
    """Where alerts go. Its address holds secrets: it is stored sealed and shown to nobody.

    rules, kinds, gpus, hosts: only these, empty = all. from_event: the last event before it was
    switched on; seen_event: the last that was looked at for it. quiet_from, quiet_until: the times
    of day between which nothing is sent.
    """

    name = models.CharField(max_length=60, unique=True)
    enabled = models.BooleanField(default=True)
    service = models.CharField(max_length=60, blank=True, editable=False)
    sealed = models.TextField(editable=False)
    is_mail = models.BooleanField(default=False, editable=False)
    to_owners = models.BooleanField(
        "to the owners",
        default=False,
        help_text="Mail incidents to the person who owns the process, instead of to the receiver"
        " in the address. Needs a mail address of a server; people's addresses are their users'.",
    )
    least = models.CharField(
        "from severity",
        max_length=8,
        choices=Event.Severity.choices,
        default=Event.Severity.WARNING,
        help_text="Nothing that is less severe is sent.",
    )
    kinds = models.JSONField("events", default=list, blank=True)
    rules = models.JSONField("rules of incidents", default=list, blank=True)
    gpus = models.JSONField("GPUs", default=list, blank=True)
    hosts = models.JSONField("hosts", default=list, blank=True)
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    working_days_only = models.BooleanField(
        default=False, help_text="Wait for a working day; which these are is in the policy alerts."
    )
    errors_at_once = models.BooleanField(
        default=True, help_text="Errors are sent in quiet hours and on free days too."
    )
    from_event = models.BigIntegerField(default=0, editable=False)
    seen_event = models.BigIntegerField(default=0, editable=False)
    failing_since = models.DateTimeField(null=True, blank=True, editable=False)
    problem = models.CharField(max_length=300, blank=True, editable=False)
    worked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Message(models.Model):
    """A notice on its way to a channel; sent by a task, tried again with growing pauses.

    about: what it tells ("incident:12", "event:7"): once for each severity. number: 0 tells,
    1 and 2 are the warnings to an owner before something is done about an incident.
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
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    attempts = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
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
    """A step that was taken about an incident, or would have been (is_dry_run).

    planned: to be done at the next tick; `before` is what undoing restores.
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

    class Meta:
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
