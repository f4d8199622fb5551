"""Edge: what a runner is told (spec.json) and what it reports (started.json, result.json)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

TEXT_LIMIT = 1000


class _Body:
    """Facts that travel as a JSON object; keys that a newer version wrote are passed over."""

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in body.items() if key in known})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(_Body):
    """What to run, and how. uid None = as the service's own account.

    yield_file: where the job is told to leave its GPU; yield_signal: what it wants to hear then.
    bounds: what `Bounds` knows.
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
    bounds: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(_Body):
    """Who took the attempt: a runner, or (runner false) somebody who gave it up.

    hears_yield: it knows what SIGUSR1 means; older ones died of it.
    """

    nonce: str
    runner: bool
    pid: int
    start_ticks: int
    boot_id: str
    hears_yield: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Body):
    """The runner's identity and that of the job's first process; started_at is epoch seconds."""

    nonce: str
    account: str
    boot_id: str
    runner_pid: int
    runner_start_ticks: int
    pid: int
    start_ticks: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(_Body):
    """How the attempt ended. `stopped`: "asked" by a signal to the runner, "time_limit", or "yield"
    when it had not left by itself. `yielded`: the job had been told to leave its GPU.

    `refused`: nothing ran, because somebody else holds a lock of its GPUs. `out_of_memory`: the
    kernel killed a process of it because its cgroup or the host had no more.

    exit_code and signal are those of the first process; cpu_s sums up all of them,
    peak_memory_bytes is that of the largest (which begins as a copy of the runner: some 12 MiB
    are the least that is ever reported).
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
