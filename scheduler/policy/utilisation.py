"""Policy: how many jobs may run beside each other, so that the GPUs' use stays within a band.

A PID controller moves a level, the number of our jobs on GPUs, by whole steps: measured is the
smoothed use of all GPUs, others' work included. Within the band nothing moves, and what ends is
replaced. After a step nothing moves until its effect can be seen (settle time); the integral stands
still then, and whenever something else keeps jobs from starting. A step that would end farther from
the band than it began is not made: a machine whose jobs are too large for the band would swing for
ever. GPUs that do nothing are always free to take a job.
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
        default=120.0,
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

    def conflicts(self) -> dict[str, str]:
        if self.low_pct < self.high_pct:
            return {}
        return {"low_pct": "it must be below where the band ends."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What the controller remembers. `level` None = nothing was seen yet.

    `use`, `running`: as of the last look; `settles_t`: until then nothing moves.
    """

    level: int | None = None
    integral: float = 0.0
    use: float | None = None
    running: int = 0
    settles_t: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What it sees. `use`: smoothed use of the GPUs that are ours, `others`: others' part of it.

    `running`: our jobs on GPUs, `young`: those of them whose load can't be seen yet; `quiet`: GPUs
    that do nothing and have none of them; `gpus`: all. `bound`: what else keeps jobs from starting
    ("queue", "memory", "owner"); "" = nothing.
    """

    use: float | None
    others: float | None
    running: int
    quiet: int
    gpus: int
    young: int = 0
    bound: str = ""

    @property
    def each(self) -> float | None:
        """What one of our jobs takes, of those whose load can be seen; None = unknown."""
        ripe = self.running - self.young
        if self.use is None or self.others is None or ripe <= 0:
            return None
        return max(0.0, self.use - self.others) / ripe

    @property
    def expected(self) -> float | None:
        """The use once the young ones work like the others."""
        if self.use is None or not self.young:
            return self.use
        each = self.each
        return None if each is None else min(100.0, self.use + self.young * each)


def looked(
    old: Level, sight: Sight, policy: UtilisationPolicy, now_t: float, seconds: float
) -> Level:
    """The level after a look, `seconds` after the look before."""
    use = old.use if sight.use is None else sight.use
    known = replace(old, use=use, running=sight.running)
    if old.level is None or sight.running > max(old.level, old.running):
        # Idle GPUs took more than the level, or it is the first look: go on from there.
        return replace(known, level=sight.running, integral=0.0, settles_t=now_t + policy.settle_s)
    if sight.use is None or sight.bound or now_t < old.settles_t:
        return known
    error = _error(sight, policy)
    if error == 0:
        return replace(known, integral=0.0)
    most = _most_steps(sight)
    integral = _integrated(old.integral, error * seconds, most, policy)
    slope = 0.0 if old.use is None or seconds <= 0 else (sight.use - old.use) / seconds
    wanted = policy.gain * error + policy.integral_gain * integral - policy.derivative_gain * slope
    # One job more moves the mean of many GPUs little.
    step = _best(max(-1, min(most, int(wanted * max(1.0, sight.gpus / 2)))), sight, policy)
    if step == 0:
        return replace(known, integral=integral)
    level = max(0, sight.running + step)
    return replace(known, level=level, integral=0.0, settles_t=now_t + policy.settle_s)


def _error(sight: Sight, policy: UtilisationPolicy) -> float:
    """How far from the middle of the band, outside of it; 0 within.

    Too little counts only when the young ones will not mend it.
    """
    use, middle = sight.use or 0.0, (policy.low_pct + policy.high_pct) / 2
    if use > policy.high_pct:
        return middle - use
    expected = sight.expected
    return middle - expected if expected is not None and expected < policy.low_pct else 0.0


def _integrated(old: float, more: float, most: int, policy: UtilisationPolicy) -> float:
    """Clamped, and never of the other sign than the error: what is past must not push on."""
    bound = most / policy.integral_gain if policy.integral_gain else 0.0
    return max(-bound, min(bound, (old if old * more > 0 else 0.0) + more))


def starts(level: Level, sight: Sight, policy: UtilisationPolicy) -> int | None:
    """How many more jobs may start on GPUs now; None = any.

    A machine whose GPUs all do nothing is never held back, nor one whose use nobody can tell.
    """
    if not policy.enabled or sight.use is None or sight.quiet >= sight.gpus:
        return None
    return max((level.level or 0) - sight.running, sight.quiet)


def target(policy: UtilisationPolicy) -> str:
    """Why no more starts, without a figure that moves: it is stored with each job that waits."""
    return (
        f"shared GPUs are kept {policy.low_pct:.0f} to {policy.high_pct:.0f} % busy, which leaves"
        " no room for one more."
    )


def _most_steps(sight: Sight) -> int:
    """More at once where it is known what a job takes."""
    return max(1, ceil(sight.gpus / 2)) if sight.each is None else max(4, sight.gpus)


def _best(step: int, sight: Sight, policy: UtilisationPolicy) -> int:
    """So many of these steps as end nearest to the band, and in it nearest to its middle.

    None at all where the first one would end farther away than it began.
    """
    each, sign = sight.each, 1 if step > 0 else -1
    if not step or not each:
        return step
    use = (sight.expected if sign > 0 else sight.use) or 0.0
    middle = (policy.low_pct + policy.high_pct) / 2

    def away(size: int) -> tuple[float, float]:
        there = use + sign * size * each
        outside = max(policy.low_pct - there, there - policy.high_pct, 0.0)
        return outside, abs(there - middle)

    return sign * min(range(abs(step) + 1), key=away)
