"""`gpucoord backup`, `restore` and `move-database`; gpucoord_site/backup/ does the work."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

from gpucoord_site.cli.parsing import Parser


def backup(argv: Sequence[str]) -> int:
    options = _backup_parser().parse_args(argv)
    from gpucoord_site.backup import command
    from gpucoord_site.config.settings import load_config

    return _run(lambda: command.backup(load_config(), options.file, replace=options.replace))


def restore(argv: Sequence[str]) -> int:
    options = _restore_parser().parse_args(argv)
    from gpucoord_site.backup import command
    from gpucoord_site.config.settings import load_config

    return _run(lambda: command.restore(load_config(), options.file, replace=options.replace))


def move(argv: Sequence[str]) -> int:
    target = _move_parser().parse_args(argv).target
    if target == "-":
        target = sys.stdin.readline().strip()
    from gpucoord_site.backup import move
    from gpucoord_site.config.settings import load_config

    return _run(lambda: move.move(load_config(), target))


def _run(action: Callable[[], str]) -> int:
    """Print what was done, or the reason why not (exit code 1)."""
    from gpucoord_site.backup.archive import BackupError
    from gpucoord_site.service.startup_checks import UnableToStart

    try:
        text = action()
    except (BackupError, UnableToStart) as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


def _backup_parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord backup",
        description="Write the database, the secret key and the settings file into one file (mode"
        " 0600). gpucoord may run meanwhile. Files of jobs are not included.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="such as gpucoord.tar.gz")
    parser.add_argument("--replace", action="store_true", help="replace FILE if it exists")
    return parser


def _restore_parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord restore",
        description="Put a backup into the data folder and the database. Stop gpucoord first, on"
        " every host that uses the database.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a file of gpucoord backup")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace existing data; replaced files are kept in DATA/replaced-TIME",
    )
    return parser


def _move_parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord move-database",
        description="Copy all rows from the database of the settings to another kind of database:"
        " from SQLite to PostgreSQL, or back. Stop gpucoord first. The source is not changed.",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="empty database postgresql://USER:PASSWORD@HOST:5432/NAME, `sqlite` for the data"
        " folder, or - to read the address from the standard input",
    )
    return parser


PARSERS = {"backup": _backup_parser, "restore": _restore_parser, "move-database": _move_parser}
