"""Edge: gpucoord's own runner as an engine.

The planner has decided place and time before a task is submitted, so this engine decides nothing.
The files of an attempt are its state; nothing here must outlive a step but the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from scheduler.execution.engines.facts import (
    Capabilities,
    EngineName,
    NodeReport,
    SubmitAnswer,
    SubmitResult,
    TaskList,
    TaskReport,
    TaskState,
    Ticket,
)
from scheduler.runner import attempt_files
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.launch import RunnerStarter

# The word of a task whose recorded runner lives and has reported no end.
UNCHANGED = "unchanged"
NO_RUNNER = "No runner of it listens."
NO_HOLD = "gpucoord itself decides when its jobs start, so there is nothing to hold."
SEPARATOR = "|"


class LocalRef(Struct, frozen=True):
    """The name of a task: its attempt and, once that is recorded, its runner."""

    folder: Path
    nonce: str
    runner: tuple[int | None, int | None] = (None, None)
    boot_id: str = ""

    def __str__(self) -> str:
        words = [self.nonce, *self.runner, self.boot_id, self.folder]
        return SEPARATOR.join("" if word is None else str(word) for word in words)

    @classmethod
    def parse(cls, text: str) -> LocalRef:
        """Raises ValueError."""
        nonce, pid, ticks, boot_id, folder = text.split(SEPARATOR, 4)
        runner = (int(pid), int(ticks)) if pid and ticks else (None, None)
        return cls(Path(folder), nonce, runner, boot_id)


class LocalEngine:
    """Use and close it in the process that created it."""

    name = EngineName.LOCAL

    def __init__(self, host: str) -> None:
        self._host = host
        self._starter = RunnerStarter()
        # Read by the newest look.
        self._files: dict[str, AttemptFiles] = {}

    def open(self) -> None:
        self._starter.open()

    def close(self) -> None:
        self._starter.close()

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def submit(self, ticket: Ticket) -> SubmitAnswer:
        """Request a runner. Only one can claim the attempt, so requesting twice is harmless."""
        ref = str(LocalRef(Path(ticket.folder), ticket.nonce))
        if self._starter.spawn(Path(ticket.folder)):
            return SubmitAnswer(SubmitResult.ACCEPTED, ref)
        return SubmitAnswer(SubmitResult.UNCERTAIN, ref, "The pool of runners takes no orders.")

    def look(self, refs: Sequence[str]) -> TaskList:
        """An unchanged task is not read further."""
        self._files, reports, unread = {}, [], 0
        for ref in refs:
            try:
                report = self._report(ref)
            except Exception:
                # The caller reads its files again, and meets the fault there.
                unread += 1
            else:
                reports += [] if report is None else [report]
        return TaskList(reports, unread=unread)

    def files_of(self, ref: str) -> AttemptFiles:
        """The files of a task, as the newest look has read them, else as they are now."""
        if ref not in self._files:
            task = LocalRef.parse(ref)
            self._files[ref] = attempt_files.read_attempt(task.folder, task.nonce)
        return self._files[ref]

    def _report(self, ref: str) -> TaskReport | None:
        """None: nothing says that a runner has taken it, or how it ended."""
        task = LocalRef.parse(ref)
        if attempt_files.is_running(task.folder, *task.runner, task.boot_id):
            return TaskReport(
                ref=ref, state=TaskState.RUNNING, word=UNCHANGED, nonce=task.nonce, node=self._host
            )
        files = self.files_of(ref)
        if files.result is not None or (files.claimed and not files.claimed.runner):
            state = TaskState.ENDED
        elif not files.runner_alive:
            return None
        else:
            state = TaskState.WAITING if files.started is None else TaskState.RUNNING
        return TaskReport(ref=ref, state=state, nonce=task.nonce, node=self._host)

    def stop(self, ref: str, uid: int | None = None) -> str:
        """Its runner ends the job: SIGTERM, then, after its grace, SIGKILL."""
        del uid
        task = LocalRef.parse(ref)
        attempt_files.ask_to_stop(attempt_files.read_attempt(task.folder, task.nonce))
        return ""

    def ask_to_yield(self, ref: str) -> str:
        """The request is in the folder of the attempt already."""
        task = LocalRef.parse(ref)
        files = attempt_files.read_attempt(task.folder, task.nonce)
        return "" if attempt_files.signal_request(files) else NO_RUNNER

    def give_up(self, ticket: Ticket) -> bool:
        return attempt_files.give_up(Path(ticket.folder), ticket.nonce)

    def hold(self, ref: str) -> str:
        del ref
        return NO_HOLD

    def release(self, ref: str) -> str:
        del ref
        return NO_HOLD

    def nodes(self) -> list[NodeReport]:
        return [NodeReport(name=self._host)]
