"""Make a join token for a further host and print it, once."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from gpucoord_site.management.plain import PlainCommand
from monitor.gpus.rows import hosts as host_rows
from monitor.journal.rows.audit import GPUCOORD


class Command(PlainCommand):
    help = "Make a token that lets one further host join within a day, and print it."

    def handle(self, *args: object, **options: object) -> None:
        try:
            text = host_rows.make_token(GPUCOORD, timezone.now())
        except DatabaseError as error:
            raise CommandError(f"The database can't be used ({error}).") from None
        self.stdout.write(text)
        self.stderr.write("Set it as GPUCOORD_JOIN_TOKEN for the first start of the new host.")
