from __future__ import annotations

from django.db import models


class PolicyValues(models.Model):
    """The thresholds of one policy that operators changed; what is not here has its default."""

    name = models.CharField(max_length=60, primary_key=True)
    values = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = "policy"
        verbose_name_plural = "policies"

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """Who changed or did what, and when; never changed or deleted by hand."""

    at = models.DateTimeField(db_index=True)
    by = models.CharField(max_length=150, blank=True)
    action = models.CharField(max_length=48)
    subject = models.CharField(max_length=200)
    text = models.TextField()
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["subject", "-at"], name="audit_subject_at")]

    def __str__(self) -> str:
        return self.text
