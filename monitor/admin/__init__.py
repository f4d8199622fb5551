"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import policies, seen, tokens

__all__ = ["policies", "seen", "tokens"]
