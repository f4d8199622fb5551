"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import (
    batches,
    disk,
    hosts,
    jobs,
    model_services,
    notifications,
    prompts,
    quotas,
    scripts,
    sizing,
    windows,
)

__all__ = [
    "batches",
    "disk",
    "hosts",
    "jobs",
    "model_services",
    "notifications",
    "prompts",
    "quotas",
    "scripts",
    "sizing",
    "windows",
]
