"""Policy: the utilisation target: how many jobs may share GPUs, so that their use stays in a band.

A PID controller changes a level, the number of jobs on GPUs, in whole steps. The process variable
is the smoothed use of all GPUs, including foreign processes. Within the band the level is constant,
and ended jobs are replaced. After a step the level is constant until its effect can be measured
(settle time). The integral is frozen during that time and while something else prevents starts. A
step that would end farther from the band is not made, because the level would oscillate on a
machine whose jobs are too large for the band. Idle GPUs always accept a job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from monitor.facts.thresholds import percent, threshold

# Gains of the PID controller: jobs per percentage point outside the target, per percentage point
# and second, and per percentage point per second of change.
GAIN, INTEGRAL_GAIN, DERIVATIVE_GAIN = 0.1, 0.01, 0.05
# Seconds over which the use is averaged.
SMOOTH_S = 30.0
# Seconds without further change after a start, until its load is visible.
SETTLE_S = 120.0
# %: one job may always start on a GPU without jobs whose use is below this.
QUIET_PCT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationPolicy:
    """Control loop that keeps shared GPUs within a target range of utilisation."""

    # fmt: off
    enabled: bool = threshold(True, "Control utilisation",
        "Limit jobs on shared GPUs to keep utilisation within the target (PID controller).")
    low_pct: float = percent(60.0, "Target from")
    high_pct: float = percent(80.0, "Target to")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.low_pct < self.high_pct:
            return {}
        return {"low_pct": "it must be below the upper end of the target"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """State of the controller. level: None = nothing was measured yet.

    use, running: at the previous tick. settles_t: the level is constant until then.
    """

    level: int | None = None
    integral: float = 0.0
    use: float | None = None
    running: int = 0
    settles_t: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationInput:
    """Input of the controller. use: smoothed use of all GPUs. others: foreign processes' part.

    running: jobs on GPUs. young: jobs whose load cannot be measured yet. quiet: idle GPUs without
    such jobs. gpus: their number. bound: what else prevents starts ("queue", "memory", "owner");
    "" = nothing.
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
        """The mean load of a job, of those whose load can be measured; None = unknown."""
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
    old: Level, inputs: UtilisationInput, policy: UtilisationPolicy, now_t: float, seconds: float
) -> Level:
    """The level, `seconds` after the previous tick."""
    use = old.use if inputs.use is None else inputs.use
    current = replace(old, use=use, running=inputs.running)
    if old.level is None or inputs.running > max(old.level, old.running):
        # Idle GPUs accepted more jobs than the level, or it is the first tick: start from there.
        return replace(current, level=inputs.running, integral=0.0, settles_t=now_t + SETTLE_S)
    if inputs.use is None or inputs.bound or now_t < old.settles_t:
        return current
    error = _error(inputs, policy)
    if error == 0:
        return replace(current, integral=0.0)
    most = _most_steps(inputs)
    integral = _integrated(old.integral, error * seconds, most)
    slope = 0.0 if old.use is None or seconds <= 0 else (inputs.use - old.use) / seconds
    wanted = GAIN * error + INTEGRAL_GAIN * integral - DERIVATIVE_GAIN * slope
    # One job more moves the mean of many GPUs little.
    step = _best(max(-1, min(most, int(wanted * max(1.0, inputs.gpus / 2)))), inputs, policy)
    if step == 0:
        return replace(current, integral=integral)
    level = max(0, inputs.running + step)
    return replace(current, level=level, integral=0.0, settles_t=now_t + SETTLE_S)


def _error(inputs: UtilisationInput, policy: UtilisationPolicy) -> float:
    """How far from the middle of the band, outside of it; 0 within.

    Too little counts only when the young ones will not mend it.
    """
    use, middle = inputs.use or 0.0, (policy.low_pct + policy.high_pct) / 2
    if use > policy.high_pct:
        return middle - use
    expected = inputs.expected
    return middle - expected if expected is not None and expected < policy.low_pct else 0.0


def _integrated(old: float, more: float, most: int) -> float:
    """Clamped; it never has the opposite sign of the error, so that past errors do not push on."""
    bound = most / INTEGRAL_GAIN
    return max(-bound, min(bound, (old if old * more > 0 else 0.0) + more))


def starts(level: Level, inputs: UtilisationInput, policy: UtilisationPolicy) -> int | None:
    """How many more jobs may start on GPUs; None = any number.

    There is no limit if all GPUs are idle, or if their use is unknown.
    """
    if not policy.enabled or inputs.use is None or inputs.quiet >= inputs.gpus:
        return None
    return max((level.level or 0) - inputs.running, inputs.quiet)


def target(policy: UtilisationPolicy) -> str:
    """Why no more starts, without a figure that moves: it is stored with each job that waits."""
    return (
        f"shared GPUs are kept {policy.low_pct:.0f} to {policy.high_pct:.0f} % busy, which leaves"
        " no room for one more."
    )


def _most_steps(inputs: UtilisationInput) -> int:
    """Several jobs at once if the load of a job is known."""
    return max(1, ceil(inputs.gpus / 2)) if inputs.each is None else max(4, inputs.gpus)


def _best(step: int, inputs: UtilisationInput, policy: UtilisationPolicy) -> int:
    """The number of steps that ends nearest to the band, and within it nearest to its middle.

    0 if the first step would end farther away.
    """
    each, sign = inputs.each, 1 if step > 0 else -1
    if not step or not each:
        return step
    use = (inputs.expected if sign > 0 else inputs.use) or 0.0
    middle = (policy.low_pct + policy.high_pct) / 2

    def away(size: int) -> tuple[float, float]:
        there = use + sign * size * each
        outside = max(policy.low_pct - there, there - policy.high_pct, 0.0)
        return outside, abs(there - middle)

    return sign * min(range(abs(step) + 1), key=away)
