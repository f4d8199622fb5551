"""Edge: give a job's processes less of CPU and disk than others, and give it back.

Only processes below the runner are touched, each known by pid and start ticks; the runner keeps its
own niceness, and that is what they get back. Who made itself nicer than we would, is left alone.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from scheduler.runner import family, priorities

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


def step_back(runner: int, start_ticks: int, nice: int, *, idle_io: bool) -> int:
    """Make all that the runner started nicer by `nice`; how many were changed."""
    return _change(runner, start_ticks, 0, nice, priorities.IDLE if idle_io else None)


def step_forward(runner: int, start_ticks: int, nice: int) -> int:
    """Give those back what they had whom `step_back` had changed."""
    return _change(runner, start_ticks, nice, 0, IO_NORMAL)


def _change(runner: int, start_ticks: int, from_: int, to: int, io: int | None) -> int:
    if family.start_ticks_of(runner) != start_ticks:
        return 0
    changed = 0
    with suppress(OSError):
        base = os.getpriority(os.PRIO_PROCESS, runner)
        old, new = (min(19, base + step) for step in (from_, to))
        for process in family.descendants(runner):
            changed += _set(process, old, new, io)
    return changed


def _set(process: family.Relative, old: int, new: int, io: int | None) -> bool:
    """Every thread has a niceness of its own."""
    changed = False
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process.pid}/task"):  # noqa: PTH208
            if family.start_ticks_of(process.pid) != process.start_ticks:
                return changed
            with suppress(OSError):
                if os.getpriority(os.PRIO_PROCESS, int(name)) == old:
                    os.setpriority(os.PRIO_PROCESS, int(name), new)
                    if io is not None:
                        priorities.set_io(int(name), io)
                    changed = True
    return changed
