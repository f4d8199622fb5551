"""`gpucoord check`: what this machine has and what is missing. Read-only."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import stat
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucoord_site import __version__
from gpucoord_site.cli import check_machine
from gpucoord_site.cli.check_machine import Finding, Level, as_json, as_text, fail, ok, warn, worst
from gpucoord_site.cli.commands import arg, command
from gpucoord_site.config.django_values import database as database_settings
from gpucoord_site.config.file import config_file
from gpucoord_site.config.settings import Config, ConfigError, load_config, rules
from gpucoord_site.config.values import origin
from monitor.facts.formats import GIB
from monitor.facts.readings import GpuSweep, Health
from scheduler.execution import probes as capabilities_probe
from scheduler.execution.engines.facts import EngineAway
from scheduler.execution.engines.slurm import SlurmEngine, engine_of
from scheduler.execution.policy import BoundsPolicy
from scheduler.runner.confine import caps, cgroups, limit_trials, locks


@command(
    "check",
    "Say what this machine has and what is missing.",
    arg("--json", "print JSON for scripts"),
)
def check(options: Namespace) -> int:
    """Print the findings. Returns 1 when `gpucoord up` cannot work before a fix."""
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
        f"{name} = {'***' if rule.is_secret else getattr(config, name)} ({where})"
        for name, rule in rules().items()
        if (where := origin(name, os.environ))
    ]
    file = f"file {path}" if path else "no gpucoord.toml"
    return f"{file}; " + ("changed: " + ", ".join(changed) if changed else "all defaults")


# `gpucoord check`: the engine that runs the jobs.


def engine(config: Config) -> Iterator[Finding]:
    """Nothing for jobs that gpucoord runs itself."""
    if config.engine == "none":
        yield ok("engine", "none: this host is monitored, and runs no new jobs")
    elif config.engine == "slurm":
        yield from _slurm(config)


def _slurm(config: Config) -> Iterator[Finding]:
    made = engine_of(config)
    if os.geteuid() != 0 or config.run_as == "service":
        yield fail(
            "engine",
            "Slurm gets each job from the account of its owner, which needs root",
            "run gpucoord as root, without run_as = service",
        )
    version = made.version()
    if not version:
        yield fail("engine", "squeue can't be run", "install slurm-client, or set slurm_commands")
        return
    yield from _answer(made, version)
    yield from _readable("slurm_python", Path(made.python), "set slurm_python")
    yield from _readable("the installation", Path(made.root), "install it outside of /root")
    yield from _readable("the parent of the data folder", config.data.parent, "set data")


def _answer(made: SlurmEngine, version: str) -> Iterator[Finding]:
    look = made.look()
    if not look.is_answer:
        yield fail("engine", f"{version} does not answer: {look.problem}", "start slurmctld")
        return
    try:
        nodes = made.nodes()
    except EngineAway as error:
        yield warn("engine", f"{version} does not list its nodes: {error}")
        return
    gpus = sum(node.gpus or 0 for node in nodes)
    yield ok("engine", f"{version}: {len(nodes)} nodes with {gpus} GPUs, {len(look.tasks)} jobs")
    if not gpus:
        yield warn("engine", "no node has GPUs", "declare them in gres.conf and slurm.conf")


def _readable(name: str, path: Path, todo: str) -> Iterator[Finding]:
    """Whether the accounts of jobs can reach a path on this host."""
    closed = [
        folder
        for folder in (*path.resolve().parents, path.resolve())
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH
    ]
    if closed:
        yield fail("engine", f"other accounts can't enter {closed[-1]}, which {name} needs", todo)


# `gpucoord check`: the driver, NVML and the GPUs that respond.


def gpus(config: Config) -> Iterator[Finding]:
    """The GPUs that respond. A missing driver is a failure only if it is required."""
    if config.probe == "simulated":
        text = f"simulated ({config.simulated_gpus}): every figure is made up"
        yield warn("GPUs", text, "unset GPUCOORD_PROBE to see the real ones")
    elif config.probe == "none":
        yield ok("GPUs", "not looked at (probe = none); jobs without a GPU run")
    else:
        yield from _real(config)


def _real(config: Config) -> Iterator[Finding]:
    from monitor.gpus.sampling.probes.nvml import detect

    sweep, versions = detect(datetime.now(UTC))
    if sweep.problem and not sweep.gpus:
        level = fail if config.needs_nvml else warn
        yield level("GPUs", sweep.problem, sweep.remedy or "")
        return
    yield ok("driver", ", ".join([f"kernel module {kernel_module() or 'unknown'}", *versions]))
    yield from answering(sweep)


def answering(sweep: GpuSweep) -> Iterator[Finding]:
    """`2 × NVIDIA H100 80GB HBM3 (80 GiB)`, and each one that does not answer well."""
    kinds = Counter(
        f"{gpu.name or 'unknown'}"
        + (f" ({gpu.memory_total_bytes / GIB:.0f} GiB)" if gpu.memory_total_bytes else "")
        for gpu in sweep.gpus
    )
    yield ok("GPUs", ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "none")
    for gpu in sweep.gpus:
        if gpu.health is not Health.OK:
            yield warn(
                "GPUs", f"GPU {gpu.index} is {gpu.health}: {gpu.problem or 'no reason given'}"
            )
        elif gpu.failed_calls:
            yield warn("GPUs", f"GPU {gpu.index}: {'; '.join(gpu.failed_calls)}")
    if sweep.unnamed:
        yield warn("GPUs", sweep.problem or "a GPU has no name", sweep.remedy or "")


def kernel_module(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA kernel module; None when there is none."""
    try:
        match = re.search(r"Kernel Module.{0,200}?\s(\d+\.\d+(?:\.\d+)?)", version_file.read_text())
    except OSError:
        return None
    return match[1] if match else None


# `gpucoord check`: the database, whether it is reachable, and the age of its tables.


def database(config: Config) -> Iterator[Finding]:
    try:
        database_options = database_settings(config)
    except ConfigError as error:
        yield fail("database", str(error))
        return
    if database_options["ENGINE"].endswith("sqlite3"):
        path = Path(database_options["NAME"])
        yield ok("database", f"SQLite {sqlite3.sqlite_version}, {path}")
        if not path.exists():
            return
    else:
        server = _postgres(database_options)
        yield server
        # Asking Django makes the secret key: not before the first start has made the folder.
        if server.level == "fail" or not (config.data / "secret_key").exists():
            return
    yield from _migrations()


def _postgres(options: dict[str, object]) -> Finding:
    import psycopg

    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host",
             "PORT": "port"}  # fmt: skip
    given: dict[str, Any] = {ours: str(options[n]) for n, ours in names.items() if options.get(n)}
    where = f"PostgreSQL {options['NAME']} on {options.get('HOST') or 'the local socket'}"
    try:
        with psycopg.connect(connect_timeout=5, **given) as connection:
            number = connection.info.server_version
            encoding = connection.info.parameter_status("server_encoding")
    except psycopg.OperationalError as error:
        reason = next((line for line in str(error).splitlines() if "failed" in line), str(error))
        return fail("database", f"{where}: {reason}", "check DATABASE_URL and the server")
    where = f"{where}, version {number // 10000}.{number % 10000}"
    if encoding != "UTF8":
        return warn(
            "database",
            f"{where}; with its encoding {encoding}, text with other letters than English fails",
            "create it with: createdb --encoding UTF8 --template template0 NAME",
        )
    return ok("database", where)


def _migrations() -> Iterator[Finding]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    import django

    django.setup()
    from django.db import DatabaseError, connection
    from django.db.migrations.loader import MigrationLoader

    from gpucoord_site.service.startup_checks import is_too_old, unknown_migrations

    try:
        if is_too_old():
            todo = "upgrade them first with an earlier gpucoord, or use an empty data folder"
            yield fail("tables", "too old for this gpucoord", todo)
            return
        loader = MigrationLoader(connection)
    except DatabaseError as error:
        yield fail("tables", f"can't be read: {error}")
        return
    pending = len(set(loader.disk_migrations) - set(loader.applied_migrations))
    if newer := unknown_migrations(loader):
        todo = "update gpucoord, or use another data folder"
        yield fail("tables", f"made by a newer gpucoord ({', '.join(newer)})", todo)
    elif pending:
        yield warn("tables", f"{pending} changes to apply", "gpucoord up does it at its start")
    else:
        yield ok("tables", "up to date")


# `gpucoord check`: probe the features that limit jobs. Nothing is changed.


def bounds(config: Config) -> Iterator[Finding]:
    """Cgroups, device filtering, GPU time caps, MPS and niceness."""
    place = cgroups.find_parent()
    trials = list(limit_trials.trials(place))
    for folder in place.folders:
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
    capabilities = capabilities_probe.describe(
        place,
        minors=len(cgroups.minors()),
        mps=cgroups.mps_pipes(),
        locks=str(config.locks),
        policy=BoundsPolicy(),
    )
    for mean in capabilities:
        if mean.name == "cgroup" and not mean.active:
            todo = "run as root, or give the service Delegate=yes in its systemd unit"
            yield warn("cgroup", mean.text, todo)
        elif mean.name != "locks":
            yield ok({"share": "share cap"}.get(mean.name, mean.name), mean.text)
    works = ", ".join(trial.name for trial in trials if not trial.problem)
    if works:
        yield ok("tried", f"limits that were tried on a process and work: {works}")
    for trial in trials:
        if trial.problem:
            todo = "jobs can exceed this limit; report it with the version of the kernel"
            yield warn("tried", f"limit on {trial.name}: {trial.problem}", todo)
    if caps.can_restore():
        yield ok("nice", "own jobs step back while the machine is busy")
    else:
        yield ok("nice", "this account may not take niceness back, so none is given")


def lock_files(config: Config) -> Iterator[Finding]:
    """Whether the lock files are usable, and their current holders."""
    folder = config.locks
    if not folder.is_dir():
        if folder == config.data or folder.parent.is_dir():
            yield ok("locks", f"{folder} (made at the first start)")
        else:
            todo = f"mkdir -p -m 1777 {folder}, or set lock_folder"
            yield fail("locks", f"{folder} is not there and can't be made", todo)
        return
    files = [folder / locks.HOST_FILE, *(locks.gpu_lock_file(folder, index) for index in range(64))]
    faults = [fault for file in files if (fault := locks.lock_file_fault(file))]
    for fault in faults:
        problem, _, todo = fault.partition(" To mend it: ")
        yield fail("locks", problem.rstrip("."), todo.rstrip("."))
    if faults:
        return
    try:
        locks.check_folder(folder)
        for file in files:
            if file.is_symlink() or file.exists():
                os.close(locks.open_file(file))
    except OSError as error:
        yield fail("locks", f"{error.filename}: {error.strerror}", "remove it, or set lock_folder")
        return
    held = {f: holders for f, holders in locks.holders(files).items() if holders}
    yield ok("locks", f"{folder}/gpu.lock, gpu0.lock, …: {'held now' if held else 'none is held'}")
    for file, holders in held.items():
        yield ok("locks", f"{file} is held by {locks.holder_names(holders)}")


# In the order in which they are listed.
LOOKS: list[Callable[[Config], Iterator[Finding]]] = [
    check_machine.profile,
    gpus,
    check_machine.accounts,
    check_machine.program,
    engine,
    bounds,
    lock_files,
    check_machine.limits,
    check_machine.pressure,
    check_machine.data_folder,
    check_machine.checkpoints,
    check_machine.disk,
    database,
    check_machine.disks,
    check_machine.retired_thresholds,
    check_machine.port,
    check_machine.listeners,
]
