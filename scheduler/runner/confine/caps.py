"""Edge: niceness, CPU and memory caps of one process, the caps by cgroup v2, and their end.

A cgroup that holds nothing but the process and its descendants is capped in place. Else the
process is moved into one of ours, and back; out of a container it is never moved.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.runner import process_tree

ROOT = Path("/sys/fs/cgroup")
OURS = "gpucoord.caps"
PERIOD = 100_000
FILES = ("cpu.max", "memory.high")
NO_CGROUPS = "This machine has no cgroup v2 that gpucoord may write to."
NOT_ALONE = "Others are in its cgroup, and out of a container nothing is moved."


def read_caps(pid: int, root: Path = ROOT) -> dict[str, object] | None:
    """Its cgroup and the caps there; None: no cgroup v2, or it has ended."""
    where = _where(pid)
    if where is None or not (root / "cgroup.controllers").exists():
        return None
    group = _at(root, where)
    caps = {name: _read(group / name) for name in FILES}
    return {"cgroup": where, "alone": _is_alone(pid, group), "caps": caps}


def cap(
    key: str,
    pid: int,
    before: dict[str, object] | None,
    *,
    cores: float,
    memory_bytes: int | None,
    in_container: bool,
    root: Path = ROOT,
) -> str | None:
    """Set the caps; the problem when that could not be done."""
    if not before:
        return NO_CGROUPS
    wanted = {"cpu.max": f"{int(cores * PERIOD)} {PERIOD}"}
    if memory_bytes:
        wanted["memory.high"] = str(memory_bytes)
    try:
        if before.get("alone"):
            group = _at(root, str(before["cgroup"]))
        elif in_container:
            return NOT_ALONE
        else:
            group = _own_group(root, key)
        for name, value in wanted.items():
            (group / name).write_text(value)
        if not before.get("alone"):
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        return f"The caps could not be set: {error.strerror}."
    return None


def uncap(key: str, before: dict[str, object], root: Path = ROOT) -> None:
    """As it was; does no harm when it was never capped."""
    origin = _at(root, str(before.get("cgroup", "/")))
    caps = before.get("caps")
    if before.get("alone"):
        for name, value in caps.items() if isinstance(caps, dict) else ():
            with suppress(OSError):
                if value is not None and (origin / name).exists():
                    (origin / name).write_text(str(value))
        return
    group = root / OURS / key
    for member in (_read(group / "cgroup.procs") or "").split():
        with suppress(OSError):
            (_nearest(origin, root) / "cgroup.procs").write_text(member)
    with suppress(OSError):
        group.rmdir()


def _own_group(root: Path, key: str) -> Path:
    group = root / OURS / key
    group.mkdir(parents=True, exist_ok=True)
    for folder in (root, root / OURS):
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+cpu +memory")
    return group


def _nearest(folder: Path, root: Path) -> Path:
    """Its previous cgroup, or the closest ancestor that still exists."""
    while folder != root and not (folder / "cgroup.procs").exists():
        folder = folder.parent
    return folder


def _is_alone(pid: int, group: Path) -> bool:
    members = {int(text) for text in (_read(group / "cgroup.procs") or "").split()}
    own = {pid} | {relative.pid for relative in process_tree.descendants(pid)}
    return bool(members) and members <= own


def _where(pid: int) -> str | None:
    for line in (_read(Path(f"/proc/{pid}/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _at(root: Path, where: str) -> Path:
    return root / where.lstrip("/")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


# A small detached process that stops and continues another one in a duty cycle.
#
# The permit is a file with a deadline that gpucoord renews every few seconds; without it the target
# continues at once. The pacer and its keeper watch each other: if one is killed, the other lets the
# target continue. Standard library only.

LOOK_S = 0.5


def grant_permit(path: Path, seconds: float) -> None:
    """Extend the permit by this time from now, by the clock that all processes share."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{time.monotonic() + seconds:.3f}")
    draft.replace(path)


def is_permitted(path: str) -> bool:
    with suppress(OSError, ValueError):
        return time.monotonic() < float(Path(path).read_text())
    return False


def serve(arguments: Sequence[str]) -> None:
    """PERMIT PID START_TICKS RUN_S STOP_S: the keeper; it forks the pacer."""
    os.chdir("/")
    path, pid, ticks = arguments[0], int(arguments[1]), int(arguments[2])
    watched, lifeline = os.pipe()
    pacer = os.fork()
    if pacer == 0:
        os.close(lifeline)
        try:
            _pace(path, pid, ticks, float(arguments[3]), float(arguments[4]), watched)
        finally:
            os._exit(0)
    os.close(watched)
    os.waitpid(pacer, 0)
    process_tree.signal_one(pid, ticks, signal.SIGCONT)


def _pace(path: str, pid: int, ticks: int, run_s: float, stop_s: float, keeper: int) -> None:
    try:
        target = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    # The descriptor refers to one process, so the identity is compared after it was opened.
    if process_tree.start_ticks_of(pid) != ticks:
        return
    ends = select.poll()
    ends.register(keeper, select.POLLIN)
    ends.register(target, select.POLLIN)

    def rests(seconds: float) -> bool:
        """Wait; False: the permit, the keeper or the target is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if ends.poll(min(left, LOOK_S) * 1000) or not is_permitted(path):
                return False
        return is_permitted(path)

    goes_on = rests(run_s)
    while goes_on:
        # A process that its owner stopped stays stopped.
        if not _is_stopped(pid):
            try:
                signal.pidfd_send_signal(target, signal.SIGSTOP)
                goes_on = rests(stop_s)
            finally:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(target, signal.SIGCONT)
        goes_on = goes_on and rests(run_s)


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] == b"T"
    return False


# Edge: CPU and disk priorities of a process, thread by thread, as the kernel keeps them.


# ioprio_set, ioprio_get
CALLS = {"x86_64": (251, 252), "aarch64": (30, 31), "ppc64le": (273, 274)}
OF_PROCESS = 1
IDLE = 3 << 13
CAP_SYS_NICE = 23
MOST_ODD = 200


def may_restore() -> bool:
    """Whether a nice value that was raised can be lowered again: that needs a privilege."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def read_priorities(pid: int) -> dict[str, object] | None:
    """Input of restore(): the first thread's values, and those of threads that differ."""
    priorities = {tid: (_nice(tid), _io(tid)) for tid in _threads(pid)}
    if pid not in priorities:
        return None
    usual = priorities[pid]
    odd = [[tid, *values] for tid, values in priorities.items() if values != usual]
    return {"nice": usual[0], "io": usual[1], "odd": odd[:MOST_ODD]}


def lower(pid: int, nice: int) -> None:
    """Each thread at most this eager for the CPU, and last at the disk."""
    for tid in _threads(pid):
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, tid, max(nice, os.getpriority(os.PRIO_PROCESS, tid)))
            set_io(tid, IDLE)


def restore(pid: int, before: dict[str, object]) -> None:
    """As it was; threads that were born meanwhile like the first."""
    odd = before.get("odd")
    others = {row[0]: row[1:] for row in odd} if isinstance(odd, list) else {}
    for tid in _threads(pid):
        nice, io = others.get(tid, (before.get("nice"), before.get("io")))
        with suppress(ProcessLookupError):
            if isinstance(nice, int):
                os.setpriority(os.PRIO_PROCESS, tid, nice)
            if isinstance(io, int):
                set_io(tid, io)


def _threads(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            yield int(name)


def _nice(tid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpriority(os.PRIO_PROCESS, tid)
    return None


def _io(tid: int) -> int | None:
    calls = CALLS.get(platform.machine())
    value = _syscall(calls[1], OF_PROCESS, tid) if calls else -1
    return value if value >= 0 else None


def set_io(tid: int, value: int) -> None:
    """As in ioprio_set: 0 = derived from the nice value, IDLE = only if the disk is idle."""
    if calls := CALLS.get(platform.machine()):
        _syscall(calls[0], OF_PROCESS, tid, value)


def _syscall(*arguments: int) -> int:
    return int(ctypes.CDLL(None).syscall(*(ctypes.c_long(a) for a in arguments)))


# Edge: lower the CPU and disk priority of a job's processes, and restore it.
#
# Only descendants of the runner are changed, identified by pid and start ticks. The runner keeps
# its nice value, and that value is restored. Processes with a higher nice value are left alone.


# As the niceness says.
IO_NORMAL = 0


def can_restore() -> bool:
    """Whether this account may take niceness back; tried on a process of its own."""
    with subprocess.Popen(["/bin/sleep", "5"]) as process:
        try:
            base = os.getpriority(os.PRIO_PROCESS, process.pid)
            os.setpriority(os.PRIO_PROCESS, process.pid, min(19, base + 1))
            os.setpriority(os.PRIO_PROCESS, process.pid, base)
        except OSError:
            return False
        finally:
            process.kill()
    return True


def raise_niceness(runner: int, start_ticks: int, nice: int, *, idle_io: bool) -> int:
    """Make all that the runner started nicer by `nice`; how many were changed."""
    return _change(runner, start_ticks, 0, nice, IDLE if idle_io else None)


def restore_niceness(runner: int, start_ticks: int, nice: int) -> int:
    """Restore the processes that `step_back` changed."""
    return _change(runner, start_ticks, nice, 0, IO_NORMAL)


def _change(runner: int, start_ticks: int, from_: int, to: int, io: int | None) -> int:
    if process_tree.start_ticks_of(runner) != start_ticks:
        return 0
    changed = 0
    with suppress(OSError):
        base = os.getpriority(os.PRIO_PROCESS, runner)
        old, new = (min(19, base + step) for step in (from_, to))
        for process in process_tree.descendants(runner):
            changed += _set(process, old, new, io)
    return changed


def _set(process: process_tree.ProcessInfo, old: int, new: int, io: int | None) -> bool:
    """Every thread has a niceness of its own."""
    changed = False
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process.pid}/task"):  # noqa: PTH208
            if process_tree.start_ticks_of(process.pid) != process.start_ticks:
                return changed
            with suppress(OSError):
                if os.getpriority(os.PRIO_PROCESS, int(name)) == old:
                    os.setpriority(os.PRIO_PROCESS, int(name), new)
                    if io is not None:
                        set_io(int(name), io)
                    changed = True
    return changed
