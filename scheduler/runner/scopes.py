"""Edge: a cgroup that systemd makes: a transient scope around a process, over its bus."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

TIMEOUT_S = 5.0
MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)


def reachable() -> Iterator[str]:
    """ "system" for root, "user" with a user's own bus; whether it works, only a trial tells."""
    if shutil.which("busctl") is None:
        return
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        yield "system"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if Path(runtime, "bus").exists():
        yield "user"


def enter(scope: str, name: str, pid: int) -> Path:
    """Put a process into a scope of its own; returns the scope's folder."""
    unit = f"gpucoord-{name}.scope"
    properties = ("4", "PIDs", "au", "1", str(pid), "Delegate", "b", "true")
    more = ("Description", "s", f"gpucoord {name}", "CollectMode", "s", "inactive-or-failed")
    asked = ("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties, *more, "0")
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    subprocess.run(
        ["busctl", f"--{scope}", "call", *MANAGER, *asked],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={"PATH": os.defpath, "XDG_RUNTIME_DIR": runtime},
    )
    return folder_of(pid, unit)


def folder_of(pid: int, unit: str) -> Path:
    """The job is asynchronous: the process may not be in yet."""
    import time

    ends = time.monotonic() + TIMEOUT_S
    while time.monotonic() < ends:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            if line.startswith("0::") and line.endswith(f"/{unit}"):
                return Path("/sys/fs/cgroup" + line[3:])
        time.sleep(0.005)
    raise OSError(0, f"systemd did not put process {pid} into {unit}")
