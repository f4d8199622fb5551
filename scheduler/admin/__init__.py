"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import (
    batches,
    disk,
    hosts,
    idle_work,
    jobs,
    model_services,
    notifications,
    presets,
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
    "idle_work",
    "jobs",
    "model_services",
    "notifications",
    "presets",
    "prompts",
    "quotas",
    "scripts",
    "sizing",
    "windows",
]
