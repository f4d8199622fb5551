"""Edge: try each limit of jobs on a process of this program, as `gpucoord check` does.

A file that a limit can be written into proves little: the kernel may not apply it, and a guard may
misread what the kernel reports. So each trial exceeds its limit and looks at the effect.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scheduler.runner import process_tree
from scheduler.runner.confine import landlock
from scheduler.runner.confine.cgroups import Cgroup, CgroupParent, enter, hide
from scheduler.runner.confine.confinement import LogLimit, MemoryGuard, used_bytes
from scheduler.runner.spec import Bounds, Spec

MIB = 1024**2
PATIENCE_S = 5.0
LITTLE, MUCH = 16 * MIB, 48 * MIB
SPIN_S, CPUS = 0.6, 0.2
HOLDS = f'"{sys.executable}" -S -c "x = bytearray({MUCH}); print(1, flush=True); input()"'
TAKES = f"head -c {2 * MUCH} /dev/zero | tail -c {2 * MUCH} > /dev/null; echo all"
FORKS = "for i in 1 2 3 4 5 6 7 8; do sleep 5 > /dev/null & done; echo all"
SPINS = "while :; do :; done"
# A device that every account may read.
DEVICE = "/dev/full"
READS = f"head -c 1 {DEVICE} > /dev/null && echo all"
ROOT = Path(__file__).parents[3]
OPENS = """
import sys
sys.path.insert(0, sys.argv[1])
from scheduler.runner.confine import landlock
landlock.close([sys.argv[2]], [], [])
try:
    open(sys.argv[3])
except PermissionError:
    print("closed")
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A limit of jobs. problem: what did not happen; "" = the limit works."""

    name: str
    problem: str = ""


def trials(place: CgroupParent) -> Iterator[Trial]:
    """Try each limit that jobs on this machine have; each takes at most some seconds."""
    for name, is_here, attempt in TRIALS:
        if not is_here(place):
            continue
        try:
            yield Trial(name, attempt(place))
        except (OSError, subprocess.SubprocessError) as error:
            yield Trial(name, str(getattr(error, "strerror", None) or error))


def _memory_of_job(place: CgroupParent) -> str:
    with _held_process(place, TAKES) as (process, cgroup, release):
        cgroup.limit(memory_bytes=LITTLE)
        release()
        process.communicate(timeout=PATIENCE_S)
        is_ended = cgroup.ran_out_of_memory()
    return "" if is_ended else "the kernel did not end a process above the limit"


def _memory_of_process(place: CgroupParent) -> str:
    """The guard of the runner reads the memory of the cgroup, and then that of the process."""
    with _held_process(place, HOLDS, ends_input=False) as (process, cgroup, release):
        release()
        _streams(process)[1].readline()
        known = process_tree.process_info(process.pid)
        running = [*process_tree.descendants(process.pid), *([known] if known else [])]
        used = used_bytes(cgroup.folders, lambda: running)
        if used < MUCH:
            return f"the cgroup reports {used // MIB} MiB for a process of {MUCH // MIB} MiB"
        spec = Spec(
            job_id=0, attempt=0, nonce="", argv=[], cwd="/", env={}, account="",
            yield_file="", grace_s=0,
        )  # fmt: skip
        with Path(os.devnull).open("ab") as log:
            guard = MemoryGuard(spec, Bounds(process_memory_bytes=LITTLE), log.fileno())
            ends = time.monotonic() + PATIENCE_S
            while not guard.is_over and time.monotonic() < ends:
                guard.beat(cgroup.folders, lambda: running)
                time.sleep(0.05)
    return "" if guard.is_over else "the guard did not notice a process above the limit"


def _processes(place: CgroupParent) -> str:
    with _held_process(place, FORKS) as (process, cgroup, release):
        cgroup.limit(pids=4)
        release()
        said, _ = process.communicate(timeout=PATIENCE_S)
    return "" if b"all" not in said else "more processes were started than the limit allows"


def _cpu(place: CgroupParent) -> str:
    with _held_process(place, SPINS) as (process, cgroup, release):
        cgroup.limit(cpus=CPUS)
        release()
        time.sleep(SPIN_S)
        cgroup.kill()
        process.kill()
        used = os.wait4(process.pid, 0)[2]
        process.returncode = 0
    cpu_s = used.ru_utime + used.ru_stime
    # One period more than the quota may be used, and the shell needs some time to start.
    if cpu_s <= SPIN_S * CPUS + 0.2:
        return ""
    return f"a process with {CPUS:g} CPUs used {cpu_s:.1f} s of {SPIN_S:g} s"


def _log(_place: CgroupParent) -> str:
    limit = MIB
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("ab+") as file:
        guard = LogLimit(file.fileno(), limit)
        os.write(file.fileno(), bytes(2 * limit))
        guard.finish()
        size = os.fstat(file.fileno()).st_size
    return "" if size < 2 * limit else f"a log of {size} bytes was not cut to {limit} bytes"


def _devices(place: CgroupParent) -> str:
    with _held_process(place, READS) as (process, cgroup, release):
        device = Path(DEVICE).stat().st_rdev
        hide(cgroup, [(os.major(device), os.minor(device))])
        release()
        said, _ = process.communicate(timeout=PATIENCE_S)
    return "" if b"all" not in said else "a process opened a device file that was closed to it"


def _folders(_place: CgroupParent) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "secret")
        path.write_text("all")
        words = [sys.executable, "-c", OPENS, str(ROOT), folder, str(path)]
        done = subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False)
    return "" if b"closed" in done.stdout else "a process read a file in a folder closed to it"


TRIALS: tuple[tuple[str, Callable[[CgroupParent], bool], Callable[[CgroupParent], str]], ...] = (
    ("memory of a job", lambda place: "memory" in place.can, _memory_of_job),
    ("memory of a process", lambda place: True, _memory_of_process),
    ("number of processes", lambda place: "pids" in place.can, _processes),
    ("CPUs", lambda place: "cpu" in place.can, _cpu),
    ("size of a log", lambda place: True, _log),
    ("device files", lambda place: bool({"bpf", "devices"} & place.can), _devices),
    ("closed folders", lambda place: landlock.version() > 0, _folders),
)


@contextmanager
def _held_process(
    place: CgroupParent, script: str, *, ends_input: bool = True
) -> Iterator[tuple[subprocess.Popen[bytes], Cgroup, Callable[[], None]]]:
    """A shell in a cgroup of its own that runs the script once the third value is called."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"read go; {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    cgroup = Cgroup(())

    def release() -> None:
        stdin, _ = _streams(process)
        stdin.write(b"go\n")
        stdin.flush()
        if ends_input:
            stdin.close()
            process.stdin = None

    try:
        if place.kind:
            name = f"trial-{os.getpid()}-{process.pid}"
            cgroup = enter(place.folders, place.scope, name, process.pid)
        yield process, cgroup, release
    finally:
        cgroup.kill()
        process_tree.signal_all(process_tree.descendants(process.pid), 9)
        with process:
            process.kill()
        cgroup.remove()


def _streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise OSError(0, "the process has no pipes")
    return process.stdin, process.stdout
