"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import accounts, channels, policies, records
from monitor.admin import records as hosts

__all__ = ["accounts", "channels", "hosts", "policies", "records"]
