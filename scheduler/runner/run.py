"""Edge: the runner, one small detached process per job, from its claim to its result.

It knows neither Django nor the database and outlives everything else of gpucoord. Order of
deeds: claim the attempt · reserve the result's space · lock its GPUs · fork the job into its
cgroup, held · write both identities · let it go · wait · end what is left of it · unlock · write
the result · wake the scheduler.
Whatever dies in between, the files say what has happened and what can't have.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from monitor import datagrams
from scheduler.runner import family, files, launch, leaving
from scheduler.runner.attempts import claim_by_me
from scheduler.runner.confinement import Confinement
from scheduler.runner.report import ReservedResult
from scheduler.runner.spec import Claimed, Result, Spec, Started
from scheduler.runner.watch import HEARD, Ending, Watch

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
MOST_DESCRIPTORS = 4096
NOWHERE = Path("/proc/self/nowhere")


def run(folder: Path) -> None:
    """Run the attempt of this folder, unless somebody has claimed it. Call once detached."""
    os.closerange(3, MOST_DESCRIPTORS)
    body = files.read_json(folder / files.SPEC)
    if body is None:
        return
    spec = Spec.from_json(body)
    claimed = claim_by_me(spec.nonce, runner=True)
    if not files.claim(folder, claimed.to_json()):
        return
    report = ReservedResult(folder)
    confinement = Confinement(spec)
    try:
        report.reserve()
        result = _attempt(spec, folder, claimed, confinement)
    except Exception as error:
        result = Result(nonce=spec.nonce, ended_at=time.time(), problem=_fault(error))
    if report.publish(result):
        _wake(spec, b"ended")
    confinement.tidy()


def detach() -> None:
    """Own session, own streams, no folder held, not to be stopped by a closing terminal.

    A request to stop that comes before the runner listens for it waits, and does not kill.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
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
    libc.prctl(PR_SET_NAME, b"gpucoord-runner", 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def rehearse() -> None:
    """What needs no attempt, once: memory that a fork shares is slow when it is first written."""
    spec = Spec(job_id=0, attempt=0, nonce="", argv=[], cwd="/", env={}, account="")
    claimed = claim_by_me(spec.nonce, runner=True)
    Spec.from_json(json.loads(json.dumps(spec.to_json())))
    Confinement(spec)
    with suppress(OSError):
        files.claim(NOWHERE, claimed.to_json())
    with suppress(OSError):
        _write_started(spec, NOWHERE, claimed, os.getpid())
    datagrams.send(NOWHERE, "scheduler")


def _attempt(spec: Spec, folder: Path, claimed: Claimed, confinement: Confinement) -> Result:
    refused = confinement.lock()
    if refused is not None:
        return Result(nonce=spec.nonce, ended_at=time.time(), refused=refused)
    log = _open_log(spec, folder)
    confinement.limit(log)
    child = launch.fork_job(spec, log, confinement.make_cgroup())
    confinement.take_in(child.pid)
    _write_started(spec, folder, claimed, child.pid)
    child.go()
    _wake(spec, b"started")
    watch = Watch(
        child.pid,
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        pass_on_yield=lambda: _pass_on_yield(spec, folder),
        confinement=confinement,
    )
    ending = watch.run()
    out_of_memory = confinement.ran_out_of_memory
    confinement.leave()
    failure = child.failure()
    result = _result(spec, ending, os.fstat(log).st_size, failure)
    return replace(result, out_of_memory=out_of_memory)


def _open_log(spec: Spec, folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(folder / files.LOG, flags, 0o600)
    if spec.uid is not None and spec.gid is not None:
        # So that a script of the job may open /dev/stderr; the folder stays closed to it.
        os.fchown(log, spec.uid, spec.gid)
    return log


def _write_started(spec: Spec, folder: Path, claimed: Claimed, pid: int) -> None:
    started = Started(
        nonce=spec.nonce,
        account=spec.account,
        boot_id=claimed.boot_id,
        runner_pid=claimed.pid,
        runner_start_ticks=claimed.start_ticks,
        pid=pid,
        start_ticks=family.start_ticks_of(pid) or 0,
        started_at=time.time(),
    )
    files.write_json(folder / files.STARTED, started.to_json())


def _pass_on_yield(spec: Spec, folder: Path) -> float | None:
    """Let the job know that it is to leave its GPU; how many seconds it has.

    None = no request; infinity = it may stay after all.
    """
    request = leaving.read(folder, spec.nonce)
    if request is None:
        return None
    if request.withdrawn:
        with suppress(OSError):
            leaving.take_back(folder, spec)
        return math.inf
    # Its time runs also when it can't be told, as with a full disk.
    with suppress(OSError, KeyError):
        leaving.pass_on(request, spec)
    return request.deadline - time.time()


def _result(spec: Spec, ending: Ending, log_bytes: int, failure: tuple[str, int] | None) -> Result:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
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
