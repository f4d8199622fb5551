"""Policy: interactive jobs that leave their GPUs idle are warned, and then ended.

A minute without a measurement counts as use, so that no job is ended on unknown data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from monitor.facts.formats import duration
from monitor.facts.thresholds import threshold
from scheduler.queue.planner.sizing import GpuMinute

# A minute with less measured time is unknown.
LEAST_COVERAGE = 0.8
MINUTE = timedelta(minutes=1)


# The terminal shows a warning this many minutes before the end.
WARN_BEFORE_MINUTES = 10
# %: utilisation of one of the job's GPUs, mean of a minute, that counts as use.
BUSY_PCT = 5.0
# An interactive job without a connected terminal gets SIGHUP after this time.
RECONNECT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractivePolicy:
    """Idle rule and connection of interactive jobs (`gpucoord shell`)."""

    # fmt: off
    end_minutes: int = threshold(30, "End after idle", unit="min", ge=0, le=10_080,
        help="The job is cancelled after this time without use. Its terminal shows a warning 10 "
             "minutes before. 0 = never.")
    # fmt: on

    @property
    def warn_minutes(self) -> int:
        """Time without use after which the terminal shows a warning."""
        return max(1, self.end_minutes - WARN_BEFORE_MINUTES)


class Step(Enum):
    NOTHING = "nothing"
    WARN = "warn"
    FORGET = "forget"
    END = "end"


def used_at(minutes: Iterable[GpuMinute], started_at: datetime) -> datetime:
    """The end of the newest minute that counts as use; without such a minute, the start."""
    ends = [
        datetime.fromtimestamp(minute.t, UTC) + MINUTE
        for minute in minutes
        if _is_unknown(minute) or 100 * minute.sm_s >= BUSY_PCT * minute.known_s
    ]
    return max([started_at, *ends])


def _is_unknown(minute: GpuMinute) -> bool:
    return minute.known_s < LEAST_COVERAGE * minute.held_s or minute.known_s <= 0


def decide(
    used: datetime, warned_at: datetime | None, policy: InteractivePolicy, now: datetime
) -> Step:
    """The action that is due for a job whose GPUs were last used at `used`."""
    idle = now - used
    if not policy.end_minutes or idle < timedelta(minutes=policy.warn_minutes):
        return Step.NOTHING if warned_at is None else Step.FORGET
    if warned_at is None:
        return Step.WARN
    return Step.END if now >= ends_at(used, warned_at, policy) else Step.NOTHING


def ends_at(used: datetime, warned_at: datetime, policy: InteractivePolicy) -> datetime:
    """When the job is ended unless its GPUs are used."""
    notice = timedelta(minutes=max(0, policy.end_minutes - policy.warn_minutes))
    return max(used + timedelta(minutes=policy.end_minutes), warned_at + notice)


def warning(used: datetime, policy: InteractivePolicy, now: datetime) -> str:
    idle = duration((now - used).total_seconds())
    left = duration((ends_at(used, now, policy) - now).total_seconds())
    return (
        f"This job has used less than {BUSY_PCT:g} % of each of its GPUs for {idle}."
        f" The job ends in {left} unless they are used."
    )
