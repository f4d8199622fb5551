"""Admin: Django looks for the pages here."""

from __future__ import annotations

from monitor.admin import channels, hosts, os_accounts, policies, records, tokens

__all__ = ["channels", "hosts", "os_accounts", "policies", "records", "tokens"]
