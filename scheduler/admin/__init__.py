"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import (
    disk,
    hosts,
    jobs,
    model_services,
    notifications,
    prompts,
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
    "prompts",
    "quotas",
    "sizing",
    "windows",
]
