"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import incidents, policies, seen, tokens

__all__ = ["incidents", "policies", "seen", "tokens"]
