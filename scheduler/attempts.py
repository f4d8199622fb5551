"""Facts: which processes an attempt at running a job is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scheduler.jobs import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which processes an attempt is, as its runner wrote it down."""

    account: str
    runner_pid: int
    runner_start_ticks: int
    pid: int
    start_ticks: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended. None = not known."""

    outcome: Outcome
    ended_at: datetime
    exit_code: int | None = None
    signal: int | None = None
    problem: str = ""
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    log_bytes: int | None = None
