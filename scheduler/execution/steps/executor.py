"""Edge: gpucoord's own runner as an engine.

The planner has decided place and time before a task is submitted, so this engine decides nothing.
The files of an attempt are its state; nothing here must outlive a step but the pool.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from django.db.models import QuerySet
from msgspec import Struct
from msgspec.structs import replace

from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.runtime.policy import Guard
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.rows.database import MARK, PreparedQuery
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
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
from scheduler.execution.policy import Action, AttemptState, Claimant, next_action
from scheduler.execution.steps import outcomes
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import LARGEST_RESULT, JobState
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt
from scheduler.runner import attempt_files, files
from scheduler.runner.accounts import MissingAccount, UnknownAccount
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.files import YieldRequestFile
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


# Start, follow, stop and end the placed jobs of this host, by the local engine.
#
# The action for an attempt follows from its folder and /proc alone, so a new executor continues
# where a killed one stopped.


START_RETRY_S = 2.0
TAIL_BYTES = 16_384
ENDING_ORPHANS = "Its runner and its guardian were killed; its remaining processes are being ended."
ABANDONED = (
    "Its runner and its guardian were killed, so the exit code of the job is unknown."
    " Its remaining processes were ended."
)
RESTARTED = "The machine restarted before the job had ended."
FAULT_KINDS = ("JOB_STEP_FAILED", "JOB_START_FAILED")
STEP_KIND, START_KIND = FAULT_KINDS
Change = Callable[[], object]
# Actions after which the job may run again.
ENDINGS = frozenset({Action.END, Action.ABANDONED, Action.RESTARTED})


class JobAction(Struct, frozen=True):
    """The action taken for an attempt, and the change to store for it (None = nothing)."""

    attempt: Attempt
    action: Action
    change: Change | None


class AttemptView(Struct, frozen=True):
    """The row of an open attempt, its files, and the action that follows."""

    attempt: Attempt
    files: AttemptFiles
    action: Action


class Executor:
    """`step(now)` follows every open attempt of `host`; `start` requests runners immediately."""

    def __init__(self, guard: Guard, host: str, specs: SpecWriter) -> None:
        self._guard = guard
        self._host = host
        self._specs = specs
        self._engine = LocalEngine(host)
        self._isolation = ItemIsolation(host, "executor", guard)
        self._open_attempts = PreparedQuery(lambda _: _open_on(host), MARK)
        # Saves work only: requesting a runner twice is harmless.
        self._requested_at: dict[int, datetime] = {}

    def open(self) -> None:
        self._engine.open()

    def close(self) -> None:
        self._engine.close()

    def step(self, now: datetime) -> dict[int, Action]:
        """Act on each open attempt; returns the actions by job."""
        # Sorted here: with ORDER BY the database would read all attempts.
        still_open = sorted(self._open_attempts.rows(), key=lambda attempt: attempt.pk)
        self._requested_at = {
            attempt.pk: self._requested_at[attempt.pk]
            for attempt in still_open
            if attempt.pk in self._requested_at
        }
        reports = self._look(still_open)
        followed = self._isolation.each(
            still_open, _name, lambda attempt: self._follow(attempt, reports, now), now, STEP_KIND
        )
        due = [done for _, done in followed if done is not None]
        changes = [done for done in due if done.change is not None]
        if changes:
            self._write(changes, now)
        self.start([done.attempt for done in due if done.action is Action.START], now)
        return {done.attempt.job_id: done.action for done in due}

    def start(self, placed: Iterable[Attempt], now: datetime) -> None:
        """Request runners. Requesting twice is harmless: only one can claim the attempt."""
        for attempt in placed:
            last = self._requested_at.get(attempt.pk)
            if last is not None and (now - last).total_seconds() < START_RETRY_S:
                continue
            self._requested_at[attempt.pk] = now
            self._isolation.attempt(
                f"start of {_name(attempt)}", partial(self._spawn, attempt, now), now, START_KIND
            )

    def _spawn(self, attempt: Attempt, now: datetime) -> None:
        try:
            self._specs.write(attempt)
            self._engine.submit(self._ticket(attempt))
        except MissingAccount as error:
            self._leave_without_account(attempt, error, now)

    def _look(self, attempts: Iterable[Attempt]) -> Mapping[int, TaskReport]:
        """By the keys of the attempts. A missing one is unknown: its files say more."""
        refs = {self._ref(attempt): attempt.pk for attempt in attempts}
        return {refs[report.ref]: report for report in self._engine.look(list(refs)).tasks}

    def _ref(self, attempt: Attempt) -> str:
        """With its runner if that is all that matters: if it just runs, no file is read."""
        ref = LocalRef(self._specs.folder(attempt), attempt.nonce)
        if _is_quiet(attempt):
            runner = attempt.runner_pid, attempt.runner_start_ticks
            ref = replace(ref, runner=runner, boot_id=attempt.boot_id)
        return str(ref)

    def _ticket(self, attempt: Attempt) -> Ticket:
        folder = str(self._specs.folder(attempt))
        return Ticket(job_id=attempt.job_id, nonce=attempt.nonce, folder=folder)

    def _follow(
        self, attempt: Attempt, reports: Mapping[int, TaskReport], now: datetime
    ) -> JobAction | None:
        """Act on one attempt; None when there is nothing to do."""
        report = reports.get(attempt.pk)
        if report is not None and report.word == UNCHANGED:
            return None
        # A change that could not be stored is retried after its back-off.
        if self._isolation.is_delayed(_row_name(attempt), now):
            return None
        view = self._see(attempt, now)
        if view.action is Action.NONE:
            return None
        change = self._act(view, now)
        if change is not None and view.action in ENDINGS and self._specs.stays_here(attempt.job):
            return JobAction(attempt, view.action, partial(self._end_and_stay, attempt, change))
        return JobAction(attempt, view.action, change)

    def _end_and_stay(self, attempt: Attempt, change: Change) -> None:
        """Another host would find an empty checkpoint folder."""
        change()
        transitions.stay(attempt.job_id, self._host)

    def _write(self, changes: Sequence[JobAction], now: datetime) -> None:
        """Store all changes in one transaction, each in its own savepoint."""
        with self._guard():
            # Each end counts on the GPUs of its job.
            snapshots.lock_gpus([uuid for done in changes for uuid in done.attempt.gpu_uuids])
            for done in changes:
                if done.change is not None:
                    self._isolation.attempt(_row_name(done.attempt), done.change, now, STEP_KIND)
            wake("live")

    def _leave_without_account(
        self, attempt: Attempt, error: MissingAccount, now: datetime
    ) -> None:
        """End the job if its owner has no OS account; let it wait if that is unknown."""
        is_unknown = isinstance(error, UnknownAccount)
        record = outcomes.record_unknown_account if is_unknown else outcomes.record_missing_account
        if self._engine.give_up(self._ticket(attempt)):
            with self._guard():
                record(attempt, str(error), now)
                wake("live")

    def _see(self, attempt: Attempt, now: datetime) -> AttemptView:
        attempt_state = self._engine.files_of(self._ref(attempt))
        state = AttemptState(
            state=JobState(attempt.job.state),
            placed_at=attempt.placed_at,
            same_boot=attempt.boot_id == boot_id(),
            claimant=_claimant(attempt_state),
            runner_alive=attempt_state.runner_alive,
            is_started=attempt_state.started is not None,
            is_recorded=attempt.pid is not None and _is_known_runner(attempt, attempt_state),
            has_result=attempt_state.result is not None,
            yield_requested=attempt.asked_to_leave is not None,
            yield_withdrawn=hasattr(attempt, "yield_request") and attempt.asked_to_leave is None,
        )
        return AttemptView(attempt, attempt_state, next_action(state, now))

    def _act(self, view: AttemptView, now: datetime) -> Change | None:
        """Act on files and processes; returns the change to store."""
        attempt = view.attempt
        match view.action:
            case Action.STOP:
                self._engine.stop(self._ref(attempt))
            case Action.RECORD:
                return lambda: outcomes.record_start(attempt, view.files, now)
            case Action.YIELD:
                self._ask_to_yield(view)
            case Action.STAY:
                attempt_files.withdraw_request(
                    self._specs.folder(attempt), view.files, attempt.nonce
                )
            case Action.END:
                tail, saved = self._tail(view), self._has_saved(view)
                given = files.read_given(self._specs.given(attempt).result, LARGEST_RESULT + 1)
                return lambda: outcomes.record_end(
                    attempt, view.files, tail, now, has_saved=saved, given=given
                )
            case Action.NEVER_RAN:
                return lambda: outcomes.record_unstarted(attempt, now)
            case Action.GIVE_UP if self._engine.give_up(self._ticket(attempt)):
                return lambda: outcomes.record_unstarted(attempt, now)
            case Action.ABANDONED:
                return self._end_orphans(view, now)
            case Action.RESTARTED:
                saved = self._has_saved(view)
                return lambda: outcomes.record_lost(
                    attempt,
                    view.files,
                    RESTARTED,
                    now,
                    has_saved=saved,
                    seen_at=host_rows.read_before_pause(self._host, now),
                )
        return None

    def _ask_to_yield(self, view: AttemptView) -> None:
        """Repeated at each step; for the runner this is idempotent."""
        attempt, row = view.attempt, view.attempt.yield_request
        request = YieldRequestFile(row.text, row.deadline.timestamp())
        ref, folder = self._ref(attempt), self._specs.folder(attempt)
        is_written = attempt_files.write_request(folder, view.files, attempt.nonce, request)
        if not is_written or self._engine.ask_to_yield(ref):
            self._engine.stop(ref)

    def _tail(self, view: AttemptView) -> bytes:
        """The end of a failed job's log, which may contain the reason."""
        result = view.files.result
        if result is None or result.exit_code == 0:
            return b""
        return files.read_tail(self._specs.folder(view.attempt) / files.LOG, TAIL_BYTES)

    def _has_saved(self, view: AttemptView) -> bool:
        """Whether a job that did not succeed has saved a checkpoint."""
        job, result = view.attempt.job, view.files.result
        ended_well = result is not None and result.exit_code == 0
        return job.preemptible and not ended_well and self._specs.has_saved(job)

    def _end_orphans(self, view: AttemptView, now: datetime) -> Change | None:
        """SIGTERM, and SIGKILL after the grace; the job is lost when no process is left."""
        attempt, started = view.attempt, view.files.started
        if started is None:
            return None
        stopping_at = attempt.orphans_stopping_at
        number: int | None = signal.SIGTERM
        if stopping_at is not None:
            is_due = (now - stopping_at).total_seconds() >= self._specs.grace_s
            number = signal.SIGKILL if is_due else None
        if not attempt_files.end_orphans(started, number):
            attempt_files.end_confined(self._specs.folder(attempt))
            saved = self._has_saved(view)
            # Processes that had to be ended ran until now.
            seen_at = host_rows.read_before_pause(self._host, now) if stopping_at is None else None
            return lambda: outcomes.record_lost(
                attempt, view.files, ABANDONED, now, has_saved=saved, seen_at=seen_at
            )
        if stopping_at is not None:
            return None
        return lambda: transitions.mark_orphans_stopping(attempt, ENDING_ORPHANS, now)


def _open_on(host: str) -> QuerySet[Attempt]:
    rows = Attempt.objects.filter(host=host, ended_at=None, engine="")
    return rows.select_related("job__owner", "yield_request")


def _name(attempt: Attempt) -> str:
    return f"job {attempt.job_id}"


def _row_name(attempt: Attempt) -> str:
    return f"row of job {attempt.job_id}"


def _is_quiet(attempt: Attempt) -> bool:
    """The common case: nothing is to be recorded or requested while its runner lives."""
    is_recorded = attempt.job.state == JobState.RUNNING.value and attempt.pid is not None
    return is_recorded and not hasattr(attempt, "yield_request")


def _is_known_runner(attempt: Attempt, files: AttemptFiles) -> bool:
    """False once a guardian has replaced the recorded runner."""
    recorded = attempt.runner_pid, attempt.runner_start_ticks
    return files.runner is None or files.runner == recorded


def _claimant(files: AttemptFiles) -> Claimant:
    if files.claimed is None:
        return Claimant.UNCLAIMED
    return Claimant.RUNNER if files.claimed.runner else Claimant.GIVEN_UP
