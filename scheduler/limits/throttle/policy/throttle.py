"""Policy: the throttle and the mode of a host, computed by the controller at each tick."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import exp

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot
from monitor.facts.thresholds import percent, threshold
from monitor.gpus.policy.capability import hidden
from monitor.gpus.policy.states import HELD_BYTES
from monitor.incidents.policy.constraints import Constraint, ConstraintEffect, Gauge
from scheduler.facts.jobs import PriorityClass
from scheduler.facts.plans import Throttle
from scheduler.limits.throttle.policy import pressure
from scheduler.limits.throttle.policy.pressure import (
    CLASSES,
    Deferral,
    Level,
    LoadSignal,
    PressurePolicy,
    UtilisationInput,
    UtilisationPolicy,
)
from scheduler.limits.time_windows.policy import SATURATED_PCT, TRUSTED_AFTER_S

# How much of each GPU quotas may count with, beside others' load, hogs and the mode.

# %: the load must fall this far below a threshold before the multiplier rises again.
MARGIN_PCT = 5.0
# Multipliers while the load of other users cannot be measured, and during overuse of the GPU.
UNKNOWN_MULTIPLIER, HOG_MULTIPLIER = 0.5, 0.1
# The multiplier is never less, except while a GPU is paused.
LEAST_MULTIPLIER = 0.1
# Seconds over which the load is averaged, and the % of them that must be known.
SMOOTH_S, COVERAGE_PCT = 60.0, 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePolicy:
    """Load tiers of a GPU, and the multiplier of each tier."""

    # fmt: off
    free_below_pct: float = percent(30.0, "Low load below",
        "Other users' load that leaves the whole GPU available. Multipliers reduce each user's "
        "share of a GPU while other users are on it, never on an empty GPU. Daily GPU-minutes are "
        "not scaled.")
    busy_above_pct: float = percent(70.0, "High load above",
        "Other users' load that leaves little of the GPU available.")
    middle_multiplier: float = threshold(0.5, "Multiplier at medium load", unit="×", ge=0, le=1)
    busy_multiplier: float = threshold(0.1, "Multiplier at high load", unit="×", ge=0, le=1)
    pause: bool = threshold(False, "Pause at high load",
        "Quotas on a GPU with high load are reduced to zero.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.free_below_pct < self.busy_above_pct:
            return {}
        return {"free_below_pct": "it must be below the value for high load"}


class LoadTier(StrEnum):
    """How much of a GPU others take."""

    FREE = "free"
    MIDDLE = "middle"
    BUSY = "busy"
    UNKNOWN = "unknown"


def external_pct(gpu: GpuReading, processes: Sequence[ProcessReading]) -> float | None:
    """GPU time of processes that are not jobs, in percent; None = unknown.

    If some of these are unknown, it is the use of the GPU minus that of jobs. A GPU that lists only
    jobs has no external load. A busy GPU that lists no processes is loaded by others.
    """
    foreign = [p.sm_pct for p in processes if p.job_ref is None]
    own = [p.sm_pct for p in processes if p.job_ref is not None]
    measured = [share for share in foreign if share is not None]
    if foreign and len(measured) == len(foreign):
        return min(100.0, sum(measured))
    if not foreign and (own or _is_empty(gpu)):
        return 0.0
    measured_own = [share for share in own if share is not None]
    if gpu.utilization_pct is None or len(measured_own) < len(own):
        return None
    return min(100.0, max(sum(measured), gpu.utilization_pct - sum(measured_own)))


def _is_empty(gpu: GpuReading) -> bool:
    """A process without memory on a GPU cannot load it."""
    used = gpu.memory_used_bytes
    return not gpu.utilization_pct and used is not None and used < HELD_BYTES


def tier(load: float | None, before: LoadTier | None, policy: AdaptivePolicy) -> LoadTier:
    """`load`: the smoothed one. A tier is left downwards only by a margin."""
    if load is None:
        return LoadTier.UNKNOWN
    margin = MARGIN_PCT
    busy_above = policy.busy_above_pct - (margin if before is LoadTier.BUSY else 0)
    was_more = before in (LoadTier.BUSY, LoadTier.MIDDLE)
    free_below = policy.free_below_pct - (margin if was_more else 0)
    if load > busy_above:
        return LoadTier.BUSY
    return LoadTier.FREE if load < free_below else LoadTier.MIDDLE


def multiplier(
    load: LoadTier, policy: AdaptivePolicy, *, hog: bool = False, mode: float = 1.0
) -> float:
    """The usable part of a GPU, 0..1; at least the minimum, unless the GPU is paused."""
    if load is LoadTier.BUSY and policy.pause:
        return 0.0
    of_load = {
        LoadTier.FREE: 1.0,
        LoadTier.MIDDLE: policy.middle_multiplier,
        LoadTier.BUSY: policy.busy_multiplier,
        LoadTier.UNKNOWN: UNKNOWN_MULTIPLIER,
    }[load]
    product = of_load * (HOG_MULTIPLIER if hog else 1.0) * mode
    return min(1.0, max(LEAST_MULTIPLIER, product))


# The state of the throttle.

# A value counts for the time since the previous tick, at most this long.
MOST_GAP_S = 15.0


class Smoothed(Struct, frozen=True, array_like=True):
    """`total`: the weight of all time, `known_weight`: of the time in which the value was known."""

    sum: float = 0.0
    known_weight: float = 0.0
    total: float = 0.0

    def fed(self, value: float | None, seconds: float, smooth_s: float) -> Smoothed:
        """With a value measured `seconds` after the previous one; None = unknown."""
        gap = max(0.0, seconds - MOST_GAP_S)
        aged = self._aged(gap, smooth_s) if gap else self
        keep = exp(-min(max(seconds, 0.001), MOST_GAP_S) / smooth_s)
        weight = 0.0 if value is None else 1 - keep
        return Smoothed(
            aged.sum * keep + weight * (value or 0.0),
            aged.known_weight * keep + weight,
            aged.total * keep + 1 - keep,
        )

    def _aged(self, seconds: float, smooth_s: float) -> Smoothed:
        keep = exp(-seconds / smooth_s)
        return Smoothed(self.sum * keep, self.known_weight * keep, self.total * keep + 1 - keep)

    def mean(self, coverage_pct: float = 50.0) -> float | None:
        """None when too little of the time is known."""
        if not self.known_weight or 100 * self.known_weight < coverage_pct * self.total:
            return None
        return self.sum / self.known_weight


NO_MEAN = Smoothed()


class GpuMemory(Struct, frozen=True, kw_only=True, array_like=True):
    """Of one GPU: its smoothed use, others' part of it, and since when it has been saturated."""

    use: Smoothed = NO_MEAN
    others: Smoothed = NO_MEAN
    tier: LoadTier | None = None
    full_since_t: float | None = None


class ThrottleMemory(Struct, frozen=True, kw_only=True):
    """State that is stored between ticks.

    busy: GPUs too busy for a class. early: kinds of load that defer background jobs only. The rest
    is what was reported: the number of deferred classes (told), since when none is deferred,
    whether the host is overloaded, and the last job named in a log line.
    """

    gpus: Mapping[str, GpuMemory] = field(default_factory=dict)
    use: Smoothed = NO_MEAN
    busy: Mapping[PriorityClass, frozenset[str]] = field(default_factory=dict)
    early: frozenset[str] = frozenset()
    deferrals: Mapping[PriorityClass, Deferral] = field(default_factory=dict)
    level: Level = field(default_factory=Level)
    reported: int = 0
    free_since_t: float | None = None
    overloaded: bool = False
    named: int = 0


class ThrottlePolicies(Struct, frozen=True, kw_only=True):
    """The thresholds of the throttle."""

    adaptive: AdaptivePolicy = field(default_factory=AdaptivePolicy)
    pressure: PressurePolicy = field(default_factory=PressurePolicy)
    utilisation: UtilisationPolicy = field(default_factory=UtilisationPolicy)


class PlanContext(Struct, frozen=True, kw_only=True):
    """Facts besides the readings.

    jobs_on: jobs that share GPUs, by GPU. alone: GPUs that one job has for itself. young, bound: as
    in utilisation.UtilisationInput.
    """

    constraints: Sequence[Constraint] = ()
    gauges: Sequence[Gauge] = ()
    hogs: Collection[str] = ()
    mode: float = 1.0
    jobs_on: Mapping[str, Collection[str]] = field(default_factory=dict)
    alone: Collection[str] = ()
    young: Collection[str] = ()
    bound: str = ""


def look(
    old: ThrottleMemory,
    snapshot: Snapshot,
    around: PlanContext,
    policies: ThrottlePolicies,
    now: datetime,
    seconds: float,
) -> tuple[ThrottleMemory, Throttle]:
    """Compute the throttle and the new state. seconds: time since the previous tick."""
    now_t = now.timestamp()
    left_out = hidden(snapshot.gpus, snapshot.host.limits)
    ours = [g for g in snapshot.gpus if g.uuid not in left_out and g.health is not Health.LOST]
    gpus = {gpu.uuid: _remembered(old, gpu, snapshot, policies, now_t, seconds) for gpu in ours}
    usable = [gpu for gpu in ours if gpu.health is Health.OK and gpu.uuid not in around.alone]
    means = {gpu.uuid: gpus[gpu.uuid].use.mean() for gpu in usable}
    busy = _busy(old, means, policies.pressure)
    strains, early = _strains(old, around)
    strains = _with_gpus(strains, usable, means, busy)
    deferrals = _deferrals(old, strains, snapshot.host.name, now_t)
    use = old.use.fed(_mean(g.utilization_pct for g in usable), seconds, pressure.TARGET_SMOOTH_S)
    inputs = _utilisation_input(use, gpus, usable, around)
    level = pressure.looked(old.level, inputs, policies.utilisation, now_t, seconds)
    memory = replace(
        old, gpus=gpus, use=use, busy=busy, early=early, deferrals=deferrals, level=level
    )
    multipliers = {gpu.uuid: 0.0 for gpu in snapshot.gpus} | {
        uuid: multiplier(
            gpu.tier or LoadTier.UNKNOWN,
            policies.adaptive,
            hog=uuid in around.hogs,
            mode=around.mode,
        )
        for uuid, gpu in gpus.items()
    }
    throttle = Throttle(
        closed=pressure.closed(deferrals),
        closed_gpus=pressure.closed_gpus(deferrals, busy, usable, policies.pressure),
        starts=pressure.starts(level, inputs, policies.utilisation),
        multipliers=multipliers,
        reason=_scarcity(gpus, around),
        reasons={uuid: why for uuid in gpus if (why := _scarcity({uuid: gpus[uuid]}, around))},
        target=pressure.target(policies.utilisation),
        saturated=_saturated(gpus, now_t),
        uses={uuid: float(round(mean, -1)) for uuid, mean in means.items() if mean is not None},
    )
    return memory, throttle


def _remembered(
    old: ThrottleMemory,
    gpu: GpuReading,
    snapshot: Snapshot,
    policies: ThrottlePolicies,
    now_t: float,
    seconds: float,
) -> GpuMemory:
    before = old.gpus.get(gpu.uuid, GpuMemory())
    policy = policies.adaptive
    load = external_pct(gpu, snapshot.on(gpu.uuid))
    others = before.others.fed(load, seconds, SMOOTH_S)
    use = before.use.fed(gpu.utilization_pct, seconds, pressure.SMOOTH_S)
    is_full = (use.mean() or 0.0) >= SATURATED_PCT
    since_t = now_t if before.full_since_t is None else before.full_since_t
    return GpuMemory(
        use=use,
        others=others,
        tier=tier(others.mean(COVERAGE_PCT), before.tier, policy),
        full_since_t=since_t if is_full else None,
    )


def _saturated(gpus: Mapping[str, GpuMemory], now_t: float) -> frozenset[str]:
    since_t = now_t - TRUSTED_AFTER_S
    return frozenset(
        uuid
        for uuid, gpu in gpus.items()
        if gpu.full_since_t is not None and gpu.full_since_t <= since_t
    )


def _busy(
    old: ThrottleMemory, means: Mapping[str, float | None], policy: PressurePolicy
) -> dict[PriorityClass, frozenset[str]]:
    """By class; user-initiated jobs share a busy GPU."""
    normal, background = PriorityClass.NORMAL, PriorityClass.BACKGROUND
    busy_before = {kind: old.busy.get(kind, frozenset()) for kind in (normal, background)}
    busy = pressure.saturated(means, busy_before[normal], policy)
    earlier = pressure.saturated(means, busy_before[background], policy, earlier=True)
    return {normal: busy, background: busy | earlier}


def _strains(
    old: ThrottleMemory, around: PlanContext
) -> tuple[dict[PriorityClass, tuple[LoadSignal, ...]], frozenset[str]]:
    """The load signals of each class, and the kinds above the thresholds of background jobs."""
    values = {gauge.kind: gauge for gauge in around.gauges}
    signals = [
        _signal(c, values.get(c.kind))
        for c in around.constraints
        if c.effect is not ConstraintEffect.NONE
    ]
    early, kinds = pressure.early(around.gauges, old.early)
    labels = {signal.label for signal in signals}
    by_class = {
        PriorityClass.USER_INITIATED: tuple(signal for signal in signals if signal.hard),
        PriorityClass.NORMAL: tuple(signals),
        PriorityClass.BACKGROUND: (*signals, *(s for s in early if s.label not in labels)),
    }
    return by_class, kinds


def _with_gpus(
    strains: Mapping[PriorityClass, tuple[LoadSignal, ...]],
    usable: Sequence[GpuReading],
    means: Mapping[str, float | None],
    busy: Mapping[PriorityClass, frozenset[str]],
) -> dict[PriorityClass, tuple[LoadSignal, ...]]:
    """Also that every GPU is busy, or held back by heat."""
    hot = [gpu for gpu in usable if gpu.condition is Condition.THROTTLED]
    heat = LoadSignal(
        "gpu_temp",
        "every GPU is busy or held back by heat",
        max((gpu.temperature_c for gpu in hot if gpu.temperature_c is not None), default=None),
        of_gpus=True,
    )
    load = LoadSignal("gpu_util", "all GPUs are busy", _mean(means.values()), of_gpus=True)
    signals = dict(strains)
    for kind, uuids in busy.items():
        if means and uuids | {gpu.uuid for gpu in hot} >= means.keys():
            signals[kind] = (heat if hot else load, *strains[kind])
    return signals


def _signal(constraint: Constraint, gauge: Gauge | None) -> LoadSignal:
    hard = constraint.effect is ConstraintEffect.HARD
    if gauge is None:
        return LoadSignal(constraint.kind, constraint.text.rstrip("."), hard=hard)
    return LoadSignal(gauge.label, f"{gauge.subject} above {gauge.opens:.0f} %", gauge.value, hard)


def _deferrals(
    old: ThrottleMemory,
    strains: Mapping[PriorityClass, tuple[LoadSignal, ...]],
    host: str,
    now_t: float,
) -> dict[PriorityClass, Deferral]:
    deferrals = {}
    for kind in CLASSES:
        seed = f"{host}/{kind.value}"
        deferral = pressure.deferred(old.deferrals.get(kind), strains[kind], now_t, seed)
        if deferral is not None:
            deferrals[kind] = deferral
    return deferrals


def _utilisation_input(
    use: Smoothed,
    gpus: Mapping[str, GpuMemory],
    usable: Sequence[GpuReading],
    around: PlanContext,
) -> UtilisationInput:
    jobs = {job for gpu in usable for job in around.jobs_on.get(gpu.uuid, ())}
    quiet = [
        gpu
        for gpu in usable
        if not around.jobs_on.get(gpu.uuid)
        and (load := gpus[gpu.uuid].use.mean()) is not None
        and load < pressure.QUIET_PCT
    ]
    return UtilisationInput(
        use=use.mean(),
        others=_mean(gpus[gpu.uuid].others.mean() for gpu in usable),
        running=len(jobs),
        young=len(jobs & set(around.young)),
        quiet=len(quiet),
        gpus=len(usable),
        bound=around.bound,
    )


def _scarcity(gpus: Mapping[str, GpuMemory], around: PlanContext) -> str:
    """Why the multipliers of these GPUs are below 1."""
    tiers = {gpu.tier for gpu in gpus.values()}
    why = (
        ("GPUs are in use outside the queue", bool(tiers & {LoadTier.BUSY, LoadTier.MIDDLE})),
        ("the load of other users is unknown", LoadTier.UNKNOWN in tiers),
        ("a GPU is overused", not gpus.keys().isdisjoint(around.hogs)),
        ("the mode is defensive", around.mode < 1),
    )
    return ", ".join(text for text, holds in why if holds)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None = none is known."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


# Whether gpucoord is cooperative, or defends its users against lasting hogs.


class Mode(StrEnum):
    """cooperative: normal operation · defensive: hogs were present for too long, so shares of
    normal and background jobs are reduced. Foreign processes are never touched.
    """

    COOPERATIVE = "cooperative"
    DEFENSIVE = "defensive"


# Hours over which overuse is measured.
LOOK_BACK_H = 24
# %: share of these hours with overuse below which the mode is cooperative again.
COOPERATIVE_BELOW_PCT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePolicy:
    """Switching between cooperative and defensive mode. Defensive mode reduces shares on GPUs that
    other users are on."""

    # fmt: off
    defensive_above_pct: float = percent(30.0, "Defensive mode above",
        "Share of the last 24 h with an open overuse incident. The mode is cooperative again below "
        "20 %. 100 = never.")
    defensive_multiplier: float = threshold(0.1, "Multiplier in defensive mode",
        unit="×", ge=0, le=1,
        help="Applies to each user's share of GPUs in use by other users, for normal and "
             "background jobs: a share of 30 % counts as 3 %. Empty GPUs, user-initiated jobs, "
             "GPU-minutes and limits on GPUs, jobs and memory are not affected.")
    # fmt: on

    @property
    def cooperative_below_pct(self) -> float:
        """Cooperative mode returns below this."""
        return min(COOPERATIVE_BELOW_PCT, self.defensive_above_pct)


class Override(Struct, frozen=True, kw_only=True):
    """The mode that an operator set, and until when."""

    mode: Mode
    until: datetime
    by: str


class ModeDecision(Struct, frozen=True):
    """The mode that holds and the one that the hogs alone would give, each with its reason."""

    mode: Mode
    reason: str
    automatic: Mode
    automatic_reason: str


def judged(
    automatic: Mode,
    hog_share: float | None,
    override: Override | None,
    policy: ModePolicy,
    now: datetime,
) -> ModeDecision:
    """`automatic`: the last mode by the hogs alone; hog_share: 0..1 of the time, None = unknown."""
    mode = _automatic(automatic, hog_share, policy)
    why = _why(mode, hog_share, policy)
    if override is None or override.until <= now:
        return ModeDecision(mode, why, mode, why)
    return ModeDecision(override.mode, f"{override.by} has set it.", mode, why)


def _automatic(old: Mode, share: float | None, policy: ModePolicy) -> Mode:
    """Unknown presence of hogs leaves the mode unchanged."""
    if share is None:
        return old
    if 100 * share > policy.defensive_above_pct:
        return Mode.DEFENSIVE
    return Mode.COOPERATIVE if 100 * share < policy.cooperative_below_pct else old


def _why(mode: Mode, share: float | None, policy: ModePolicy) -> str:
    if share is None:
        return "The time with overuse is unknown."
    text = f"Overuse in {100 * share:.0f} % of the last {LOOK_BACK_H} h"
    if mode is Mode.DEFENSIVE:
        return f"{text}. Normal limits return below {policy.cooperative_below_pct:.0f} %."
    return f"{text}. Limits tighten above {policy.defensive_above_pct:.0f} %."


def mode_multiplier(mode: Mode, policy: ModePolicy) -> float:
    return policy.defensive_multiplier if mode is Mode.DEFENSIVE else 1.0
