"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import (
    disk,
    hosts,
    jobs,
    model_services,
    notifications,
    quotas,
    sizing,
    windows,
)

__all__ = [
    "disk",
    "hosts",
    "jobs",
    "model_services",
    "notifications",
    "quotas",
    "sizing",
    "windows",
]
