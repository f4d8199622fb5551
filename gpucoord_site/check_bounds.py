"""Looks for `gpucoord check` at what can keep jobs within bounds: tried, and left as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from gpucoord_site.check_report import Finding, fail, ok, warn
from gpucoord_site.config import Config
from scheduler.policy.bounds import BoundsPolicy
from scheduler.runner import abilities, cgroup_places, gpu_devices, lock_holders, locks, niceness


def bounds(config: Config) -> Iterator[Finding]:
    """A cgroup, hidden GPUs, a cap of the share, MPS and niceness."""
    place = cgroup_places.find()
    for folder in place.folders:
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
    found = abilities.found(
        place,
        minors=len(gpu_devices.minors()),
        mps=gpu_devices.mps_pipes(),
        locks=str(config.locks),
        policy=BoundsPolicy(),
    )
    for mean in found:
        if mean.name == "cgroup" and not mean.active:
            todo = "run as root, or give the service Delegate=yes in its systemd unit"
            yield warn("cgroup", mean.text, todo)
        elif mean.name != "locks":
            yield ok({"share": "share cap"}.get(mean.name, mean.name), mean.text)
    if niceness.can_restore():
        yield ok("nice", "own jobs step back while the machine is busy")
    else:
        yield ok("nice", "this account may not take niceness back, so none is given")


def lock_files(config: Config) -> Iterator[Finding]:
    """Whether the lock files can be used, and who holds one now."""
    folder = config.locks
    if not folder.is_dir():
        if folder == config.data or folder.parent.is_dir():
            yield ok("locks", f"{folder} (made at the first start)")
        else:
            todo = f"mkdir -p -m 1777 {folder}, or set lock_folder"
            yield fail("locks", f"{folder} is not there and can't be made", todo)
        return
    files = [folder / locks.HOST_FILE, *(locks.gpu_file(folder, index) for index in range(64))]
    try:
        locks.check_folder(folder)
        for file in files:
            if file.is_symlink() or file.exists():
                os.close(locks.open_file(file))
    except OSError as error:
        yield fail("locks", f"{error.filename}: {error.strerror}", "remove it, or set lock_folder")
        return
    held = {f: who for f, who in lock_holders.holders(files).items() if who}
    yield ok("locks", f"{folder}/gpu.lock, gpu0.lock, …: {'held now' if held else 'none is held'}")
    for file, who in held.items():
        yield ok("locks", f"{file} is held by {locks.names(who)}")
