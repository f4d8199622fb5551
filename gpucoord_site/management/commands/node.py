"""Start gpucoord on a further host, without pages of its own."""

from __future__ import annotations

import sys

from gpucoord_site.management.plain import PlainCommand
from gpucoord_site.service.startup import start


class Command(PlainCommand):
    help = (
        "Start gpucoord on a further host: its loops and jobs, without pages. It shares the"
        " PostgreSQL database of DATABASE_URL, and needs the secret_key of the other hosts."
    )

    def handle(self, *args: object, **options: str | None) -> None:
        sys.exit(start(serves_web=False))
