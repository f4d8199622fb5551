"""Edge: the file that tells a job that it is to leave, or to save its work."""

from __future__ import annotations

import json
import os
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
    _write_readable(path, request.for_job)
    if spec.yield_signal:
        number = signal.Signals[spec.yield_signal]
        for process in processes():
            if process_tree.handles_signal(process.pid, number):
                process_tree.signal_one(process.pid, process.start_ticks, number)


def _write_readable(path: Path, body: dict[str, Any]) -> None:
    """The job may run as another account; it sees the whole file or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(body, file)
        os.fchmod(file.fileno(), READABLE)
    part.replace(path)
