from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models


class IdleTemplate(models.Model):
    """Background work for idle GPUs: scheduler.facts.idle_work.TemplateFact.

    request: the fields of each job, as in POST /api/jobs/, with a command or a script.
    signals: {name: {"value": number, "at": time}}.
    """

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[a-z][a-z0-9_-]*$", "Use lower-case letters, digits, _, -.")],
    )
    enabled = models.BooleanField(default=True)
    account = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        related_name="idle_templates",
        help_text="The user who owns and is charged for the jobs.",
    )
    request = models.JSONField(
        "fields of the job",
        help_text='Such as {"script": "embed_768", "script_args": {"input": "/data"}, "gpus": 1}.',
    )
    weight = models.FloatField(
        default=1.0, validators=[MinValueValidator(0), MaxValueValidator(1_000_000)]
    )
    most_running = models.PositiveSmallIntegerField("jobs at a time", default=1)
    most_per_gpu = models.PositiveSmallIntegerField("jobs on a GPU at a time", default=1)
    most_per_day = models.PositiveIntegerField("jobs a day", null=True, blank=True)
    signals = models.JSONField(default=dict, blank=True)
    problem = models.TextField(blank=True)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class IdleChoice(models.Model):
    """Why an idle GPU got a job of a template. candidates: of scheduler.facts.idle_work."""

    at = models.DateTimeField(db_index=True)
    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField("GPU", max_length=96, blank=True)
    idle_s = models.FloatField("idle seconds")
    template = models.CharField(max_length=64)
    # The number of the job, also after its record has been removed.
    job = models.PositiveBigIntegerField()
    seed = models.PositiveBigIntegerField()
    candidates = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.template} for {self.gpu_uuid or self.host}"
