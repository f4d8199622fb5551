"""`gpucoord check`: what this machine has and what is missing. Looks; changes nothing."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Sequence

from gpucoord_site import __version__, check_bounds, check_database, check_gpus, check_machine
from gpucoord_site.check_report import Finding, Level, as_json, as_text, fail, ok, worst
from gpucoord_site.config import Config, ConfigError, load_config
from gpucoord_site.config_file import config_file
from gpucoord_site.config_problems import SECRETS, origin

LOOKS: list[Callable[[Config], Iterator[Finding]]] = [
    check_machine.profile,
    check_gpus.gpus,
    check_machine.accounts,
    check_bounds.bounds,
    check_bounds.lock_files,
    check_machine.limits,
    check_machine.pressure,
    check_machine.data_folder,
    check_machine.disk,
    check_database.database,
    check_machine.port,
]


def main(argv: Sequence[str]) -> int:
    """Print what was found; 1 when something must be mended before `gpucoord up` can work."""
    parser = argparse.ArgumentParser(
        "gpucoord check", description="Say what this machine has and what is missing."
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    options = parser.parse_args(argv)
    findings = list(look())
    title = f"gpucoord {__version__} on {platform.node()}"
    title += f" (Linux {platform.release()}, Python {platform.python_version()})"
    print(as_json(title, findings) if options.json else "\n".join(as_text(title, findings)))
    return 1 if worst(findings) is Level.FAIL else 0


def look() -> Iterator[Finding]:
    """Every finding. With settings that can't be used there is nothing else to look at."""
    try:
        config = load_config()
    except ConfigError as error:
        for problem in str(error).splitlines():
            yield fail("settings", problem)
        return
    yield ok("settings", settings_in_words(config))
    for topic in LOOKS:
        yield from topic(config)


def settings_in_words(config: Config) -> str:
    """Which file is used and what differs from the defaults, secrets masked."""
    path = config_file()
    changed = [
        f"{field} = {'***' if field in SECRETS else getattr(config, field)} ({where})"
        for field in Config.model_fields
        if (where := origin(Config, field, os.environ))
    ]
    file = f"file {path}" if path else "no gpucoord.toml"
    return f"{file}; " + ("changed: " + ", ".join(changed) if changed else "all defaults")
