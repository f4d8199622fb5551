"""Edge: fork a job's first process, which waits for its start and then executes the command."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import NoReturn

from scheduler.runner.confine import landlock
from scheduler.runner.spec import Spec, script_in

NOT_FOUND = 127
NOT_EXECUTABLE = 126
JOB_UMASK = 0o022
READY = b"."


# The stage of a first process that was never started.
HELD = "held"
# The shell of a copied script reads it from this file in memory. As an argument, all accounts would
# see it, and shells treat a text in some ways unlike a file.
SCRIPT_FD = 9
SCRIPTS = "script"
ABOVE = ".above"
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Child:
    """The job's first process, waiting. `go()` lets it run; without it, it never will."""

    pid: int
    # Where it tells why it could not become the command.
    errors: int
    _go: int = -1

    def go(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._go, b"g")
        os.close(self._go)

    def failure(self) -> tuple[str, int] | None:
        """Once it has ended: the stage and errno when it could not become the command."""
        report = os.read(self.errors, 200).lstrip(READY).decode()
        os.close(self.errors)
        if not report:
            return None
        stage, _, number = report.partition(" ")
        return stage, int(number)


def fork_job(spec: Spec, log: int, folder: Path, cgroup: Sequence[Path] = ()) -> Child:
    """Fork into this cgroup. The child waits: if the runner dies before `go()`, nothing has run.

    folder: of the attempt, for the copy of a script.
    When this returns, it leads a session of its own: its pid is also that of its process group.
    """
    wait_end, go_end = os.pipe()
    errors_in, errors_out = os.pipe()
    pid = fork_into(cgroup)
    if pid == 0:
        os.close(go_end)
        _become(spec, log, wait_end, errors_out, folder)
    os.close(wait_end)
    os.close(errors_out)
    os.read(errors_in, len(READY))
    return Child(pid, errors_in, go_end)


def _become(spec: Spec, log: int, wait_end: int, errors: int, folder: Path) -> NoReturn:
    stage = "runner"
    code = NOT_EXECUTABLE
    try:
        os.setsid()
        os.write(errors, READY)
        if os.read(wait_end, 1) != b"g":
            os.write(errors, f"{HELD} 0".encode())
            os._exit(0)
        stage = "stdin"
        _connect(_open_stdin(spec), log)
        stage = "runner"
        _heed_all_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        script = copied_script(spec.argv, spec.cwd)
        # Before the account changes, which may not enter the folders above.
        start = script.open_in(folder) if script else -1
        os.umask(JOB_UMASK if spec.umask is None else spec.umask)
        stage = "account"
        _change_account(spec)
        # As the job's account: a folder that only the service may enter stays closed.
        stage = "cwd"
        os.chdir(spec.cwd)
        if spec.closed:
            stage = "landlock"
            landlock.close(spec.closed, spec.opened, spec.readable)
        stage = "command"
        argv = spec.argv
        if script:
            argv = script.argv
            errors = script.pass_on(errors)
            os.fchdir(start)
        _set_soft(spec.limits)
        os.execvpe(argv[0], argv, spec.env)  # noqa: S606
    except OSError as error:
        code = NOT_FOUND if (stage, error.errno) == ("command", errno.ENOENT) else NOT_EXECUTABLE
        os.write(errors, f"{stage} {error.errno or 0}".encode())
    except BaseException:
        os.write(errors, f"{stage} 0".encode())
    os._exit(code)


def _set_soft(limits: Mapping[str, int]) -> None:
    """Set soft limits, each at most the hard limit. Last, as they may be too low for Python."""
    for name, amount in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        soft, hard = resource.getrlimit(number)
        unlimited = resource.RLIM_INFINITY
        wanted = amount if hard == unlimited else hard if amount == unlimited else min(amount, hard)
        if wanted != soft:
            resource.setrlimit(number, (wanted, hard))


def _heed_all_signals() -> None:
    """Reset ignored signals, because exec would keep them ignored."""
    for number in ignored_signals():
        signal.signal(number, signal.SIG_DFL)


@cache
def ignored_signals() -> tuple[int, ...]:
    """Read once in the runner, before a job waits for it."""
    numbers = signal.valid_signals()
    return tuple(number for number in numbers if signal.getsignal(number) is signal.SIG_IGN)


def _open_stdin(spec: Spec) -> int:
    """The job's standard input as a file in memory, removed from the disk.

    The job may open it again as /dev/stdin: it is closed neither to its account nor by Landlock.
    """
    if not spec.stdin_file:
        return os.open(os.devnull, os.O_RDONLY)
    file = Path(spec.stdin_file)
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as memory:
        memory.write(file.read_bytes())
    os.lseek(descriptor, 0, os.SEEK_SET)
    file.unlink()
    return descriptor


@dataclass(frozen=True, slots=True)
class CopiedScript:
    """A script as it was when it was submitted. argv: what starts it, with its name.

    Its shell starts in a folder that has this one file. The first line changes to the folder of the
    job. So the script has the name that its user wrote, such as ./job.sh, and behaves as a file.
    """

    argv: list[str]
    name: str
    text: str

    def open_in(self, folder: Path) -> int:
        """The folder where its shell starts, which all accounts may enter; changes the umask.

        The file is a link to the memory that the job gets as SCRIPT_FD. Raises OSError.
        """
        *parents, name = PurePath(self.name).parts
        start = (folder / SCRIPTS).joinpath(*[ABOVE] * parents.count(".."))
        os.umask(0o066)
        start.mkdir(parents=True)
        at = start
        for part in parents:
            at = at.parent if part == ".." else at / part
            at.mkdir(exist_ok=True)
        (at / name).symlink_to(f"/proc/self/fd/{SCRIPT_FD}")
        return os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def pass_on(self, errors: int) -> int:
        """Make the text SCRIPT_FD; returns the descriptor of `errors`, which may have its place."""
        errors = fcntl.fcntl(errors, fcntl.F_DUPFD_CLOEXEC, SCRIPT_FD + 1)
        descriptor = os.memfd_create("script", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(os.dup(descriptor), "wb") as memory:
            memory.write(self.text.encode())
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, SCRIPT_FD)
        os.set_inheritable(SCRIPT_FD, True)
        return errors


def copied_script(argv: Sequence[str], cwd: str) -> CopiedScript | None:
    script = script_in(argv)
    if script is None:
        return None
    path, interpreter = script.path, script.interpreter
    rest = script.text.partition("\n")[2]
    is_whole = path.startswith("/")
    name = PurePath(path).name if is_whole else path
    # bash takes $0 from this variable.
    whole = f" BASH_ARGV0={shlex.quote(path)};" if is_whole else ""
    # zsh takes `command` for programs alone.
    cd = "builtin" if any(PurePath(word).name == "zsh" for word in interpreter) else "command"
    # The redirection hides the line from a trace (-x).
    begin = f"exec {SCRIPT_FD}<&-;{whole} {cd} cd -- {shlex.quote(cwd)} && unset OLDPWD;"
    return CopiedScript(
        [*interpreter, name, *script.words], name, f"{{ {begin} }} 2>/dev/null || exit 126\n{rest}"
    )


def _connect(stdin: int, log: int) -> None:
    """stdout and stderr go into one file, so that they stay in order."""
    for source, target in ((stdin, 0), (log, 1), (log, 2)):
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
    if stage == HELD:
        return HELD
    why = os.strerror(number) if number else "the runner failed"
    program = spec.argv[0] if spec.argv else ""
    if stage == "account":
        return f"The job could not become the account {spec.account}: {why}."
    if stage == "landlock":
        return f"The files of gpucoord could not be closed to the job (Landlock): {why}."
    if stage == "stdin":
        return f"The job's standard input could not be opened: {why}."
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


# The number of clone3 on every kind of machine, and its flag for a cgroup.
CLONE3, CLONE_INTO_CGROUP = 435, 0x200000000
# One thread steps in alone, which is all that a process has just after a fork.
V1_DOOR, V2_DOOR = "tasks", "cgroup.procs"
MYSELF = b"0"


def fork_into(folders: Sequence[Path]) -> int:
    """Like os.fork(), into the cgroup. Folders that cannot be entered are left out."""
    doors = [_door(folder) for folder in folders]
    birthplace = None
    if _is_alone():
        birthplace = next((d for d in doors if d.name == V2_DOOR and d.exists()), None)
    pid = None if birthplace is None else _born_in(birthplace.parent)
    if pid is None:
        birthplace, pid = None, os.fork()
    if pid == 0:
        for door in doors:
            if door != birthplace:
                _step_in(door)
    return pid


def _is_alone() -> bool:
    """Beside other threads only Python's own fork leaves the interpreter's lock in order."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _door(folder: Path) -> Path:
    v1 = folder / V1_DOOR
    return v1 if v1.exists() else folder / V2_DOOR


def _step_in(door: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, MYSELF)
        finally:
            os.close(descriptor)


def _born_in(folder: Path) -> int | None:
    """Fork into a cgroup; None: the kernel or a filter does not allow it, or it is no cgroup."""
    try:
        cgroup = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    arguments = struct.pack(
        "=11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup
    )
    # Holding the interpreter's lock: nothing of Python runs between the fork and its return.
    pid = ctypes.PyDLL(None).syscall(CLONE3, ctypes.create_string_buffer(arguments), len(arguments))
    os.close(cgroup)
    return pid if pid >= 0 else None


# Edge: start runners through a runner pool, which is replaced when it dies.


ROOT = Path(__file__).resolve().parents[2]
# The standard library comes first, so that no installed package replaces one of its modules.
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner import run; run.serve(int(sys.argv[2]))"
)
SEND_TIMEOUT_S = 1.0
# A pool that takes no order for this time hangs. An order takes some tens of milliseconds.
STUCK_S = 1.5
CLOSE_TIMEOUT_S = 3.0


class RunnerStarter:
    """Owns one runner pool. Use and close it in the process that created it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        # Orders that no runner has taken, and when one was last taken or the first came.
        self._waiting, self._progress_at = 0, 0.0

    def open(self) -> None:
        """Start the pool, so that the first job does not wait for it."""
        if self._orders is None:
            self._start()

    def spawn(self, folder: Path) -> bool:
        """Request a runner; False: the request failed. Repeat it if no runner claims it."""
        self.open()
        if not self._is_stuck() and self._send(folder):
            return True
        # Dead, or so stuck that it takes no more orders.
        self._end(patience_s=0)
        self._start()
        return self._send(folder)

    def close(self) -> None:
        """Let the pool finish its orders and end; the runners stay."""
        self._end(CLOSE_TIMEOUT_S)

    def _end(self, patience_s: float) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _is_stuck(self) -> bool:
        """Whether orders wait, and none of them has been taken for STUCK_S."""
        with suppress(OSError):
            while (orders := self._orders) and select.select([orders], [], [], 0)[0]:
                if not orders.recv(1):
                    break
                self._waiting -= 1
                self._progress_at = time.monotonic()
        return self._waiting > 0 and time.monotonic() - self._progress_at >= STUCK_S

    def _send(self, folder: Path) -> bool:
        with suppress(OSError):
            if self._orders is not None:
                self._orders.send(os.fsencode(folder))
                if self._waiting == 0:
                    self._progress_at = time.monotonic()
                self._waiting += 1
                return True
        return False

    def _start(self) -> None:
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Its queue is short: many jobs at once make us wait for it, a little.
        ours.settimeout(SEND_TIMEOUT_S)
        with peer:
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-S", "-c", PROGRAM, str(ROOT), str(peer.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(peer.fileno(),),
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        self._orders = ours
        self._waiting, self._progress_at = 0, time.monotonic()


def interpreter() -> str:
    """The real one: a virtual environment's needs longer to find its library."""
    return getattr(sys, "_base_executable", None) or sys.executable
