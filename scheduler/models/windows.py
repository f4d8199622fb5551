from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models


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
