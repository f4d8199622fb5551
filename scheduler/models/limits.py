from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Coalesce

from scheduler.facts.jobs import PRIORITIES


class Quota(models.Model):
    """How much a user, each member of a group, or any other user may use. Empty = no limit.

    An empty number of waiting jobs or highest priority means that of the policy "quotas".
    A user's own quota replaces their groups', and these the default; of several groups each
    figure is that of the most generous.
    """

    # Protected: a quota is deleted by a user, which is audited, and not with its group.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="quotas"
    )
    group = models.ForeignKey(Group, models.PROTECT, null=True, blank=True, related_name="quotas")
    share_pct = models.FloatField(
        "entitled share",
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
        help_text="Percent of the machine's GPUs, when others want them too.",
    )
    share_is_limit = models.BooleanField(
        "share is a limit",
        default=False,
        db_default=False,
        help_text="The user never gets more than the share, even if GPUs are free.",
    )
    reserved_pct = models.FloatField(
        "kept for user-initiated jobs",
        default=20.0,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
        help_text="Percent of the share that jobs of priority 4 and 5 take first.",
    )
    gpu_share_pct = models.PositiveSmallIntegerField(
        "GPU time on shared GPUs",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text="Percent of the time of each GPU that a job shares: the default and the most of "
        "its gpu_share.",
    )
    gpu_minutes = models.FloatField(
        "GPU-minutes a day", null=True, blank=True, validators=[MinValueValidator(0)]
    )
    prompts = models.PositiveIntegerField("prompts a day", null=True, blank=True)
    prompt_tokens = models.PositiveBigIntegerField("tokens of prompts a day", null=True, blank=True)
    gpus = models.PositiveIntegerField("GPUs at a time", null=True, blank=True)
    jobs = models.PositiveIntegerField("running jobs", null=True, blank=True)
    memory_bytes = models.PositiveBigIntegerField(
        "GPU memory at a time", null=True, blank=True, help_text='Such as "80GiB".'
    )
    queued = models.PositiveIntegerField("waiting jobs", null=True, blank=True)
    exclusive_batches = models.BooleanField(
        "exclusive batches",
        default=False,
        help_text="Large batches may unload models and take GPUs for themselves.",
    )
    priority = models.PositiveSmallIntegerField(
        "highest priority",
        null=True,
        blank=True,
        choices=[(value, f"{value} {word}") for value, word in PRIORITIES.items()],
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(user__isnull=True) | models.Q(group__isnull=True),
                name="quota_of_one",
                violation_error_message="Choose a user or a group, not both.",
            ),
            models.UniqueConstraint(
                Coalesce("user", 0),
                Coalesce("group", 0),
                name="quota_once",
                violation_error_message="There is a quota for these already: change that one.",
            ),
        ]

    def __str__(self) -> str:
        return self.subject

    @property
    def subject(self) -> str:
        """The user or group, as in the audit log."""
        if self.user is not None:
            return f"user {self.user.get_username()}"
        return f"group {self.group.name}" if self.group is not None else "all other users"

    @classmethod
    def words(cls, name: str) -> str:
        """Label of a figure."""
        return str(cls._meta.get_field(name).verbose_name)  # type: ignore[union-attr]


class HostCapacity(models.Model):
    """The GPUs of a host that are shared out, and until when their use has been charged."""

    host = models.CharField(max_length=100, primary_key=True)
    at = models.DateTimeField()
    gpu_uuids = models.JSONField(default=list)
    gpu_bytes = models.BigIntegerField(null=True)

    class Meta:
        verbose_name_plural = "host capacities"

    def __str__(self) -> str:
        return f"{len(self.gpu_uuids)} GPUs of {self.host}"


class UsageShare(models.Model):
    """A user's usage of a host's GPUs: a decayed mean, and the current charge.

    usage: of the host's capacity, 0..1. charge, outside: current charge in GPUs. seen_s, known_s:
    seconds on GPUs, decayed as the usage, and the part of them with known use. owed_s: GPU-seconds
    by which the use was less than the target share while jobs waited, decayed as the usage.
    """

    host = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    usage = models.FloatField(default=0)
    charge = models.FloatField(default=0)
    outside = models.FloatField(default=0)
    seen_s = models.FloatField(default=0)
    known_s = models.FloatField(default=0)
    owed_s = models.FloatField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "owner"], name="used_share_host_owner")
        ]

    def __str__(self) -> str:
        return f"{self.owner} on {self.host}"


class DailyGpuUsage(models.Model):
    """GPU-seconds of a user on a host in one day of the ledger; from_at is its midnight.

    job_s: held by jobs. outside_s: used by other processes.
    """

    host = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    from_at = models.DateTimeField()
    job_s = models.FloatField(default=0)
    outside_s = models.FloatField(default=0)

    class Meta:
        verbose_name = "daily GPU usage"
        verbose_name_plural = "daily GPU usage"
        constraints = [
            models.UniqueConstraint(fields=["from_at", "owner", "host"], name="gpu_day_once")
        ]

    def __str__(self) -> str:
        return f"{self.owner} on {self.from_at:%Y-%m-%d}"


class TimeWindow(models.Model):
    """A requested weekly time; it takes effect once an operator approves it.

    scheduler.facts.people.Window describes the columns. The holder is a user or a group.
    """

    class State(models.TextChoices):
        ASKED = "asked"
        APPROVED = "approved"
        DECLINED = "declined"
        WITHDRAWN = "withdrawn"

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, null=True, blank=True, related_name="+"
    )
    group = models.ForeignKey("auth.Group", models.CASCADE, null=True, blank=True, related_name="+")
    gpu_uuids = models.JSONField("GPUs", default=list, blank=True)
    days = models.JSONField(default=list)
    start = models.TimeField()
    end = models.TimeField()
    zone = models.CharField("time zone", max_length=64)
    share_pct = models.FloatField(
        "share (%)", default=100, validators=[MinValueValidator(1), MaxValueValidator(100)]
    )
    kept = models.BooleanField(
        "kept for the holder",
        default=True,
        help_text="Others are kept off then. If not: the holder may use the GPUs only then.",
    )
    first_day = models.DateField(null=True, blank=True)
    last_day = models.DateField(null=True, blank=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.ASKED)
    reason = models.TextField(blank=True)
    asked_by = models.CharField(max_length=150)
    asked_at = models.DateTimeField()
    decided_by = models.CharField(max_length=150, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(user__isnull=False, group__isnull=True)
                | models.Q(user__isnull=True, group__isnull=False),
                name="time_window_one_holder",
            )
        ]
        indexes = [models.Index(fields=["state"], name="time_window_state")]

    def __str__(self) -> str:
        return f"window {self.pk} of {self.user or self.group}"
