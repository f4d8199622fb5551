"""Edge: fork a job's first process, hold it until told to go, then become the command."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scheduler.runner.forking import fork_into
from scheduler.runner.spec import Spec

NOT_FOUND = 127
NOT_EXECUTABLE = 126
JOB_UMASK = 0o022
READY = b"."


@dataclass(slots=True)
class Child:
    """The job's first process, waiting. `go()` lets it run; without it, it never will."""

    pid: int
    _go: int
    _errors: int

    def go(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._go, b"g")
        os.close(self._go)

    def failure(self) -> tuple[str, int] | None:
        """Once it has ended: the stage and errno when it could not become the command."""
        report = os.read(self._errors, 200).decode()
        os.close(self._errors)
        if not report:
            return None
        stage, _, number = report.partition(" ")
        return stage, int(number)


def fork_job(spec: Spec, log: int, cgroup: Sequence[Path] = ()) -> Child:
    """Fork into this cgroup. The child waits: if we die before `go()`, nothing has run.

    When this returns, it leads a session of its own: who learns its pid may signal its group.
    """
    wait_end, go_end = os.pipe()
    errors_in, errors_out = os.pipe()
    pid = fork_into(cgroup)
    if pid == 0:
        os.close(go_end)
        _become(spec, log, wait_end, errors_out)
    os.close(wait_end)
    os.close(errors_out)
    os.read(errors_in, len(READY))
    return Child(pid, go_end, errors_in)


def _become(spec: Spec, log: int, wait_end: int, errors: int) -> NoReturn:
    stage = "runner"
    code = NOT_EXECUTABLE
    try:
        os.setsid()
        os.write(errors, READY)
        if os.read(wait_end, 1) != b"g":
            os._exit(0)
        _connect(log)
        _heed_all_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(JOB_UMASK)
        stage = "account"
        _change_account(spec)
        # As the job's account: a folder that only the service may enter stays closed.
        stage = "cwd"
        os.chdir(spec.cwd)
        stage = "command"
        os.execvpe(spec.argv[0], spec.argv, spec.env)  # noqa: S606
    except OSError as error:
        code = NOT_FOUND if (stage, error.errno) == ("command", errno.ENOENT) else NOT_EXECUTABLE
        os.write(errors, f"{stage} {error.errno or 0}".encode())
    except BaseException:
        os.write(errors, f"{stage} 0".encode())
    os._exit(code)


def _heed_all_signals() -> None:
    """What the runner, Python or whoever started gpucoord ignores would stay so through exec."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _connect(log: int) -> None:
    """Nothing to read; stdout and stderr into one file, so that they stay in order."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def _change_account(spec: Spec) -> None:
    if spec.uid is None or spec.gid is None:
        return
    os.setgroups(spec.groups or [])
    os.setgid(spec.gid)
    os.setuid(spec.uid)


def describe(spec: Spec, failure: tuple[str, int]) -> str:
    """Say in plain words why the command could not run."""
    stage, number = failure
    why = os.strerror(number) if number else "the runner failed"
    program = spec.argv[0] if spec.argv else ""
    if stage == "account":
        return f"The job could not become the account {spec.account}: {why}."
    if stage == "cwd":
        return _describe_cwd(spec, number, why)
    if stage == "command":
        return _describe_command(spec, number, program, why)
    return f"The job could not be started: {why}."


def _describe_cwd(spec: Spec, number: int, why: str) -> str:
    if number == errno.ENOENT:
        return f"The working directory {spec.cwd} does not exist."
    if number == errno.EACCES:
        return f"The account {spec.account} may not enter the working directory {spec.cwd}."
    return f"The working directory {spec.cwd} can't be used: {why}."


def _describe_command(spec: Spec, number: int, program: str, why: str) -> str:
    if number == errno.ENOENT and "/" in program:
        return f"Command not found: {program} (or the program that its first line names)."
    if number == errno.ENOENT:
        return f"Command not found: {program} is in no folder of PATH."
    if number == errno.EACCES:
        return f"The account {spec.account} may not execute {program}; is it executable (chmod +x)?"
    if number == errno.ENOEXEC:
        return f"{program} is not a program; a script needs a first line such as #!/bin/sh."
    return f"{program} could not be executed: {why}."
