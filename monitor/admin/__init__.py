"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import channels, incidents, policies, seen, tokens

__all__ = ["channels", "incidents", "policies", "seen", "tokens"]
