from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from monitor.facts.moments import in_utc
from scheduler.facts.prompts import OPEN, PromptStatus, PromptType


class Prompt(models.Model):
    """A prompt to a language model, and its answer.

    attempt: how often it was given to an instance; an answer counts only for the current attempt.
    worker: the process that has it now. instance: the number of the model instance.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="prompts")
    model = models.CharField(max_length=100)
    type = models.CharField(
        max_length=10, choices=[(kind.value, kind.value) for kind in PromptType]
    )
    priority = models.PositiveSmallIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(5)]
    )
    messages = models.JSONField()
    parameters = models.JSONField(default=dict)
    status = models.CharField(
        max_length=10,
        choices=[(status.value, status.value) for status in PromptStatus],
        default=PromptStatus.QUEUED.value,
    )
    attempt = models.PositiveSmallIntegerField(default=0)
    host = models.CharField(max_length=100, blank=True)
    worker = models.CharField(max_length=40, blank=True)
    instance = models.PositiveBigIntegerField(null=True)
    created_at = models.DateTimeField()
    assigned_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    first_token_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    # Why it waits, in a sentence.
    waits_for = models.CharField(max_length=300, blank=True)
    result = models.TextField(blank=True)
    error = models.TextField(blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["status", "host"],
                name="prompt_open",
                condition=models.Q(status__in=sorted(status.value for status in OPEN)),
            ),
            models.Index(fields=["owner", "-id"], name="prompt_of_owner"),
            models.Index(fields=["finished_at"], name="prompt_finished"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=[status.value for status in PromptStatus]),
                name="prompt_status",
            ),
            models.CheckConstraint(
                condition=models.Q(priority__gte=1, priority__lte=5), name="prompt_priority"
            ),
        ]

    def __str__(self) -> str:
        return f"prompt {self.pk} to {self.model}"

    @property
    def latency_s(self) -> float | None:
        """From its creation to its answer; None while it has none."""
        if self.finished_at is None:
            return None
        return (self.finished_at - self.created_at).total_seconds()

    @property
    def tokens(self) -> int | None:
        """Of the prompt and the answer; None = the server did not report them."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return None
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)


class ModelUse(models.Model):
    """The requests of a user to a model in one hour (of UTC), by prompts and by the endpoint.

    warm: requests that waited for a model to wake. cold: for a boot.
    waited_s, first_token_s, answer_s: sums over the requests that got an answer: until an instance
    took it, until the first byte, until the last one.
    estimated: requests whose tokens were counted here, because the server did not report them.
    """

    hour_at = models.DateTimeField()
    model = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    requests = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    warm = models.PositiveIntegerField(default=0)
    cold = models.PositiveIntegerField(default=0)
    estimated = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    waited_s = models.FloatField(default=0)
    first_token_s = models.FloatField(default=0)
    answer_s = models.FloatField(default=0)

    class Meta:
        verbose_name = "use of a model"
        verbose_name_plural = "use of models"
        constraints = [
            models.UniqueConstraint(fields=["hour_at", "model", "owner"], name="model_use_once")
        ]
        indexes = [models.Index(fields=["owner", "hour_at"], name="model_use_of_owner")]

    def __str__(self) -> str:
        return f"{self.owner} on {self.model} at {in_utc(self.hour_at)}"
