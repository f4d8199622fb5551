"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import definitions, jobs, model_services, quotas, records

__all__ = [
    "definitions",
    "idle_work",
    "jobs",
    "model_services",
    "quotas",
    "records",
    "windows",
]
