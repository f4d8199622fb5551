"""Edge: a request to yield, on its way from the executor through the runner to the job.

    yield.json   in the attempt's folder: why and until when, for the runner, written before SIGUSR1
    N.yield      in the job's own folder: the same for the job; its path is in GPUCOORD_YIELD_FILE

Whoever is restarted meanwhile finds the file and goes on: asking again changes nothing. A request
that is withdrawn says so in yield.json, until the runner has taken both files away.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.runner import family, files
from scheduler.runner.attempts import Look
from scheduler.runner.spec import Spec

REQUEST = "yield.json"
ASKED = signal.SIGUSR1
READABLE = 0o644
# To a runner that is too old to know of withdrawing it is a deadline that never comes.
NEVER_S = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Request:
    """Why a job is to leave its GPUs, and when it is killed (seconds since 1970)."""

    reason: str
    deadline: float
    withdrawn: bool = False

    @property
    def for_job(self) -> dict[str, Any]:
        return {"reason": self.reason, "deadline": self.deadline}


def ask(folder: Path, look: Look, nonce: str, request: Request) -> bool:
    """Tell the runner of this attempt; False when it is gone, or too old to know of yielding."""
    runner = look.claimed
    if runner is None or not runner.hears_yield:
        return False
    body = {"nonce": nonce, **request.for_job}
    if files.read_json(folder / REQUEST) != body:
        files.write_json(folder / REQUEST, body)
    return family.signal_one(runner.pid, runner.start_ticks, ASKED)


def withdraw(folder: Path, look: Look, nonce: str) -> bool:
    """Tell the runner that its job may stay; False when it knows, or was never told to leave."""
    body, runner = files.read_json(folder / REQUEST), look.claimed
    if body is None or body.get("nonce") != nonce or runner is None:
        return False
    if not body.get("withdrawn"):
        body |= {"withdrawn": True, "deadline": body["deadline"] + NEVER_S}
        files.write_json(folder / REQUEST, body)
    return family.signal_one(runner.pid, runner.start_ticks, ASKED)


def read(folder: Path, nonce: str) -> Request | None:
    body = files.read_json(folder / REQUEST)
    if body is None or body.get("nonce") != nonce:
        return None
    return Request(str(body["reason"]), float(body["deadline"]), bool(body.get("withdrawn")))


def pass_on(request: Request, spec: Spec) -> None:
    """Let the job know: the file first, then its signal, to those who listen for that."""
    path = Path(spec.yield_file)
    if not spec.yield_file or files.read_json(path) == request.for_job:
        return
    _write_readable(path, request.for_job)
    if spec.yield_signal:
        number = signal.Signals[spec.yield_signal]
        for process in family.descendants(os.getpid()):
            if family.listens(process.pid, number):
                family.signal_one(process.pid, process.start_ticks, number)


def take_back(folder: Path, spec: Spec) -> None:
    """The job may stay: it is told so by the absence of its file."""
    if spec.yield_file:
        Path(spec.yield_file).unlink(missing_ok=True)
    (folder / REQUEST).unlink(missing_ok=True)


def _write_readable(path: Path, body: dict[str, Any]) -> None:
    """The job may run as another account; it sees the whole file or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(body, file)
        os.fchmod(file.fileno(), READABLE)
    part.replace(path)
