"""`gpucoord check`: probe the features that limit jobs. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from gpucoord_site.cli.check.report import Finding, fail, ok, warn
from gpucoord_site.config.settings import Config
from scheduler.execution.policy import BoundsPolicy
from scheduler.execution.probes import capabilities as capabilities_probe
from scheduler.runner.confine import host_probe, limit_trials, locks, niceness


def bounds(config: Config) -> Iterator[Finding]:
    """Cgroups, device filtering, GPU time caps, MPS and niceness."""
    place = host_probe.find_parent()
    trials = list(limit_trials.trials(place))
    for folder in place.folders:
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
    capabilities = capabilities_probe.describe(
        place,
        minors=len(host_probe.minors()),
        mps=host_probe.mps_pipes(),
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
    if niceness.can_restore():
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
