"""Admin: Django looks for the pages here; `gpucoord_site.apps` loads those of extensions."""

from __future__ import annotations

from scheduler.admin import jobs, quotas, records

__all__ = ["definitions", "jobs", "quotas", "records"]
