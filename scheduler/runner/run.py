"""Edge: the runner, one small detached process per job, from its claim to its result.

It uses neither Django nor the database, and outlives all other parts of gpucoord. Its steps: claim
the attempt · reserve space for the result · lock the GPUs · fork the job into its cgroup, stopped ·
write both identities · start it · wait · end its remaining processes · unlock · write the result ·
wake the scheduler.
If a process dies in between, the files show which steps have happened.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from monitor.runtime.probes import datagrams
from scheduler.runner import attempt_files, files, launch, process_tree
from scheduler.runner.attempt_files import own_claim
from scheduler.runner.confine.confinement import Confinement
from scheduler.runner.guardian import (
    HANDLED_SIGNALS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    RUNNER,
    GuardedJob,
    JobEnding,
    JobLostError,
    RunnerState,
    Watch,
    become_runner,
    fork_runner,
)
from scheduler.runner.launch import HELD, Child
from scheduler.runner.spec import TEXT_LIMIT, Claimed, Result, Spec, Started

MOST_DESCRIPTORS = 4096
NOWHERE = Path("/proc/self/nowhere")
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """The task of another engine that a runner is in: its name there, its variables for the job."""

    ref: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


NO_ENGINE = EngineEnvironment()


@dataclass(slots=True)
class Running:
    """The state of an attempt, for the runner or the guardian that replaces it."""

    spec: Spec
    folder: Path
    claimed: Claimed
    confinement: Confinement
    report: ReservedResult
    # Of spec.json, if it was just read.
    body: dict[str, Any] | None = None
    log: int = -1
    # By the monotonic clock.
    began: float = 0.0
    job: GuardedJob = field(default_factory=lambda: GuardedJob(0))


def run(
    folder: Path,
    channel: socket.socket | None = None,
    guardian: int = 0,
    task: EngineEnvironment = NO_ENGINE,
) -> None:
    """Run the attempt of this folder, unless it has been claimed. Call once detached.

    channel: to the guardian with this pid.
    """
    kept_fd = 2 if channel is None else channel.fileno()
    os.closerange(3, kept_fd)
    os.closerange(kept_fd + 1, MOST_DESCRIPTORS)
    body = files.read_json(folder / files.SPEC)
    if body is None:
        return
    spec = Spec.from_json(body)
    if task.env:
        spec = replace(spec, env={**spec.env, **task.env})
    claimed = own_claim(spec.nonce, runner=True, engine_ref=task.ref)
    if not files.claim(folder, claimed.to_json()):
        return
    runner = Running(spec, folder, claimed, Confinement(spec), ReservedResult(folder))
    runner.body = body
    try:
        runner.report.reserve()
        result = _attempt(runner, channel, guardian)
    except Exception as error:
        if _may_wait(error, runner, task):
            _give_back(runner)
            return
        result = Result(nonce=spec.nonce, ended_at=time.time(), problem=_fault(error))
    if runner.report.publish(result):
        _wake(spec, b"ended")
    runner.confinement.tidy()
    runner.job.done()


def _may_wait(error: Exception, runner: Running, task: EngineEnvironment) -> bool:
    """Whether only the disk was full, and no process of the job was forked.

    Another engine starts a task once, so there the job fails with that reason.
    """
    is_full = isinstance(error, OSError) and error.errno in NO_SPACE
    return is_full and runner.began == 0.0 and not task.ref


def _give_back(runner: Running) -> None:
    """Leave the attempt unclaimed, so that the executor has it started again."""
    runner.confinement.tidy()
    runner.report.discard()
    (runner.folder / files.CLAIMED).unlink(missing_ok=True)


def detach() -> None:
    """Own session, own streams, no folder held, not to be stopped by a closing terminal.

    A request to stop that comes before the runner listens for it waits, and does not kill.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # It wants to hear how its own children end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, RUNNER.encode(), 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def warm_up() -> None:
    """Run code paths before the order arrives: the first write to shared memory is slow."""
    spec = Spec(job_id=0, attempt=0, nonce="", argv=[], cwd="/", env={}, account="")
    claimed = own_claim(spec.nonce, runner=True)
    Spec.from_json(json.loads(json.dumps(spec.to_json())))
    Confinement(spec)
    with suppress(OSError):
        files.claim(NOWHERE, claimed.to_json())
    with suppress(OSError):
        _write_started(spec, NOWHERE, claimed, os.getpid())
    datagrams.send(NOWHERE, "scheduler")
    launch.ignored_signals()


def _attempt(runner: Running, channel: socket.socket | None, guardian: int) -> Result:
    spec, confinement = runner.spec, runner.confinement
    refused = confinement.lock()
    if refused is not None:
        files.drop_environment(runner.folder, runner.body)
        return Result(nonce=spec.nonce, ended_at=time.time(), refused=refused)
    runner.log = _open_log(spec, runner.folder)
    confinement.limit(runner.log)
    child = launch.fork_job(spec, runner.log, runner.folder, confinement.make_cgroup())
    confinement.take_in(child.pid)
    runner.began = time.monotonic()
    runner.job = job = GuardedJob(child.pid, channel)
    job.starts(str(runner.folder), runner.began, [child.errors, *confinement.lock_files])
    _write_started(spec, runner.folder, runner.claimed, child.pid, guardian)
    child.go()
    _wake(spec, datagrams.PATIENT)
    files.drop_environment(runner.folder, runner.body)
    return _follow(runner, _watch(runner, job), child)


def take_over(state: RunnerState) -> None:
    """Run in the guardian after its runner has died: do the remaining steps."""
    folder = Path(state.folder)
    body = files.read_json(folder / files.SPEC) if state.folder and not state.done else None
    if body is None:
        return
    become_runner()
    spec, job = Spec.from_json(body), GuardedJob(state.leader)
    confinement = Confinement(spec)
    confinement.take_over(state.leader, state.files[1:])
    written = files.read_json(folder / files.RESULT)
    if written is not None and written.get("nonce") == spec.nonce:
        confinement.leave()
        process_tree.signal_all(job.processes(), signal.SIGKILL)
        _wake(spec, b"ended")
    else:
        report = ReservedResult.of_runner(folder, state.runner)
        claimed = own_claim(spec.nonce, runner=True)
        runner = Running(spec, folder, claimed, confinement, report, began=state.began, job=job)
        runner.log = _open_log(spec, folder)
        confinement.limit(runner.log)
        _go_on(runner, Child(state.leader, state.files[0]), state)
    confinement.tidy()


def _go_on(runner: Running, child: Child, state: RunnerState) -> None:
    """Follow the job to its end in place of the dead runner."""
    try:
        watch = _watch(runner, runner.job)
        watch.take_over(state.status, state.stopped)
        result = _follow(runner, watch, child)
    except JobLostError:
        # Without a result and a runner, the scheduler records the attempt as lost.
        return
    except Exception as error:
        result = Result(nonce=runner.spec.nonce, ended_at=time.time(), problem=_fault(error))
    if result.problem == HELD:
        # The runner died before it let the job go, so nothing of it has run.
        (runner.folder / files.STARTED).unlink(missing_ok=True)
    elif runner.report.publish(result):
        _wake(runner.spec, b"ended")


def _watch(runner: Running, job: GuardedJob) -> Watch:
    limit_s = runner.spec.time_limit_s
    if limit_s is not None:
        limit_s = max(0.0, limit_s - (time.monotonic() - runner.began))
    return Watch(
        job,
        time_limit_s=limit_s,
        grace_s=runner.spec.grace_s,
        pass_on_yield=lambda: _pass_on_yield(runner.spec, runner.folder, job),
        confinement=runner.confinement,
    )


def _follow(runner: Running, watch: Watch, child: Child) -> Result:
    """Watch the job to its end."""
    ending = watch.run()
    # A job that saved its work when it was asked (85) needs more memory, too.
    saved = runner.confinement.is_short_of_memory and os.waitstatus_to_exitcode(ending.status) == 85
    out_of_memory = runner.confinement.ran_out_of_memory or ending.stopped == "memory" or saved
    runner.confinement.leave()
    failure = child.failure()
    log_bytes = os.fstat(runner.log).st_size
    result = _result(
        runner.spec, ending, resource.getrusage(resource.RUSAGE_CHILDREN), log_bytes, failure
    )
    # The largest process, however short its peak, or all processes at a check.
    peak = max(result.peak_memory_bytes or 0, runner.confinement.peak_memory_bytes)
    return replace(result, out_of_memory=out_of_memory, peak_memory_bytes=peak)


def _open_log(spec: Spec, folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(folder / files.LOG, flags, 0o600)
    if spec.uid is not None and spec.gid is not None:
        # So that a script of the job may open /dev/stderr; the folder stays closed to it.
        os.fchown(log, spec.uid, spec.gid)
    return log


def _write_started(spec: Spec, folder: Path, claimed: Claimed, pid: int, guardian: int = 0) -> None:
    started = Started(
        nonce=spec.nonce,
        account=spec.account,
        boot_id=claimed.boot_id,
        runner_pid=claimed.pid,
        runner_start_ticks=claimed.start_ticks,
        pid=pid,
        start_ticks=process_tree.start_ticks_of(pid) or 0,
        started_at=time.time(),
        guardian_pid=guardian,
        guardian_start_ticks=process_tree.start_ticks_of(guardian) or 0 if guardian else 0,
    )
    files.write_json(folder / files.STARTED, started.to_json())


def _pass_on_yield(spec: Spec, folder: Path, job: GuardedJob) -> float | None:
    """Pass a yield request on to the job; returns the seconds until its deadline.

    None: there is no request. Infinity: the request was withdrawn.
    """
    request = attempt_files.read(folder, spec.nonce)
    if request is None:
        return None
    if request.withdrawn:
        with suppress(OSError):
            attempt_files.clear_request(folder, spec)
        return math.inf
    # The deadline counts even if the job cannot be notified, as with a full disk.
    with suppress(OSError, KeyError):
        files.notify_job(request, spec, job.processes)
    return request.deadline - time.time()


def _result(
    spec: Spec,
    ending: JobEnding,
    used: resource.struct_rusage,
    log_bytes: int,
    failure: tuple[str, int] | None,
) -> Result:
    exited = os.WIFEXITED(ending.status)
    return Result(
        nonce=spec.nonce,
        ended_at=time.time(),
        exit_code=os.WEXITSTATUS(ending.status) if exited else None,
        signal=None if exited else os.WTERMSIG(ending.status),
        stopped=ending.stopped,
        yielded=ending.yielded,
        problem=launch.describe(spec, failure) if failure else None,
        cpu_s=round(used.ru_utime + used.ru_stime, 3),
        peak_memory_bytes=used.ru_maxrss * 1024,
        log_bytes=log_bytes,
    )


def _fault(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"The job was not started: {error.strerror}."
    return f"The job was not started: {type(error).__name__}: {error}."


def _wake(spec: Spec, payload: bytes) -> None:
    datagrams.send(Path(spec.wake_folder), "scheduler", payload)


# Write result.json so that neither a full disk nor a power cut loses the exit code.

RESERVED_BYTES = 8192
RETRY_S = 1.0


class ReservedResult:
    """result.json with its space taken before the job runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part = folder / f"{files.RESULT}.{os.getpid()}"
        self._file: int | None = None

    @classmethod
    def of_runner(cls, folder: Path, runner: int) -> ReservedResult:
        """The space that a dead runner has reserved."""
        report = cls(folder)
        report._part = folder / f"{files.RESULT}.{runner}"
        with suppress(OSError):
            report._file = os.open(report._part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        return report

    def reserve(self) -> int:
        """Reserve disk space. Raises OSError without space, so that the job is not started."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._part, flags, 0o600)
        try:
            os.posix_fallocate(file, 0, RESERVED_BYTES)
        except OSError:
            os.close(file)
            raise
        self._file = file
        return file

    def discard(self) -> None:
        """Free the space: there is no result."""
        self._part.unlink(missing_ok=True)

    def publish(self, result: Result) -> bool:
        """Write the result and sync it to the disk, with retries until that succeeds.

        False: the attempt's folder was deleted, so no result is needed.
        """
        while self._folder.is_dir():
            with suppress(OSError):
                self._write(result)
                return True
            time.sleep(RETRY_S)
        return False

    def _write(self, result: Result) -> None:
        file = self.reserve() if self._file is None else self._file
        body = result.to_json()
        body["problem"] = result.problem and result.problem[:TEXT_LIMIT]
        text = json.dumps(body).encode()
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
        os.fsync(file)
        self._part.replace(self._folder / files.RESULT)
        _sync_folder(self._folder)


def _sync_folder(folder: Path) -> None:
    """Make the new name last a power cut, if that can be had; it is there already."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# The runner pool, a small process that keeps one runner ready, so that jobs start quickly.
#
# The ready runner reads the folder of its attempt from the socket. Both end when the other side
# closes it. The pool may be killed at any time without harm to a job. Standard library only;
# started as `python -I -S -c "... run.serve(FD)"`.


# Minimum time between replacements of runners that fail before their order.
PAUSE_S = 1.0


def serve(descriptor: int) -> None:
    """A runner is forked ahead for each folder that comes."""
    # Children are reaped automatically.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(fileno=descriptor) as orders:
        while not _is_closed(orders):
            _keep_ready(orders)


def _is_closed(orders: socket.socket) -> bool:
    try:
        return not orders.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _keep_ready(orders: socket.socket) -> None:
    """Returns when a runner has its order, and with it has closed all else; or when it died."""
    closed, write_end = os.pipe()
    if os.fork() == 0:
        _guard(orders)
    os.close(write_end)
    os.read(closed, 1)
    os.close(closed)


def _guard(orders: socket.socket) -> NoReturn:
    """The guardian, and below it the runner."""
    try:
        forked = fork_runner()
        if isinstance(forked, RunnerState):
            take_over(forked)
            os._exit(0)
    except BaseException:
        os._exit(1)
    _wait_and_run(orders, *forked)


def _wait_and_run(orders: socket.socket, channel: socket.socket, guardian: int) -> NoReturn:
    try:
        detach()
        warm_up()
        order = orders.recv(8192)
        with suppress(OSError):
            # It is taken: see Spawner.
            orders.send(b".", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BaseException:
        time.sleep(PAUSE_S)
        os._exit(1)
    try:
        if order:
            run(Path(os.fsdecode(order)), channel, guardian)
    finally:
        os._exit(0)
