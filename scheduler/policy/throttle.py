"""Policy: one look of the controller at a host: what starts it allows, and what it remembers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from monitor.health import Condition
from monitor.policy.constraints import Constraint, Gauge, Grip
from monitor.policy.limits import hidden
from monitor.readings import GpuReading, Health, Snapshot
from scheduler.jobs import PriorityClass
from scheduler.plans import Throttle
from scheduler.policy import adaptive, deferring, pressure, utilisation
from scheduler.policy.adaptive import AdaptivePolicy, LoadTier
from scheduler.policy.pressure import CLASSES, Deferral, PressurePolicy, Strain
from scheduler.policy.smoothing import Smoothed
from scheduler.policy.utilisation import Level, Sight, UtilisationPolicy
from scheduler.policy.windows import WindowPolicy

NO_MEAN = Smoothed()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Of one GPU: its smoothed use, others' part of it, and since when it has been saturated."""

    use: Smoothed = NO_MEAN
    others: Smoothed = NO_MEAN
    tier: LoadTier | None = None
    full_since_t: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a look leaves for the next. `busy`: GPUs too busy for a class; `early`: what strains

    the machine for background jobs alone. The rest is what people were told: how many classes wait
    (`told`), since when none does, that the host is overloaded, and the last job that was named.
    """

    gpus: Mapping[str, GpuMemory] = field(default_factory=dict)
    use: Smoothed = NO_MEAN
    busy: Mapping[PriorityClass, frozenset[str]] = field(default_factory=dict)
    early: frozenset[str] = frozenset()
    deferrals: Mapping[PriorityClass, Deferral] = field(default_factory=dict)
    level: Level = field(default_factory=Level)
    told: int = 0
    free_since_t: float | None = None
    overloaded: bool = False
    named: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All thresholds of a look."""

    adaptive: AdaptivePolicy = field(default_factory=AdaptivePolicy)
    pressure: PressurePolicy = field(default_factory=PressurePolicy)
    utilisation: UtilisationPolicy = field(default_factory=UtilisationPolicy)
    windows: WindowPolicy = field(default_factory=WindowPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What else is known. `jobs_on`: our jobs that share, by GPU; `alone`: GPUs that one of our

    jobs has for itself, which are no place to share; `young`, `bound`: as in utilisation.Sight.
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
    old: Memory,
    snapshot: Snapshot,
    around: Around,
    policies: Policies,
    now: datetime,
    seconds: float,
) -> tuple[Memory, Throttle]:
    """`seconds`: since the look before. The same input gives the same answer."""
    now_t = now.timestamp()
    left_out = hidden(snapshot.gpus, snapshot.host.limits)
    ours = [g for g in snapshot.gpus if g.uuid not in left_out and g.health is not Health.LOST]
    gpus = {gpu.uuid: _remembered(old, gpu, snapshot, policies, now_t, seconds) for gpu in ours}
    usable = [gpu for gpu in ours if gpu.health is Health.OK and gpu.uuid not in around.alone]
    means = {gpu.uuid: gpus[gpu.uuid].use.mean() for gpu in usable}
    busy = _busy(old, means, policies.pressure)
    strains, early = _strains(old, around, policies.pressure)
    strains = _with_gpus(strains, usable, means, busy)
    deferrals = _deferrals(old, strains, policies.pressure, snapshot.host.name, now_t)
    use = old.use.fed(
        _mean(g.utilization_pct for g in usable), seconds, policies.utilisation.smooth_s
    )
    sight = _sight(use, gpus, usable, around, policies)
    level = utilisation.looked(old.level, sight, policies.utilisation, now_t, seconds)
    memory = replace(
        old, gpus=gpus, use=use, busy=busy, early=early, deferrals=deferrals, level=level
    )
    multipliers = {gpu.uuid: 0.0 for gpu in snapshot.gpus} | {
        uuid: adaptive.multiplier(
            gpu.tier or LoadTier.UNKNOWN,
            policies.adaptive,
            hog=uuid in around.hogs,
            mode=around.mode,
        )
        for uuid, gpu in gpus.items()
    }
    throttle = Throttle(
        closed=deferring.closed(deferrals),
        closed_gpus=deferring.closed_gpus(deferrals, busy, usable, policies.pressure),
        starts=utilisation.starts(level, sight, policies.utilisation),
        multipliers=multipliers,
        reason=_scarcity(gpus.values(), around),
        target=utilisation.target(policies.utilisation),
        saturated=_saturated(gpus, policies.windows, now_t),
        uses={uuid: float(round(mean, -1)) for uuid, mean in means.items() if mean is not None},
    )
    return memory, throttle


def _remembered(
    old: Memory,
    gpu: GpuReading,
    snapshot: Snapshot,
    policies: Policies,
    now_t: float,
    seconds: float,
) -> GpuMemory:
    before = old.gpus.get(gpu.uuid, GpuMemory())
    policy = policies.adaptive
    load = adaptive.external_pct(gpu, snapshot.on(gpu.uuid))
    others = before.others.fed(load, seconds, policy.smooth_s)
    use = before.use.fed(gpu.utilization_pct, seconds, policies.pressure.smooth_s)
    is_full = (use.mean() or 0.0) >= policies.windows.saturated_pct
    since_t = now_t if before.full_since_t is None else before.full_since_t
    return GpuMemory(
        use=use,
        others=others,
        tier=adaptive.tier(others.mean(policy.coverage_pct), before.tier, policy),
        full_since_t=since_t if is_full else None,
    )


def _saturated(gpus: Mapping[str, GpuMemory], policy: WindowPolicy, now_t: float) -> frozenset[str]:
    since_t = now_t - policy.trusted_after_minutes * 60
    return frozenset(
        uuid
        for uuid, gpu in gpus.items()
        if gpu.full_since_t is not None and gpu.full_since_t <= since_t
    )


def _busy(
    old: Memory, means: Mapping[str, float | None], policy: PressurePolicy
) -> dict[PriorityClass, frozenset[str]]:
    """By class; user-initiated jobs share a busy GPU."""
    normal, background = PriorityClass.NORMAL, PriorityClass.BACKGROUND
    held = {kind: old.busy.get(kind, frozenset()) for kind in (normal, background)}
    busy = pressure.saturated(means, held[normal], policy)
    earlier = pressure.saturated(means, held[background], policy, earlier=True)
    return {normal: busy, background: busy | earlier}


def _strains(
    old: Memory, around: Around, policy: PressurePolicy
) -> tuple[dict[PriorityClass, tuple[Strain, ...]], frozenset[str]]:
    """What makes each class wait, and what is over a background job's lower thresholds."""
    values = {gauge.kind: gauge for gauge in around.gauges}
    found = [_strain(c, values.get(c.kind)) for c in around.constraints if c.grip is not Grip.NONE]
    early, kinds = pressure.early(around.gauges, old.early, policy)
    told = {strain.label for strain in found}
    by_class = {
        PriorityClass.USER_INITIATED: tuple(strain for strain in found if strain.hard),
        PriorityClass.NORMAL: tuple(found),
        PriorityClass.BACKGROUND: (*found, *(s for s in early if s.label not in told)),
    }
    return by_class, kinds


def _with_gpus(
    strains: Mapping[PriorityClass, tuple[Strain, ...]],
    usable: Sequence[GpuReading],
    means: Mapping[str, float | None],
    busy: Mapping[PriorityClass, frozenset[str]],
) -> dict[PriorityClass, tuple[Strain, ...]]:
    """Also that every GPU is busy, or held back by heat."""
    hot = [gpu for gpu in usable if gpu.condition is Condition.THROTTLED]
    heat = Strain(
        "gpu_temp",
        "every GPU is busy or held back by heat",
        max((gpu.temperature_c for gpu in hot if gpu.temperature_c is not None), default=None),
        of_gpus=True,
    )
    load = Strain("gpu_util", "all GPUs are busy", _mean(means.values()), of_gpus=True)
    found = dict(strains)
    for kind, uuids in busy.items():
        if means and uuids | {gpu.uuid for gpu in hot} >= means.keys():
            found[kind] = (heat if hot else load, *strains[kind])
    return found


def _strain(constraint: Constraint, gauge: Gauge | None) -> Strain:
    hard = constraint.grip is Grip.HARD
    if gauge is None:
        return Strain(constraint.kind, constraint.text.rstrip("."), hard=hard)
    return Strain(gauge.label, f"{gauge.what} above {gauge.opens:.0f} %", gauge.value, hard)


def _deferrals(
    old: Memory,
    strains: Mapping[PriorityClass, tuple[Strain, ...]],
    policy: PressurePolicy,
    host: str,
    now_t: float,
) -> dict[PriorityClass, Deferral]:
    found = {}
    for kind in CLASSES:
        seed = f"{host}/{kind.value}"
        deferral = pressure.deferred(old.deferrals.get(kind), strains[kind], policy, now_t, seed)
        if deferral is not None:
            found[kind] = deferral
    return found


def _sight(
    use: Smoothed,
    gpus: Mapping[str, GpuMemory],
    usable: Sequence[GpuReading],
    around: Around,
    policies: Policies,
) -> Sight:
    jobs = {job for gpu in usable for job in around.jobs_on.get(gpu.uuid, ())}
    quiet = [
        gpu
        for gpu in usable
        if not around.jobs_on.get(gpu.uuid)
        and (load := gpus[gpu.uuid].use.mean()) is not None
        and load < policies.utilisation.quiet_pct
    ]
    return Sight(
        use=use.mean(),
        others=_mean(gpus[gpu.uuid].others.mean() for gpu in usable),
        running=len(jobs),
        young=len(jobs & set(around.young)),
        quiet=len(quiet),
        gpus=len(usable),
        bound=around.bound,
    )


def _scarcity(gpus: Iterable[GpuMemory], around: Around) -> str:
    """Why multipliers are below 1."""
    tiers = {gpu.tier for gpu in gpus}
    why = (
        ("others load the GPUs", bool(tiers & {LoadTier.BUSY, LoadTier.MIDDLE})),
        ("how much others load them is not known", LoadTier.UNKNOWN in tiers),
        ("somebody hogs one", bool(around.hogs)),
        ("gpucoord is defensive", around.mode < 1),
    )
    return ", ".join(text for text, holds in why if holds)


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
