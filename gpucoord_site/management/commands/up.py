"""Start gpucoord: web and loops, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from gpucoord_site.management.plain import PlainCommand
from gpucoord_site.service.startup import start


class Command(PlainCommand):
    help = "Start gpucoord: the web pages and the loops behind them, until Ctrl-C or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
        parser.add_argument(
            "--port", help="port to listen on (default: 8000, or a free one; 0: any)"
        )

    def handle(self, *args: object, **options: str | None) -> None:
        sys.exit(start(host=options["host"], port=options["port"]))
