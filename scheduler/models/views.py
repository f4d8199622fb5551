from __future__ import annotations

from django.conf import settings
from django.db import models


class SavedView(models.Model):
    """A filter of the list of jobs that a user has named. query: as JobFilters writes it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=600)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "query"], name="saved_view_once")]
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.name} ({self.user})"


class JobPreset(models.Model):
    """Values of the form to submit a job. user None: for all users."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="Empty: for all users.",
    )
    name = models.CharField(max_length=40)
    values = models.JSONField(
        default=dict,
        help_text='Fields of a job with their texts, such as {"gpus": "1", "gpu_memory": "20GiB"}.',
    )

    class Meta:
        verbose_name = "preset of jobs"
        verbose_name_plural = "presets of jobs"
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="job_preset_once")]

    def __str__(self) -> str:
        return self.name
