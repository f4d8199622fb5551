"""Edge: lower the CPU and disk priority of a job's processes, and restore it.

Only descendants of the runner are changed, identified by pid and start ticks. The runner keeps its
nice value, and that value is restored. Processes with a higher nice value are left alone.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from scheduler.runner import process_tree
from scheduler.runner.enforce import caps

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
    return _change(runner, start_ticks, 0, nice, caps.IDLE if idle_io else None)


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
                        caps.set_io(int(name), io)
                    changed = True
    return changed
