"""`gpucoord check`: what this machine has and what is missing. Read-only."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence

from gpucoord_site import __version__
from gpucoord_site.cli.check import (
    bounds as check_bounds,
)
from gpucoord_site.cli.check import (
    database as check_database,
)
from gpucoord_site.cli.check import (
    engine as check_engine,
)
from gpucoord_site.cli.check import (
    gpus as check_gpus,
)
from gpucoord_site.cli.check import (
    guards as check_guards,
)
from gpucoord_site.cli.check import (
    machine as check_machine,
)
from gpucoord_site.cli.check.report import Finding, Level, as_json, as_text, fail, ok, worst
from gpucoord_site.cli.parsing import Parser
from gpucoord_site.config.errors import SECRETS, origin
from gpucoord_site.config.file import config_file
from gpucoord_site.config.settings import Config, ConfigError, load_config

LOOKS: list[Callable[[Config], Iterator[Finding]]] = [
    check_machine.profile,
    check_gpus.gpus,
    check_machine.accounts,
    check_machine.program,
    check_engine.engine,
    check_bounds.bounds,
    check_bounds.lock_files,
    check_machine.limits,
    check_machine.pressure,
    check_machine.data_folder,
    check_machine.checkpoints,
    check_machine.disk,
    check_database.database,
    check_guards.disks,
    check_guards.retired_thresholds,
    check_machine.port,
    check_machine.listeners,
]


def main(argv: Sequence[str]) -> int:
    """Print the findings. Returns 1 when `gpucoord up` cannot work before a fix."""
    parser = Parser("gpucoord check", description="Say what this machine has and what is missing.")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    options = parser.parse_args(argv)
    findings = list(look())
    title = f"gpucoord {__version__} on {platform.node()}"
    title += f" (Linux {platform.release()}, Python {platform.python_version()})"
    print(as_json(title, findings) if options.json else "\n".join(as_text(title, findings)))
    return 1 if worst(findings) is Level.FAIL else 0


def look() -> Iterator[Finding]:
    """All findings. Invalid settings are the only finding."""
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
    """The settings file and the values that differ from the defaults; secrets are masked."""
    path = config_file()
    changed = [
        f"{field} = {'***' if field in SECRETS else getattr(config, field)} ({where})"
        for field in Config.model_fields
        if (where := origin(Config, field, os.environ))
    ]
    file = f"file {path}" if path else "no gpucoord.toml"
    return f"{file}; " + ("changed: " + ", ".join(changed) if changed else "all defaults")
