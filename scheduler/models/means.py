from __future__ import annotations

from django.db import models


class Means(models.Model):
    """What a host has to keep jobs within their bounds, found out by trying it."""

    host = models.CharField(max_length=100)
    name = models.CharField(max_length=20)
    active = models.BooleanField(default=False)
    text = models.TextField(blank=True)
    since_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "means"
        constraints = [models.UniqueConstraint(fields=["host", "name"], name="means_host_name")]

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"
