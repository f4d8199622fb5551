"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import accounts, records

__all__ = ["accounts", "channels", "hosts", "policies", "records"]
