"""Edge: what an attempt's folder and /proc show of it, and how to reach its runner."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from monitor.runtime.probes.process_identity import boot_id, is_alive
from scheduler.runner import files, process_tree
from scheduler.runner.confine import confinement
from scheduler.runner.files import YieldRequestFile
from scheduler.runner.spec import Claimed, Result, Spec, Started


class _Reported(Protocol):
    @property
    def nonce(self) -> str: ...


R = TypeVar("R", bound=_Reported)


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The state of an attempt. None = the file does not exist.

    runner: pid and start ticks of the process that acts as its runner now; None = it is dead.
    """

    claimed: Claimed | None
    runner_alive: bool
    started: Started | None
    result: Result | None
    runner: tuple[int, int] | None = None


def read_attempt(folder: Path, nonce: str) -> AttemptFiles:
    """Read the runner's state before the result, because a dead runner writes no result."""
    claimed = read_claim(folder, nonce)
    runner = _living_runner(claimed)
    started = _read(folder / files.STARTED, nonce, Started.checked)
    if runner is None and started is not None:
        runner = _living_guardian(started)
        if runner is None:
            # A guardian whose job was never let go removes the file before it ends.
            started = _read(folder / files.STARTED, nonce, Started.checked)
    return AttemptFiles(
        claimed=claimed,
        runner_alive=runner is not None,
        started=started,
        result=_read(folder / files.RESULT, nonce, Result.checked),
        runner=runner,
    )


def read_claim(folder: Path, nonce: str) -> Claimed | None:
    """None: the attempt has not been claimed."""
    return _read(folder / files.CLAIMED, nonce, Claimed.checked)


def _living_runner(claimed: Claimed | None) -> tuple[int, int] | None:
    if claimed is None or not claimed.runner:
        return None
    alive = is_alive(claimed.pid, claimed.start_ticks, claimed.boot_id)
    return (claimed.pid, claimed.start_ticks) if alive else None


def _living_guardian(started: Started) -> tuple[int, int] | None:
    """The guardian, which acts as the runner once that has died."""
    guardian = started.guardian_pid, started.guardian_start_ticks
    return guardian if started.guardian_pid and is_alive(*guardian, started.boot_id) else None


def is_running(folder: Path, pid: int | None, start_ticks: int | None, boot: str) -> bool:
    """Whether this runner lives and has not reported an end: all that changes while a job runs."""
    return is_alive(pid, start_ticks, boot) and not (folder / files.RESULT).exists()


def own_claim(nonce: str, *, runner: bool, engine_ref: str = "") -> Claimed:
    ticks = process_tree.start_ticks_of(os.getpid()) or 0
    return Claimed(
        nonce=nonce,
        runner=runner,
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        hears_yield=runner,
        engine_ref=engine_ref,
    )


def give_up(folder: Path, nonce: str) -> bool:
    """Claim the attempt so that no runner can; False when one was faster."""
    files.make_folder(folder)
    is_mine = files.claim(folder, own_claim(nonce, runner=False).to_json())
    if is_mine:
        files.drop_environment(folder)
    return is_mine


def ask_to_stop(files: AttemptFiles) -> bool:
    """Tell the runner to end its job: SIGTERM, then, after its grace, SIGKILL."""
    return files.runner is not None and process_tree.signal_one(*files.runner, signal.SIGTERM)


def end_orphans(started: Started, number: int | None) -> int:
    """Signal the processes of a job without a runner; None = only count. Returns their number."""
    left = process_tree.orphans(started.pid, started.start_ticks, started.nonce)
    if number is not None:
        process_tree.signal_all(left, number)
    if number == signal.SIGTERM:
        process_tree.signal_all(left, signal.SIGCONT)
    return len(left)


def end_confined(folder: Path) -> None:
    """End what is left of such a job in its cgroup, whatever it calls itself by now."""
    body = files.read_json(folder / files.SPEC)
    if body is not None:
        confinement.end_remaining(Spec.from_json(body))


def _read(path: Path, nonce: str, make: Callable[[dict[str, Any]], R | None]) -> R | None:
    """None: the file is missing or malformed, or of an attempt that had this number before."""
    body = files.read_json(path)
    if body is None or body.get("nonce") != nonce:
        return None
    return make(body)


REQUEST_FILE = "yield.json"
YIELD_SIGNAL = signal.SIGUSR1
# To a runner that is too old to know of withdrawing it is a deadline that never comes.
NEVER_S = 10 * 365 * 86_400.0


def write_request(folder: Path, look: AttemptFiles, nonce: str, request: YieldRequestFile) -> bool:
    """False: the runner has ended, or its version does not handle yields. Then signal_request."""
    runner = look.claimed
    if runner is None or not runner.hears_yield or look.runner is None:
        return False
    body = {"nonce": nonce, **request.for_job}
    if files.read_json(folder / REQUEST_FILE) != body:
        files.write_json(folder / REQUEST_FILE, body)
    return True


def signal_request(look: AttemptFiles) -> bool:
    """The runner reads the request that was written or withdrawn; False: it has ended."""
    return look.runner is not None and process_tree.signal_one(*look.runner, YIELD_SIGNAL)


def request_yield(folder: Path, look: AttemptFiles, nonce: str, request: YieldRequestFile) -> bool:
    """Write the request and signal the runner; False: it cannot hear it."""
    return write_request(folder, look, nonce, request) and signal_request(look)


def withdraw_request(folder: Path, look: AttemptFiles, nonce: str) -> bool:
    """Withdraw the request in yield.json and signal the runner; False: one of them is missing."""
    body = files.read_json(folder / REQUEST_FILE)
    if body is None or body.get("nonce") != nonce or look.runner is None:
        return False
    if not body.get("withdrawn"):
        body |= {"withdrawn": True, "deadline": body["deadline"] + NEVER_S}
        files.write_json(folder / REQUEST_FILE, body)
    return signal_request(look)


def read(folder: Path, nonce: str) -> YieldRequestFile | None:
    body = files.read_json(folder / REQUEST_FILE)
    if body is None or body.get("nonce") != nonce:
        return None
    return YieldRequestFile(
        str(body["reason"]), float(body["deadline"]), bool(body.get("withdrawn"))
    )


def clear_request(folder: Path, spec: Spec) -> None:
    """Notify the job that it may stay, by removing its file."""
    if spec.yield_file:
        Path(spec.yield_file).unlink(missing_ok=True)
    (folder / REQUEST_FILE).unlink(missing_ok=True)
