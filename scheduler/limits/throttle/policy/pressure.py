"""Policy: backpressure: which priority classes are deferred because of load, and for how long;
and the level of the utilisation target.

The first deferral lasts 30 s. Each further one lasts twice as long, up to a cap, until the machine
has been calm for `FORGET_S`. A deferral ends when its time is over and no load signal is left, or
when the machine has been calm for `CALM_S`. So a job that is submitted during a long deferral waits
for its first 30 s like any other, and never longer than that after the load has gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading
from monitor.facts.thresholds import percent, threshold
from monitor.incidents.policy.constraints import Gauge
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import PriorityClass

# In the order in which load defers them.
CLASSES = (PriorityClass.BACKGROUND, PriorityClass.NORMAL, PriorityClass.USER_INITIATED)


# %: all thresholds of load are this much lower for background jobs.
BACKGROUND_EARLIER_PCT = 10.0
# Seconds of the first deferral, and of the longest one.
FIRST_S, CAP_S = 30.0, 240.0
# %: from the second deferral on, so that hosts do not retry in step.
JITTER_PCT = 10.0
# Seconds of calm that end a deferral, and after which the next one is a first one.
CALM_S, FORGET_S = 30.0, 300.0
# Seconds over which the use of a GPU is averaged.
SMOOTH_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PressurePolicy:
    """Deferral of job starts under load. The policy of constraints has the host's thresholds."""

    # fmt: off
    gpu_busy_pct: float = percent(80.0, "GPU busy above",
        "A busy GPU gets no new normal or background jobs. 100 = never.")
    gpu_calm_pct: float = percent(70.0, "GPU calm below")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.gpu_calm_pct > self.gpu_busy_pct:
            return {"gpu_calm_pct": "it must not be above the value for busy"}
        return {}


class LoadSignal(Struct, frozen=True):
    """One reason for backpressure. label and value are logged as gpu_util=91.

    of_gpus: it does not affect jobs without a GPU.
    """

    label: str
    text: str
    value: float | None = None
    hard: bool = False
    of_gpus: bool = False

    def __str__(self) -> str:
        return self.label if self.value is None else f"{self.label}={self.value:.0f}"


class Deferral(Struct, frozen=True, kw_only=True):
    """The deferral of a priority class; times are epoch seconds.

    number: count of deferrals since the last long calm. calm_t: since when there is no load signal.
    over_t: when it ended; it is stored so that the next deferral can be longer.
    """

    number: int
    since_t: float
    until_t: float
    strains: tuple[LoadSignal, ...] = ()
    calm_t: float | None = None
    over_t: float | None = None

    @property
    def holds(self) -> bool:
        return self.over_t is None

    @property
    def hard(self) -> bool:
        return any(signal.hard for signal in self.strains)


def deferred(
    old: Deferral | None,
    strains: Sequence[LoadSignal],
    now_t: float,
    seed: str = "",
) -> Deferral | None:
    """The deferral of one class now; None = none, and none remembered."""
    if strains:
        return _strained(old, tuple(strains), now_t, seed)
    if old is None:
        return None
    if old.over_t is not None:
        return old if now_t - old.over_t < FORGET_S else None
    calm_t = now_t if old.calm_t is None else old.calm_t
    if now_t >= old.until_t or now_t - calm_t >= CALM_S:
        return replace(old, calm_t=calm_t, over_t=now_t)
    return replace(old, calm_t=calm_t)


def _strained(
    old: Deferral | None,
    strains: tuple[LoadSignal, ...],
    now_t: float,
    seed: str,
) -> Deferral:
    if old is not None and old.holds and now_t < old.until_t:
        return replace(old, strains=strains, calm_t=None)
    is_new = old is None or (old.over_t is not None and now_t - old.over_t >= FORGET_S)
    number = 1 if old is None or is_new else old.number + 1
    since_t = old.since_t if old is not None and old.holds else now_t
    until_t = now_t + delay_s(number, seed)
    return Deferral(number=number, since_t=since_t, until_t=until_t, strains=strains)


def delay_s(number: int, seed: str = "") -> float:
    """How long deferral `number` lasts: the same for the same seed."""
    plain = min(CAP_S, FIRST_S * 2.0 ** min(number - 1, 30))
    if number <= 1:
        return plain
    part = zlib.crc32(f"{seed}/{number}".encode()) / 0xFFFFFFFF
    return plain * (1 + JITTER_PCT / 100 * (2 * part - 1))


def saturated(
    loads: Mapping[str, float | None],
    saturated_before: Collection[str],
    policy: PressurePolicy,
    *,
    earlier: bool = False,
) -> frozenset[str]:
    """GPUs whose smoothed use is too high for further jobs. Unknown use changes nothing."""
    if policy.gpu_busy_pct >= 100:
        return frozenset()
    lower = BACKGROUND_EARLIER_PCT if earlier else 0.0
    busy = set()
    for uuid, load in loads.items():
        was_busy = uuid in saturated_before
        least = (policy.gpu_calm_pct if was_busy else policy.gpu_busy_pct) - lower
        if was_busy if load is None else load > least:
            busy.add(uuid)
    return frozenset(busy)


def early(
    gauges: Sequence[Gauge], kinds_before: Collection[str]
) -> tuple[tuple[LoadSignal, ...], frozenset[str]]:
    """Load signals for background jobs only, and their kinds (input of the next call)."""
    lower = BACKGROUND_EARLIER_PCT
    over = [g for g in gauges if _is_early(g, g.kind in kinds_before, lower)]
    strains = tuple(
        LoadSignal(g.label, f"{g.subject} above {g.opens - lower:.0f} %", g.value) for g in over
    )
    return strains, frozenset(gauge.kind for gauge in over)


def _is_early(gauge: Gauge, was_early: bool, lower: float) -> bool:
    """An unknown value keeps the previous state."""
    is_over = gauge.is_over(was_early, lower)
    return was_early if is_over is None else is_over


def of_host(deferral: Deferral) -> tuple[LoadSignal, ...]:
    """The load signals that also affect jobs without a GPU."""
    return tuple(signal for signal in deferral.strains if not signal.of_gpus)


def closed(deferrals: Mapping[PriorityClass, Deferral]) -> dict[PriorityClass, Blocker]:
    """Blockers by class. Their end is unknown, because another deferral may follow."""
    return {
        kind: _blocker(kind, deferral, of_host(deferral))
        for kind, deferral in deferrals.items()
        if deferral.holds and of_host(deferral)
    }


def _blocker(kind: PriorityClass, deferral: Deferral, strains: Sequence[LoadSignal]) -> Blocker:
    return Blocker(
        code=BlockerCode.PRESSURE,
        tier=Tier.MACHINE,
        holder=", ".join(signal.label for signal in strains),
        details=details(
            kind=kind.value,
            hard=deferral.hard,
            strains=", ".join(signal.text for signal in strains),
        ),
    )


def closed_gpus(
    deferrals: Mapping[PriorityClass, Deferral],
    busy: Mapping[PriorityClass, frozenset[str]],
    usable: Sequence[GpuReading],
    policy: PressurePolicy,
) -> dict[PriorityClass, dict[str, Blocker]]:
    """Blockers of busy GPUs; of all GPUs while a deferral concerns all of them.

    Throttled GPUs are left out, because their health closes them already.
    """
    blockers: dict[PriorityClass, dict[str, Blocker]] = {}
    for kind, uuids in busy.items():
        deferral = deferrals.get(kind)
        all_wait = deferral is not None and deferral.holds and _is_of_gpus(deferral)
        lower = BACKGROUND_EARLIER_PCT if kind is PriorityClass.BACKGROUND else 0.0
        closed = {
            gpu.uuid: _busy_gpu(gpu, kind, policy.gpu_busy_pct - lower)
            for gpu in usable
            if (all_wait or gpu.uuid in uuids) and gpu.condition is not Condition.THROTTLED
        }
        if closed:
            blockers[kind] = closed
    return blockers


def _is_of_gpus(deferral: Deferral) -> bool:
    return any(signal.of_gpus for signal in deferral.strains)


def _busy_gpu(gpu: GpuReading, kind: PriorityClass, limit: float) -> Blocker:
    return Blocker(
        code=BlockerCode.PRESSURE,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        details=details(kind=kind.value, limit_pct=limit),
    )


def line(
    job_id: int, deferral: Deferral, now_t: float, *, is_new: bool = False
) -> tuple[str, dict[str, int]]:
    """The log line of a deferred job, and its figures: `seconds`, and each signal by its label.

    is_new: the job was submitted during the deferral.
    """
    left_s = max(0.0, deferral.until_t - now_t)
    seconds = round(min(left_s, FIRST_S) if is_new else left_s)
    why = ", ".join(str(signal) for signal in deferral.strains)
    values = {s.label: round(s.value) for s in deferral.strains if s.value is not None}
    text = f"System under load, deferring job {job_id} for {seconds} s ({why})"
    return text, {"seconds": seconds, **values}


def waiting_classes(deferrals: Mapping[PriorityClass, Deferral]) -> tuple[PriorityClass, ...]:
    """The deferred classes, background first."""
    return tuple(kind for kind in CLASSES if (d := deferrals.get(kind)) is not None and d.holds)


def is_overloaded(deferrals: Mapping[PriorityClass, Deferral]) -> bool:
    """Whether several load signals defer normal jobs, or a hard one prevents all starts."""
    normal = deferrals.get(PriorityClass.NORMAL)
    if normal is None or not normal.holds:
        return False
    return normal.hard or len(normal.strains) > 1


# The utilisation target: how many jobs may share GPUs, so that their use stays in a band.
#
# A PID controller changes a level, the number of jobs on GPUs, in whole steps. The process
# variable is the smoothed use of all GPUs, including foreign processes. Within the band the level
# is constant, and ended jobs are replaced. After a step the level is constant until its effect
# can be measured (settle time). The integral is frozen during that time and while something else
# prevents starts. A step that would end farther from the band is not made, because the level
# would oscillate on a machine whose jobs are too large for the band. Idle GPUs always accept a
# job.


# Gains of the PID controller: jobs per percentage point outside the target, per percentage point
# and second, and per percentage point per second of change.
GAIN, INTEGRAL_GAIN, DERIVATIVE_GAIN = 0.1, 0.01, 0.05
# Seconds over which the use is averaged.
TARGET_SMOOTH_S = 30.0
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


class Level(Struct, frozen=True, kw_only=True):
    """State of the controller. level: None = nothing was measured yet.

    use, running: at the previous tick. settles_t: the level is constant until then.
    """

    level: int | None = None
    integral: float = 0.0
    use: float | None = None
    running: int = 0
    settles_t: float = 0.0


class UtilisationInput(Struct, frozen=True, kw_only=True):
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
