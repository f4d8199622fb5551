"""Print a report of GPU usage from this machine's database, with all users by name."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from gpucoord_site.cli import verbs
from gpucoord_site.management.plain import PlainCommand
from monitor.owners.policy import Viewer
from reports.figures.actions import ScopeNotFound, build
from reports.figures.facts import ReportRefused
from reports.figures.policy import periods
from reports.render.actions import NoTypst, render


class Command(PlainCommand):
    help = "Print a report of GPU usage, fair share and violations, from the database here."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for argument in verbs.CHOICE:
            argument.add_to(parser)

    def handle(self, *args: object, **options: Any) -> None:
        content = _content(options)
        is_binary = options["format"] in verbs.BINARY
        if is_binary and not options["output"] and sys.stdout.isatty():
            raise CommandError(f"A terminal can't show {options['format']}. {verbs.TO_FILE}")
        if options["output"] or is_binary:
            try:
                verbs.write(content, options["output"])
            except OSError as error:
                raise CommandError(str(error)) from None
        else:
            self.stdout.write(content.decode(), ending="")


def _content(options: dict[str, Any]) -> bytes:
    """Raises CommandError with a sentence."""
    now, zone = timezone.now(), timezone.get_default_timezone_name()
    name = f"user:{options['user']}" if options["user"] else options["scope"] or "all"
    given_period = (options["last"] or "", options["begin"] or "", options["end"] or "")
    try:
        period, scope = periods.parse(*given_period, zone, now), periods.scope(name)
        # Accounts that can read the database may see all of it.
        report = build(period, scope, Viewer("", operator=True), now)
        return render(report, options["format"])
    except (ReportRefused, ScopeNotFound, NoTypst) as error:
        raise CommandError(str(error)) from None
    except DatabaseError as error:
        hint = "Is GPUCOORD_DATA that of the server, and was `gpucoord up` run once?"
        raise CommandError(f"The database can't be read ({error}). {hint}") from None
