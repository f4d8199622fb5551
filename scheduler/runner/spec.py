"""Edge: the runner's input (spec.json) and its reports (started.json, result.json)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import PurePath
from typing import Any, Self, cast, get_args, get_origin, get_type_hints

TEXT_LIMIT = 1000
# The last second of the year 9999, and the largest number of a column of 64 bits.
LAST_S, LAST_INT = 253_402_300_799, 2**63 - 1
# Fields whose columns take less.
LARGEST = {
    "exit_code": 255,
    "signal": 64,
    "pid": 2**31 - 1,
    "runner_pid": 2**31 - 1,
    "guardian_pid": 2**31 - 1,
}


class _Body:
    """Facts that travel as a JSON object; keys that a newer version wrote are passed over."""

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises TypeError when the object lacks a field."""
        return cls(**{key: value for key, value in body.items() if key in _names(cast(type, cls))})

    @classmethod
    def checked(cls, body: dict[str, Any]) -> Self | None:
        """For a file that a job may have written: None when a field lacks or has a wrong value."""
        try:
            made = cls.from_json(body)
        except TypeError:
            return None
        kinds = _kinds(cast(type, cls)).items()
        return made if all(_fits(name, getattr(made, name), kind) for name, kind in kinds) else None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _names(cast(type, type(self)))}


@cache
def _names(body: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(body))


@cache
def _kinds(body: type) -> dict[str, Any]:
    return get_type_hints(body)


@cache
def _options(kind: Any) -> tuple[Any, ...] | None:
    """The arguments of a type such as `int | None`; None: it is a plain one."""
    return None if get_origin(kind) is None else get_args(kind)


def _fits(name: str, value: object, kind: Any) -> bool:
    """Whether a value has the type of its field, and a column of the database can take it."""
    if (kinds := _options(kind)) is not None:
        return type(None) not in kinds or any(_fits(name, value, option) for option in kinds)
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and 0 <= value <= LAST_S
    if kind is int:
        return isinstance(value, int) and 0 <= value <= LARGEST.get(name, LAST_INT)
    if kind is str:
        return isinstance(value, str) and _is_storable(value)
    return isinstance(value, kind)


def _is_storable(text: str) -> bool:
    """PostgreSQL takes no NUL, and no database a lone surrogate."""
    if text.isascii():
        return "\0" not in text
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(_Body):
    """The command of an attempt and its environment. uid: None = the service's own account.

    yield_file: exists while the job is asked to leave its GPU; yield_signal: sent then. bounds: see
    `Bounds`. closed: paths that the job cannot open, except the opened or readable paths inside
    them (landlock.py). stdin_file: standard input; "" = none.
    umask: None = the default of jobs. limits: soft limits by the names of resource.RLIMIT_…,
    -1 = unlimited; those left out are the runner's.
    """

    job_id: int
    attempt: int
    nonce: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    account: str
    uid: int | None = None
    gid: int | None = None
    groups: list[int] | None = None
    time_limit_s: float | None = None
    grace_s: float = 10.0
    wake_folder: str = ""
    yield_file: str = ""
    yield_signal: str = ""
    stdin_file: str = ""
    umask: int | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(_Body):
    """The process that claimed the attempt: a runner, or (runner False) the executor.

    hears_yield: it handles SIGUSR1; runners of older versions ended on it. engine_ref: another
    engine's name of the task that the runner is in; "" = it is in none.
    """

    nonce: str
    runner: bool
    pid: int
    start_ticks: int
    boot_id: str
    hears_yield: bool = False
    engine_ref: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Body):
    """The identities of the runner, its guardian and the job's first process.

    started_at is epoch seconds. guardian_pid 0: a runner without one.
    """

    nonce: str
    account: str
    boot_id: str
    runner_pid: int
    runner_start_ticks: int
    pid: int
    start_ticks: int
    started_at: float
    guardian_pid: int = 0
    guardian_start_ticks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(_Body):
    """How an attempt ended.

    stopped: "asked" by a signal to the runner, "time_limit", "memory", or "yield" after its
    deadline.
    yielded: after a yield request. refused: the job did not start, because another program holds a
    lock of its GPUs. out_of_memory: the kernel killed a process of the job, because its cgroup or
    the host had no memory left.

    exit_code and signal are those of the first process. cpu_s is the sum over all processes.
    peak_memory_bytes is the larger of two: the peak of the largest process, and the most that all
    held together at checks some seconds apart. It is at least about 12 MiB, because a process
    begins as a copy of the runner.
    """

    nonce: str
    ended_at: float
    exit_code: int | None = None
    signal: int | None = None
    stopped: str | None = None
    yielded: bool = False
    problem: str | None = None
    refused: str | None = None
    out_of_memory: bool = False
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    log_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(_Body):
    """Isolation and limits of a job. Empty or None: not requested, or not available here.

    gpus: indices of the GPUs whose lock files are held, `alone` or shared, for the gpucoord
    `instance`. cgroup: folders in which the job gets its cgroup; or scope: "system" or "user" =
    created by systemd. cpus, memory_bytes, pids: limits for all its processes together.
    process_memory_bytes: of each process. hidden: (major, minor) of GPU device files that it cannot
    open. share_pct: part of each period of
    period_s in which it may run. log_bytes: maximum size of the log.
    """

    lock_folder: str = ""
    gpus: list[int] = field(default_factory=list)
    alone: bool = False
    instance: int | None = None
    cgroup: list[str] = field(default_factory=list)
    scope: str = ""
    cpus: float | None = None
    memory_bytes: int | None = None
    process_memory_bytes: int | None = None
    pids: int | None = None
    hidden: list[list[int]] = field(default_factory=list)
    share_pct: int | None = None
    period_s: float = 0.5
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScriptArgv:
    """A shell script that was copied at submission, as it stands in the argv of its job."""

    interpreter: list[str]
    text: str
    path: str
    words: list[str]


def script_in(argv: Sequence[str]) -> ScriptArgv | None:
    """argv: the shell that the text names in its first line, -c, the text, its path, arguments."""
    at = argv.index("-c") if "-c" in argv[:-2] else 0
    text = argv[at + 1] if at else ""
    first = text.partition("\n")[0]
    try:
        interpreter = shlex.split(first[2:])
    except ValueError:
        return None
    if not first.startswith("#!") or interpreter != list(argv[:at]):
        return None
    path, *words = argv[at + 2 :]
    is_file = PurePath(path).name not in ("", "..")
    return ScriptArgv(interpreter, text, path, words) if is_file else None
