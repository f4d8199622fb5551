"""Edge: the file that tells a job that it is to leave, or to save its work."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.runner import files, process_tree
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Spec

READABLE = 0o644


@dataclass(frozen=True, slots=True)
class YieldRequestFile:
    """Why a job is to leave its GPUs, and when it is killed (seconds since 1970)."""

    reason: str
    deadline: float
    withdrawn: bool = False

    @property
    def for_job(self) -> dict[str, Any]:
        return {"reason": self.reason, "deadline": self.deadline}


def notify_job(
    request: YieldRequestFile, spec: Spec, processes: Callable[[], list[ProcessInfo]]
) -> None:
    """Notify the job: write the file, then send the declared signal to processes that handle it."""
    path = Path(spec.yield_file)
    if not spec.yield_file or files.read_json(path) == request.for_job:
        return
    # The job may run as another account; it sees the whole file or none.
    files.write_json(path, request.for_job, READABLE)
    if spec.yield_signal:
        number = signal.Signals[spec.yield_signal]
        for process in processes():
            if process_tree.handles_signal(process.pid, number):
                process_tree.signal_one(process.pid, process.start_ticks, number)
