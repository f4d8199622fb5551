from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Coalesce

from scheduler.jobs import PRIORITIES


class Quota(models.Model):
    """How much a person, each member of a group, or anybody else may use. Empty = no limit.

    A person's own quota replaces their groups', and these the default; of several groups each
    figure is that of the most generous.
    """

    # Protected: a quota goes when somebody removes it, which is audited, and not with its group.
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
    reserved_pct = models.FloatField(
        "kept for user-initiated jobs",
        default=20.0,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
        help_text="Percent of the share that only jobs of priority 4 and 5 may take.",
    )
    gpu_minutes = models.FloatField(
        "GPU-minutes a day", null=True, blank=True, validators=[MinValueValidator(0)]
    )
    gpus = models.PositiveIntegerField("GPUs at a time", null=True, blank=True)
    jobs = models.PositiveIntegerField("running jobs", null=True, blank=True)
    memory_bytes = models.PositiveBigIntegerField(
        "GPU memory at a time", null=True, blank=True, help_text='Such as "80GiB".'
    )
    queued = models.PositiveIntegerField("waiting jobs", null=True, blank=True)
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
        """Whom it is for; stands in the audit too."""
        if self.user is not None:
            return f"user {self.user.get_username()}"
        return f"group {self.group.name}" if self.group is not None else "everybody else"

    @classmethod
    def words(cls, name: str) -> str:
        """What a figure is called."""
        return str(cls._meta.get_field(name).verbose_name)  # type: ignore[union-attr]
