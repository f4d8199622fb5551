"""Admin: Django looks for the pages here."""

from __future__ import annotations

from scheduler.admin import jobs, means, quotas, throttling, windows, yields

__all__ = ["jobs", "means", "quotas", "throttling", "windows", "yields"]
