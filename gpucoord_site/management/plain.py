"""A command whose help shows only what is ours; Django's own options still work."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class PlainCommand(BaseCommand):
    requires_system_checks = []
    suppressed_base_arguments = {
        "--version",
        "--verbosity",
        "--settings",
        "--pythonpath",
        "--traceback",
        "--no-color",
        "--force-color",
        "--skip-checks",
    }
