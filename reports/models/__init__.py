from __future__ import annotations

from reports.models.access import ReportAccess
from reports.models.capacity import CapacityResult
from reports.models.stored import ReportSchedule, ReportSubscription, StoredFile, StoredReport

__all__ = [
    "CapacityResult",
    "ReportAccess",
    "ReportSchedule",
    "ReportSubscription",
    "StoredFile",
    "StoredReport",
]
