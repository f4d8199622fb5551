"""Policy: how many jobs may run beside each other, so that the GPUs' use stays within a band.

A PID controller moves a level, the number of our jobs on GPUs, by whole steps: measured is the
smoothed use of all GPUs, others' work included. Within the band nothing moves, and what ends is
replaced. After a step nothing moves until its effect can be seen (settle time); the integral stands
still then, and whenever something else keeps jobs from starting. A step that would end farther from
the band than it began is not made. GPUs that do nothing are always free to take a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

PCT = {"unit": "%", "least": 0, "most": 100}
GAIN = {"unit": "", "least": 0, "most": 10}
SECONDS = {"unit": "s", "least": 1, "most": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationPolicy:
    """The band and the gains."""

    enabled: bool = field(
        default=True,
        metadata={"label": "Keep GPUs within the band", "help": "Where GPUs are shared."},
    )
    low_pct: float = field(default=60.0, metadata={"label": "Band from", "help": "", **PCT})
    high_pct: float = field(default=80.0, metadata={"label": "Band to", "help": "", **PCT})
    gain: float = field(
        default=0.1, metadata={"label": "Gain (P)", "help": "Jobs per % outside.", **GAIN}
    )
    integral_gain: float = field(
        default=0.01, metadata={"label": "Integral gain (I)", "help": "Per % and second.", **GAIN}
    )
    derivative_gain: float = field(
        default=0.05, metadata={"label": "Derivative gain (D)", "help": "Of the use.", **GAIN}
    )
    smooth_s: float = field(
        default=30.0, metadata={"label": "Use is a mean of", "help": "", **SECONDS}
    )
    settle_s: float = field(
        default=90.0,
        metadata={
            "label": "Settle time",
            "help": "From a start until its load is there and seen: no further step before.",
            **SECONDS,
        },
    )
    quiet_pct: float = field(
        default=10.0,
        metadata={
            "label": "A GPU does nothing below",
            "help": "If none of our jobs is on it, one may always start.",
            **PCT,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What the controller remembers. `level` None = no limit was needed yet.

    `use`: as of the last look; `settles_t`: until then nothing moves.
    """

    level: int | None = None
    integral: float = 0.0
    use: float | None = None
    settles_t: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What it sees. `use`: smoothed use of the GPUs that are ours, `others`: others' part of it.

    `running`: our jobs on GPUs; `quiet`: GPUs that do nothing and have none of them; `gpus`: all.
    `bound`: what else keeps jobs from starting ("queue", "memory", "owner"); "" = nothing.
    """

    use: float | None
    others: float | None
    running: int
    quiet: int
    gpus: int
    bound: str = ""


def looked(
    old: Level, sight: Sight, policy: UtilisationPolicy, now_t: float, seconds: float
) -> Level:
    """The level after a look, `seconds` after the look before."""
    known = old if sight.use is None else replace(old, use=sight.use)
    if old.level is None or sight.running > old.level:
        # Idle GPUs took more than the level, or it is the first look: go on from there.
        return replace(known, level=sight.running, integral=0.0, settles_t=now_t + policy.settle_s)
    if sight.use is None or sight.bound or now_t < old.settles_t:
        return known
    error = outside(sight.use, policy)
    if error == 0:
        return replace(known, integral=0.0)
    most = _most_steps(sight)
    bound = most / policy.integral_gain if policy.integral_gain else 0.0
    # Clamped, and never of the other sign than the error: what is past must not push on.
    integral = old.integral if old.integral * error > 0 else 0.0
    integral = max(-bound, min(bound, integral + error * seconds))
    slope = 0.0 if old.use is None or seconds <= 0 else (sight.use - old.use) / seconds
    wanted = policy.gain * error + policy.integral_gain * integral - policy.derivative_gain * slope
    step = _allowed(max(-1, min(most, int(wanted))), sight, policy)
    if step == 0:
        return replace(known, integral=integral)
    level = max(0, sight.running + step)
    return replace(known, level=level, integral=0.0, settles_t=now_t + policy.settle_s)


def outside(use: float, policy: UtilisationPolicy) -> float:
    """How far below the band (> 0) or above it (< 0); 0 within."""
    return max(0.0, policy.low_pct - use) + min(0.0, policy.high_pct - use)


def starts(level: Level, sight: Sight, policy: UtilisationPolicy) -> int | None:
    """How many more jobs may start on GPUs now; None = any.

    A machine whose GPUs all do nothing is never held back, nor one whose use nobody can tell.
    """
    if not policy.enabled or sight.use is None or sight.quiet >= sight.gpus:
        return None
    return max((level.level or 0) - sight.running, sight.quiet)


def _most_steps(sight: Sight) -> int:
    return max(1, ceil(sight.gpus / 2))


def _allowed(step: int, sight: Sight, policy: UtilisationPolicy) -> int:
    """As many steps as bring the use nearer to the band, by what a job of ours takes now."""
    use = sight.use or 0.0
    if not step or not sight.running or sight.others is None:
        return step
    each = max(0.0, use - sight.others) / sight.running
    sign = 1 if step > 0 else -1
    here = abs(outside(use, policy))
    for size in range(abs(step), 0, -1):
        if abs(outside(use + sign * size * each, policy)) < here:
            return sign * size
    return 0
