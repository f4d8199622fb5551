"""Edge: Slurm by its commands. Jobs are submitted as their owner; the batch script is the runner.

Only text is parsed: the JSON of squeue and slurmrestd differs between versions. A nonce in the
comment identifies a task, because a number is used again once slurmctld has lost its state.
"""

from __future__ import annotations

import math
import pwd
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from msgspec import Struct, field

from monitor.runtime.probes.process_identity import start_ticks
from scheduler.execution.engines import policy
from scheduler.execution.engines.facts import (
    Allocation,
    Capabilities,
    EngineAway,
    EngineName,
    NodeReport,
    SubmitAnswer,
    SubmitResult,
    TaskList,
    Ticket,
)
from scheduler.execution.engines.policy import ReportedProcess
from scheduler.runner.commands import SERVICE, CommandAccount, CommandResult, run_command
from scheduler.runner.launch import ROOT, interpreter

ANSWER_S = 10.0
# sbatch tries again by itself while slurmctld starts.
SUBMIT_S = 20.0
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner import batch; batch.main(sys.argv[2])"
)
GIVE_UP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner import batch; batch.give_up(*sys.argv[2:])"
)
OUTPUT = "slurm.out"
# Time for the runner to end the job itself, before Slurm does.
MARGIN_S = 60.0
MIB = 1024**2


class SlurmEngine(Struct, frozen=True):
    """`folder`: of the commands, "" = those in PATH. `python`: on the nodes; at least 3.11.

    root: the folder or archive of the runner's modules, at the same path on all nodes.
    """

    folder: str = ""
    python: str = field(default_factory=interpreter)
    root: str = str(ROOT)
    conf: str = ""
    name: EngineName = EngineName.SLURM

    def capabilities(self) -> Capabilities:
        return Capabilities(
            order=True,
            fair_share=True,
            quotas=True,
            preemption=True,
            windows=True,
            predicts_start=True,
            can_hold=True,
        )

    def submit(self, ticket: Ticket) -> SubmitAnswer:
        account = CommandAccount(ticket.uid, ticket.gid, ticket.groups)
        argv = [self._path("sbatch"), *options(ticket), f"--wrap={self.script(ticket)}"]
        done = self._run(
            argv, SUBMIT_S, account=account, env=dict(ticket.variables), cwd=ticket.home
        )
        ref = policy.sbatch(done.output) if done.is_ok else ""
        if ref:
            return SubmitAnswer(SubmitResult.ACCEPTED, ref)
        text = _message(done)
        if done.is_ok or done.code is None or policy.is_away(text):
            return SubmitAnswer(SubmitResult.UNCERTAIN, text=text)
        return SubmitAnswer(SubmitResult.REFUSED, text=text)

    def script(self, ticket: Ticket) -> str:
        """The batch script: our runner, on the node that Slurm chooses."""
        words = [self.python, "-I", "-S", "-c", PROGRAM, self.root, ticket.folder]
        return f"exec {shlex.join(words)}"

    def look(self, refs: Sequence[str] = ()) -> TaskList:
        """One squeue for all jobs, also those of other programs."""
        del refs
        argv = [self._path("squeue"), "-h", "-a", "-t", "all"]
        # Not an argument, which other users could read and imitate in the comment of a job.
        mark = f"{secrets.token_hex(16)}{policy.SEPARATOR}"
        env = {"TZ": "UTC", "SQUEUE_FORMAT": f"{mark}{policy.SQUEUE_FORMAT}"}
        done = self._run(argv, ANSWER_S, env=env)
        return policy.squeue(done.output, mark) if done.is_ok else TaskList(problem=_message(done))

    def allocation(self, ref: str) -> Allocation | None:
        """From scontrol, else from sacct where it works; None: neither knows the job any more.

        Raises EngineAway.
        """
        done = self._run([self._path("scontrol"), "show", "job", ref, "-d"], ANSWER_S)
        if done.is_ok:
            return policy.job(done.output)
        if not policy.is_gone(_message(done)):
            raise EngineAway(_message(done))
        argv = ["sacct", "-n", "-P", "-X", "-j", ref, "-o", policy.SACCT_FIELDS]
        accounting = self._run([self._path(argv[0]), *argv[1:]], ANSWER_S)
        ends = policy.sacct(accounting.output) if accounting.is_ok else {}
        return next(iter(ends.values()), None) if len(ends) == 1 else None

    def stop(self, ref: str, uid: int | None = None) -> str:
        del uid
        return self._change([self._path("scancel"), ref])

    def ask_to_yield(self, ref: str) -> str:
        return self._change([self._path("scancel"), "--batch", "--signal=USR1", ref])

    def give_up(self, ticket: Ticket) -> bool:
        """Claim the attempt as its account, so that no runner can; False: a runner was faster.

        Raises OSError when that could not be tried.
        """
        argv = [self.python, "-I", "-S", "-c", GIVE_UP, self.root, ticket.folder, ticket.nonce]
        account = CommandAccount(ticket.uid, ticket.gid, ticket.groups)
        done = run_command(argv, timeout_s=ANSWER_S, account=account)
        if done.code not in (0, 1) or done.errors:
            raise OSError(done.errors or f"exit code {done.code}")
        return done.code == 0

    def hold(self, ref: str) -> str:
        return self._change([self._path("scontrol"), "uhold", ref])

    def release(self, ref: str) -> str:
        return self._change([self._path("scontrol"), "release", ref])

    def nodes(self) -> list[NodeReport]:
        done = self._run([self._path("scontrol"), "show", "node", "-o"], ANSWER_S)
        if not done.is_ok:
            raise EngineAway(_message(done))
        return policy.nodes(done.output)

    def version(self) -> str:
        """As `slurm-wlm 22.05.8`; "" = squeue is not installed."""
        done = self._run([self._path("squeue"), "--version"], ANSWER_S)
        return done.output.strip()[:100] if done.is_ok else ""

    def _change(self, argv: list[str]) -> str:
        done = self._run(argv, ANSWER_S)
        text = _message(done)
        return "" if done.is_ok or policy.is_over(text) else text

    def _path(self, command: str) -> str:
        return str(Path(self.folder) / command) if self.folder else command

    def _run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        account: CommandAccount = SERVICE,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
    ) -> CommandResult:
        more = {"SLURM_CONF": self.conf} if self.conf else {}
        return run_command(
            argv, timeout_s=timeout_s, account=account, env={**(env or {}), **more}, cwd=cwd
        )


class SlurmSettings(Protocol):
    """Settings that name Slurm's commands."""

    @property
    def slurm_commands(self) -> Path | None: ...
    @property
    def slurm_conf(self) -> Path | None: ...
    @property
    def slurm_python(self) -> Path | None: ...


def engine_of(config: SlurmSettings) -> SlurmEngine:
    """The engine that the settings describe."""
    return SlurmEngine(
        folder=str(config.slurm_commands or ""),
        python=str(config.slurm_python or interpreter()),
        conf=str(config.slurm_conf or ""),
    )


def options(ticket: Ticket) -> list[str]:
    """The options of sbatch. What an operator set comes first, so that the rest overrides it."""
    chosen = [
        *ticket.options,
        "--parsable",
        # A node that fails before the runner began must not end the task. A second run of an
        # attempt that has begun ends at once.
        "--requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--job-name={ticket.name or f'gpucoord-{ticket.job_id}'}",
        f"--comment={policy.COMMENT}{ticket.nonce}",
        f"--output={escaped(ticket.folder)}/{OUTPUT}",
        f"--chdir={ticket.home}",
        # The runner asks the job to yield that long before Slurm ends it.
        f"--signal=B:USR1@{max(1, min(65_535, math.ceil(ticket.grace_s)))}",
    ]
    if ticket.gpus:
        kind = f"{ticket.gpu_type}:" if ticket.gpu_type else ""
        chosen.append(f"--gres=gpu:{kind}{ticket.gpus}")
    if ticket.cpus is not None:
        chosen.append(f"--cpus-per-task={math.ceil(ticket.cpus)}")
    if ticket.memory_bytes is not None:
        chosen.append(f"--mem={math.ceil(ticket.memory_bytes / MIB)}M")
    if ticket.time_limit_s is not None:
        seconds = ticket.time_limit_s + ticket.grace_s + MARGIN_S
        chosen.append(f"--time={math.ceil(seconds / 60)}")
    if ticket.niceness:
        chosen.append(f"--nice={ticket.niceness}")
    return chosen


def escaped(path: str) -> str:
    """In a file name for Slurm, % begins a pattern."""
    return path.replace("%", "%%")


def _message(done: CommandResult) -> str:
    """The message of Slurm, without the name of the command."""
    lines = [line for line in done.errors.split("\n") if line.strip()]
    words = [line.partition("error: ")[2] or line for line in lines]
    return " ".join(words)[-500:] or (done.output.strip()[-500:] if not done.is_ok else "")


# Edge: calls of an engine beside the loop, so that a slow engine never delays a tick.


THREADS = 4


class CallResult(Struct, frozen=True):
    """The result of a call, or the error that it raised."""

    key: tuple[str, object]
    value: Any = None
    error: Exception | None = None


class BackgroundCalls:
    """`start` a call under a key, and take results from `finished`. Only one call runs for a key.

    The threads are daemons: an unfinished call does not keep the process from ending.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._todo: SimpleQueue[tuple[tuple[str, object], Callable[[], Any]] | None] = SimpleQueue()
        self._done: SimpleQueue[CallResult] = SimpleQueue()
        self._in_flight: set[tuple[str, object]] = set()
        self._started: list[threading.Thread] = []

    def start(self, kind: str, item: object, call: Callable[[], Any]) -> bool:
        """False: the same call is in flight."""
        key = (kind, item)
        if key in self._in_flight:
            return False
        self._in_flight.add(key)
        if len(self._started) < min(self._threads, len(self._in_flight)):
            thread = threading.Thread(target=self._work, name="engine", daemon=True)
            self._started.append(thread)
            thread.start()
        self._todo.put((key, call))
        return True

    def is_busy(self, kind: str, item: object) -> bool:
        return (kind, item) in self._in_flight

    def count(self, kind: str) -> int:
        return sum(key[0] == kind for key in self._in_flight)

    def finished(self) -> list[CallResult]:
        """Results since the last call."""
        results = []
        while not self._done.empty():
            result = self._done.get()
            self._in_flight.discard(result.key)
            results.append(result)
        return results

    def close(self, patience_s: float = 2.0) -> list[CallResult]:
        """Wait shortly for calls in flight; returns their results."""
        deadline, results = time.monotonic() + patience_s, self.finished()
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.02)
            results += self.finished()
        for _ in self._started:
            self._todo.put(None)
        self._started.clear()
        return results

    def _work(self) -> None:
        while (order := self._todo.get()) is not None:
            key, call = order
            try:
                self._done.put(CallResult(key, call()))
            except Exception as error:
                self._done.put(CallResult(key, error=error))


# Edge: what the kernel of this node says of a process that a job of another engine reports.


PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Where the plugins of Slurm for cgroup v2 and v1 make the cgroup of a job.
PLACES = (
    "system.slice/*slurmstepd.scope/job_{ref}",
    "*slurmstepd.scope/job_{ref}",
    "slurm*/uid_*/job_{ref}",
    "*/slurm*/uid_*/job_{ref}",
)
LONGEST = 65_536


def read_reported(pid: int, ticks: int, ref: str) -> ReportedProcess | None:
    """None: there is no such process, or not any more."""
    uid, cgroup = _real_uid(_text(pid, "status")), _text(pid, "cgroup")
    # All of it was read of this process only if it is still there.
    if start_ticks(pid) != ticks:
        return None
    return ReportedProcess(uid=uid, cgroup=cgroup, has_job_cgroup=has_job_cgroup(ref))


def has_job_cgroup(ref: str, root: Path = CGROUPS) -> bool:
    """Whether Slurm has made a cgroup for this job here."""
    return ref.isdecimal() and any(
        True for place in PLACES for _ in root.glob(place.format(ref=ref))
    )


def uid_of(account: str) -> int:
    """Of a name, or of a number for an account without a name. Raises LookupError."""
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        if account.isdecimal():
            return int(account)
        raise LookupError(f"This host has no OS account {account!r}.") from None


def account_of(uid: int) -> str:
    """The name of an account, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _real_uid(status: str) -> int | None:
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def _text(pid: int, name: str) -> str:
    with suppress(OSError), (PROC / str(pid) / name).open("rb") as file:
        return file.read(LONGEST).decode(errors="replace")
    return ""
