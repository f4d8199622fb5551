from __future__ import annotations

from reports.models.stored import (
    CapacityResult,
    ReportAccess,
    ReportSchedule,
    ReportSubscription,
    StoredFile,
    StoredReport,
)

__all__ = [
    "CapacityResult",
    "ReportAccess",
    "ReportSchedule",
    "ReportSubscription",
    "StoredFile",
    "StoredReport",
]
