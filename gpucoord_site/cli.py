"""The `gpucoord` command: finds what was asked for; every error of a person is one sentence."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

# What a person is offered: what it does, and `module:function` for what starts without Django.
Commands = dict[str, tuple[str, str | None]]
COMMANDS: Commands = {
    "up": ("start gpucoord here and print its address", None),
    "demo": (
        "the same with a simulated server, thrown away at the end",
        "gpucoord_site.demo.command:main",
    ),
    "check": ("say what this machine has and what is missing", "gpucoord_site.check:main"),
    "submit": (
        "run a command as a job: gpucoord submit -- python train.py",
        "gpucoord_site.submit:main",
    ),
    "why": ("say why a job waits: gpucoord why JOB", "gpucoord_site.why:main"),
    "quota": ("say what you may use, and what you use now", "gpucoord_site.quota:main"),
    "lock": (
        "have GPUs to yourself: gpucoord lock 0 -- python train.py",
        "gpucoord_site.lock:main",
    ),
    "token": ("make a token for REST: gpucoord token USER", None),
    "version": ("print the version", "gpucoord_site.cli:version"),
}
FRONT_PAGE = """\
gpucoord keeps a shared GPU server fair.

Usage: gpucoord COMMAND [--help]

{commands}

Start here: gpucoord demo      (no GPU needed)
Then:       gpucoord up        and open the address that it prints
Django's own commands work too (gpucoord changepassword NAME); `gpucoord django-help` lists them.
"""
USAGE_ERROR = 2


def main() -> int:
    """`gpucoord COMMAND`; returns its exit code."""
    return _run(sys.argv[1:] or ["help"], COMMANDS)


def manage() -> int:
    """`manage.py COMMAND`: the same, but `check` is Django's own."""
    ours = {name: entry for name, entry in COMMANDS.items() if name != "check"}
    return _run(sys.argv[1:] or ["help"], ours)


def _run(argv: Sequence[str], ours: Commands) -> int:
    from gpucoord_site.config_file import ConfigError

    try:
        return _dispatch(argv[0], list(argv[1:]), ours)
    except ConfigError as error:
        print(f"gpucoord can't start with these settings:\n{error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(name: str, rest: list[str], ours: Commands) -> int:
    name = {"--version": "version", "-V": "version"}.get(name, name)
    if name in {"help", "--help", "-h"} and not rest:
        print(front_page(), end="")
        return 0
    if name == "help" and rest[0] in ours:
        name, rest = rest[0], ["--help"]
    target = ours.get(name, ("", None))[1]
    if target:
        module, function = target.split(":")
        return int(getattr(importlib.import_module(module), function)(rest) or 0)
    return _django(name, rest)


def _django(name: str, rest: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    # What is loaded stays: looking for garbage would take a tenth of the start (see apps.py).
    gc.disable()
    from django.core.management import ManagementUtility, get_commands

    if name == "django-help":
        name, rest = "help", []
    if name in COMMANDS or name == "help" or name in get_commands():
        ManagementUtility(["gpucoord", name, *rest]).execute()
        return 0
    close = get_close_matches(name, COMMANDS, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    print(f"gpucoord: there is no command {name!r}.{hint}\n", file=sys.stderr)
    print(front_page(), file=sys.stderr, end="")
    return USAGE_ERROR


def front_page() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, (text, _) in COMMANDS.items())
    return FRONT_PAGE.format(commands="\n".join(lines))


def version(_rest: Sequence[str] = ()) -> int:
    import platform

    from gpucoord_site import __version__

    print(f"gpucoord {__version__} (Python {platform.python_version()})")
    return 0
