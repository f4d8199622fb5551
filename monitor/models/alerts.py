from __future__ import annotations

from django.conf import settings
from django.db import models

from monitor.models.incidents import Incident
from monitor.models.journal import Event


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

    planned: taken at the next tick. `before`: the values that undoing restores.
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
