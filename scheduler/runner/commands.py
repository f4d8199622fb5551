"""Edge: run a short command, as another account if needed, with bounded time and output."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from monitor.facts import input_rules
from scheduler.runner.accounts import Account
from scheduler.runner.launch import interpreter

MOST_OUTPUT, MOST_ERRORS, PIECE = 64 * 1024**2, 16_384, 65_536
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class CommandAccount:
    """uid None: the service's own account."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """code: None when the command could not be started, or took too long and was killed."""

    code: int | None
    output: str
    errors: str

    @property
    def is_ok(self) -> bool:
        return self.code == 0


SERVICE = CommandAccount()


def run_command(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    account: CommandAccount = SERVICE,
    cwd: str = "/",
) -> CommandResult:
    """Run it without input. It gets no environment but `env` and a PATH."""
    as_other = account.uid is not None and account.uid != os.geteuid()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", **(env or {})},
            cwd=cwd if Path(cwd).is_dir() else "/",
            start_new_session=True,
            user=account.uid if as_other else None,
            group=account.gid if as_other else None,
            extra_groups=list(account.groups) if as_other else None,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return CommandResult(None, "", _describe(argv[0], error))
    with process:
        try:
            out, err = _read(process, timeout_s)
        except subprocess.TimeoutExpired:
            # Nothing more is read: a process of the account may hold the other ends open.
            _kill_group(process.pid)
            return CommandResult(None, "", f"{argv[0]} gave no answer within {timeout_s:g} s")
    if len(out) > MOST_OUTPUT:
        most = f"more than {MOST_OUTPUT // 1024**2} MiB"
        return CommandResult(None, "", f"{argv[0]} gave an answer of {most}, which is not read")
    return CommandResult(
        process.returncode,
        out.decode(errors="replace"),
        err.decode(errors="replace").strip(),
    )


def _read(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    """The beginning of its output and the end of its errors. Raises TimeoutExpired."""
    deadline = time.monotonic() + timeout_s
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as pipes:
        for pipe, text in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                pipes.register(pipe, selectors.EVENT_READ, text)
        while pipes.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in pipes.select(left):
                piece = os.read(key.fd, PIECE)
                if not piece:
                    pipes.unregister(key.fileobj)
                elif key.data is err:
                    err += piece
                    del err[:-MOST_ERRORS]
                elif len(out) <= MOST_OUTPUT:
                    out += piece
    process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(out), bytes(err)


def _kill_group(pid: int) -> None:
    """The command leads a session of its own, and has not been reaped, so its pid is its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, 9)


def _describe(program: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{program} is not installed"
    return f"{program} could not be started: {error}"


# Edge: the folders in a folder, read by a process of the user's own account.


PROGRAM = Path(__file__).with_name("programs") / "folders.py"
MOST_FOLDERS = 200
# A network file system may not answer.
LONGEST_S = 3.0


@dataclass(frozen=True, slots=True)
class Listing:
    """path: the folder, or the nearest one above the path that is there."""

    path: str
    parent: str = "/"
    folders: tuple[str, ...] = ()
    has_more: bool = False
    problem: str = ""


def list_folders(path: str, account: Account, closed: Path) -> Listing:
    """The folders that the account may read; none in the folder `closed`.

    The program starts as the service, because the account may not be able to read gpucoord's own
    files, and becomes the account before it looks at the path.
    """
    argv = [interpreter(), "-I", "-S", str(PROGRAM), path, str(closed.resolve()), str(MOST_FOLDERS)]
    if account.uid is not None and account.gid is not None:
        argv += [str(account.uid), str(account.gid), ",".join(map(str, account.groups))]
    result = run_command(argv, timeout_s=LONGEST_S)
    if not result.is_ok:
        return Listing(path, problem=f"The folder could not be read: {result.errors[-200:]}.")
    answer = input_rules.parse_json(result.output)
    return Listing(
        answer["path"],
        answer["parent"],
        tuple(answer["folders"]),
        answer["more"],
        answer["problem"],
    )
