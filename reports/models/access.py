from __future__ import annotations

from django.db import models


class ReportAccess(models.Model):
    """Has no table: it carries the permissions of reports, which the admin lists."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = "report"
        permissions = [("view_group_report", "view group report")]

    def __str__(self) -> str:
        return "reports"
