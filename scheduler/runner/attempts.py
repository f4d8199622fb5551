"""Edge: what an attempt's folder and /proc show of it, and how to reach its runner."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from monitor.identity import boot_id, is_alive
from scheduler.runner import confinement, family, files
from scheduler.runner.spec import Claimed, Result, Spec, Started


class _Reported(Protocol):
    @property
    def nonce(self) -> str: ...


R = TypeVar("R", bound=_Reported)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an attempt. None = that file is not there."""

    claimed: Claimed | None
    runner_alive: bool
    started: Started | None
    result: Result | None


def look(folder: Path, nonce: str) -> Look:
    """Look in the order that makes the answer true: a dead runner writes no result any more."""
    claimed = _read(folder / files.CLAIMED, nonce, Claimed.from_json)
    alive = bool(
        claimed and claimed.runner and is_alive(claimed.pid, claimed.start_ticks, claimed.boot_id)
    )
    return Look(
        claimed=claimed,
        runner_alive=alive,
        started=_read(folder / files.STARTED, nonce, Started.from_json),
        result=_read(folder / files.RESULT, nonce, Result.from_json),
    )


def goes_on(folder: Path, pid: int | None, start_ticks: int | None, boot: str) -> bool:
    """Whether this runner lives and has not reported an end: all that changes while a job runs."""
    return is_alive(pid, start_ticks, boot) and not (folder / files.RESULT).exists()


def claim_by_me(nonce: str, *, runner: bool) -> Claimed:
    ticks = family.start_ticks_of(os.getpid()) or 0
    return Claimed(
        nonce=nonce,
        runner=runner,
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        hears_yield=runner,
    )


def give_up(folder: Path, nonce: str) -> bool:
    """Claim the attempt so that no runner can; False when one was faster."""
    files.make_folder(folder)
    return files.claim(folder, claim_by_me(nonce, runner=False).to_json())


def ask_to_stop(seen: Look) -> bool:
    """Tell the runner to end its job: SIGTERM, then, after its grace, SIGKILL."""
    runner = seen.claimed
    return runner is not None and family.signal_one(runner.pid, runner.start_ticks, signal.SIGTERM)


def end_orphans(started: Started, number: int | None) -> int:
    """Signal (None: only count) what is left of a job without a runner; how many that was."""
    left = family.orphans(started.pid, started.start_ticks, started.nonce)
    if number is not None:
        family.signal_all(left, number)
    if number == signal.SIGTERM:
        family.signal_all(left, signal.SIGCONT)
    return len(left)


def end_confined(folder: Path) -> None:
    """End what is left of such a job in its cgroup, whatever it calls itself by now."""
    body = files.read_json(folder / files.SPEC)
    if body is not None:
        confinement.end(Spec.from_json(body))


def _read(path: Path, nonce: str, make: Callable[[dict[str, Any]], R]) -> R | None:
    """What is of another attempt that had the same number, before a power cut, does not count."""
    body = files.read_json(path)
    if body is None or body.get("nonce") != nonce:
        return None
    return make(body)
