from __future__ import annotations

from django.db import models


class CapacityResult(models.Model):
    """The newest capacity figures of a host, as REST returns them.

    requested_at: an operator asked for new ones, which are not there yet. problem: why the last
    computation failed; "" = it did not.
    """

    host = models.CharField(primary_key=True, max_length=100)
    at = models.DateTimeField(null=True, blank=True)
    body = models.JSONField(default=dict, blank=True)
    seconds = models.FloatField("computing time", null=True, blank=True)
    requested_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"capacity of {self.host}"
