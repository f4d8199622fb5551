"""Policy: backpressure: which priority classes are deferred because of load, and for how long.

The first deferral lasts 30 s. Each further one lasts twice as long, up to a cap, until the machine
has been calm for `FORGET_S`. A deferral ends when its time is over and no load signal is left, or
when the machine has been calm for `CALM_S`. So a job that is submitted during a long deferral waits
for its first 30 s like any other, and never longer than that after the load has gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.facts.gpu_states import Condition
from monitor.facts.readings import GpuReading
from monitor.facts.thresholds import percent
from monitor.incidents.constraints.policy import Gauge
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


@dataclass(frozen=True, slots=True)
class LoadSignal:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
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
