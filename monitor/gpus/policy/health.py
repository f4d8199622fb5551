"""Condition of a GPU: heat, slow-downs, memory errors, XIDs and power, each with hysteresis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.facts.gpu_states import Ailment, Condition, HealthReading, Xid
from monitor.facts.readings import GpuReading, GpuSweep, Health, Snapshot
from monitor.facts.thresholds import threshold

# A throttled GPU is cool again this many °C below its threshold.
COOLER_C = 5.0
# A slowdown by the hardware or driver counts after the first time, and is over after the second.
SLOW_FOR, SLOW_CLEAR = timedelta(seconds=10), timedelta(seconds=30)
# Possible hang: at least this use in % with less than this part in % of the power limit, which
# indicates a busy loop, for this time.
SPIN_PCT, IDLE_POWER_PCT, SPIN_FOR = 99.0, 25.0, timedelta(minutes=10)
# A GPU exceeds its power limit above this part of it in %, for this time.
OVER_POWER_PCT, OVER_POWER_FOR = 110.0, timedelta(seconds=30)
# A GPU gets no new jobs for this time after a hardware XID error.
XID_HOLD = timedelta(minutes=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When an unhealthy GPU stops and resumes accepting new jobs."""

    # fmt: off
    enabled: bool = threshold(True, "Health monitoring",
        "If disabled, only GPUs that do not respond get no new jobs.")
    hot_c: float = threshold(85.0, "Too hot at", unit="°C", ge=40, le=120,
        help="A GPU at this temperature is throttled and gets no new jobs until it is 5 °C cooler.")
    hot_yield_minutes: float = threshold(0.0, "Preemptible jobs leave a throttled GPU after",
        unit="min", ge=0, le=1440,
        help="The jobs are requeued on other GPUs, so that the GPU cools down. 0 = the jobs stay.")
    # fmt: on

    @property
    def cool_c(self) -> float:
        """A throttled GPU gets new jobs again at this temperature."""
        return self.hot_c - COOLER_C


HARDWARE_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
APPLICATION_XIDS = frozenset({13, 31, 43})
# Reasons that a healthy GPU never shows. 0x1 (idle) and 0x4 (power cap) are normal.
HARMFUL_REASONS: Mapping[int, str] = {
    0x8: "its hardware slowed it down",
    0x20: "the driver slowed it down because of its heat",
    0x40: "its hardware slowed it down because of its heat",
    0x80: "the power supply asked it to brake",
}
# Wording of all reasons for reduced clocks, for the page of a GPU.
CLOCK_REASONS: Mapping[int, str] = {
    0x1: "idleness",
    0x2: "a clock set by a user",
    0x4: "the power limit",
    0x8: "its hardware (slow-down)",
    0x10: "the clocks of its group",
    0x20: "heat (the driver)",
    0x40: "heat (its hardware)",
    0x80: "the power supply (brake)",
    0x100: "the display",
}
_ORDER = list(Condition)
# A call that fails for this long keeps failing; the values of the other calls are used.
FAILING_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ConditionChange:
    """A GPU whose condition changed; `old` None: it is new."""

    reading: GpuReading
    old: GpuReading | None


@dataclass(frozen=True, slots=True)
class Checkup:
    """All GPUs of a sweep with their conditions, and the health readings."""

    gpus: tuple[GpuReading, ...]
    health: tuple[HealthReading, ...]
    changes: tuple[ConditionChange, ...]


def examine(
    sweep: GpuSweep,
    gpus: Sequence[GpuReading],
    last: Snapshot | None,
    policy: HealthPolicy,
    now: datetime,
) -> Checkup:
    """Judge every GPU. `last`: the previous snapshot, of the same probe and boot."""
    measured = {health.gpu_uuid: health for health in sweep.health}
    old_health = {health.gpu_uuid: health for health in last.health} if last else {}
    old_gpus = {gpu.uuid: gpu for gpu in last.gpus} if last else {}
    checked: dict[str, HealthReading] = {}
    for gpu in gpus:
        before = old_health.get(gpu.uuid)
        old = old_gpus.get(gpu.uuid)
        if before and old and old.health is Health.LOST and gpu.health is not Health.LOST:
            # A GPU that was lost and came back has been reset, so earlier problems are over.
            before = HealthReading(gpu_uuid=gpu.uuid, reported=before.reported)
        checked[gpu.uuid] = judge(gpu, measured.get(gpu.uuid), before, sweep.xids, policy, now)
    readings, changes = with_conditions(gpus, checked, old_gpus, now)
    return Checkup(readings, tuple(checked.values()), changes)


def judge(
    gpu: GpuReading,
    reading: HealthReading | None,
    before: HealthReading | None,
    xids: Sequence[Xid],
    policy: HealthPolicy,
    now: datetime,
) -> HealthReading:
    """The reading with its ailments. Values that are unknown now stay as they were `before`."""
    old = before or HealthReading(gpu_uuid=gpu.uuid)
    new = _remember(gpu, reading or _counts_of(old), old, policy, now)
    held = [(code, at) for code, at in old.xids if timedelta() <= now - at < XID_HOLD]
    fresh = [(x.code, now) for x in xids if x.gpu_uuid == gpu.uuid and x.code in HARDWARE_XIDS]
    new = replace(new, xids=tuple({code: (code, at) for code, at in [*held, *fresh]}.values()))
    ailments = tuple(_ailments(gpu, new, old, policy, now)) if policy.enabled else ()
    return replace(new, ailments=ailments, reported=_reported(gpu, ailments, old))


def _reported(
    gpu: GpuReading, ailments: tuple[Ailment, ...], old: HealthReading
) -> tuple[str, ...] | None:
    """Values that cannot be read while the driver is unavailable stay as they were."""
    if gpu.health is not Health.OK:
        return old.reported
    return tuple(a.code for a in ailments if a.condition is Condition.HEALTHY) or None


def clock_words(health: HealthReading | None) -> list[str] | None:
    """The reasons for reduced clocks; None if the GPU does not report them."""
    if health is None or health.clock_reasons is None:
        return None
    return [words for bit, words in CLOCK_REASONS.items() if health.clock_reasons & bit]


def condition_of(gpu: GpuReading, health: HealthReading) -> tuple[Condition, str | None]:
    """The condition of a GPU and the reason in words."""
    if gpu.health is not Health.OK:
        condition = Condition.LOST if gpu.health is Health.LOST else Condition.FAILING
        return condition, gpu.problem
    worst = max((a.condition for a in health.ailments), key=_ORDER.index, default=Condition.HEALTHY)
    if worst is Condition.HEALTHY:
        return worst, None
    return worst, " ".join(a.text for a in health.ailments if a.condition is worst)


def with_conditions(
    gpus: Sequence[GpuReading],
    healths: Mapping[str, HealthReading],
    before: Mapping[str, GpuReading],
    now: datetime,
) -> tuple[tuple[GpuReading, ...], tuple[ConditionChange, ...]]:
    """The readings with their condition, its begin, and the changes."""
    readings: list[GpuReading] = []
    changes: list[ConditionChange] = []
    for gpu in gpus:
        condition, reason = condition_of(gpu, healths[gpu.uuid])
        old = before.get(gpu.uuid)
        was = old.condition if old else None
        since = (old.condition_since or now) if old and was is condition else now
        readings.append(
            replace(gpu, condition=condition, condition_since=since, condition_reason=reason)
        )
        if was is not condition and (was is not None or condition is not Condition.HEALTHY):
            changes.append(ConditionChange(readings[-1], old))
    return tuple(readings), tuple(changes)


def _counts_of(old: HealthReading) -> HealthReading:
    return replace(old, xids=(), ailments=())


def _remember(
    gpu: GpuReading, reading: HealthReading, old: HealthReading, policy: HealthPolicy, now: datetime
) -> HealthReading:
    heat, harmful = gpu.temperature_c, _harmful(reading.clock_reasons)
    hot = old.hot if heat is None else heat > policy.cool_c if old.hot else heat >= policy.hot_c
    temperatures = [c for c in (heat, old.hottest_c) if c is not None]
    slow_since, slow_at = old.slow_since, old.slow_at
    if harmful is not None:
        slow_since = (slow_since or now) if harmful else None
        slow_at = now if harmful else slow_at
    return replace(
        reading,
        hot=hot,
        hottest_c=max(temperatures, default=None) if hot else None,
        slow_since=slow_since,
        slow_at=slow_at,
        spinning_since=_since(_spins(gpu), old.spinning_since, now),
        over_power_since=_since(_is_over_power(gpu), old.over_power_since, now),
        calls_failing_since=_since(bool(gpu.failed_calls), old.calls_failing_since, now),
    )


def _since(holds: bool, began: datetime | None, now: datetime) -> datetime | None:
    return (began or now) if holds else None


def _harmful(reasons: int | None) -> int | None:
    return None if reasons is None else reasons & sum(HARMFUL_REASONS)


def _spins(gpu: GpuReading) -> bool:
    if gpu.utilization_pct is None or gpu.power_w is None or not gpu.power_limit_w:
        return False
    starved = gpu.power_w < IDLE_POWER_PCT / 100 * gpu.power_limit_w
    return starved and gpu.utilization_pct >= SPIN_PCT


def _is_over_power(gpu: GpuReading) -> bool:
    if gpu.power_w is None or not gpu.power_limit_w:
        return False
    return gpu.power_w > OVER_POWER_PCT / 100 * gpu.power_limit_w


def _ailments(
    gpu: GpuReading, new: HealthReading, old: HealthReading, policy: HealthPolicy, now: datetime
) -> Iterator[Ailment]:
    if gpu.health is not Health.OK:
        return
    yield from _memory(new)
    for code, _ in new.xids:
        text = f"The driver reported a fault of its hardware (XID {code})."
        yield Ailment(f"XID_{code}", Condition.FAILING, text)
    if new.hot:
        text = (
            f"Too hot: {new.hottest_c or policy.hot_c:.0f} °C, the limit is {policy.hot_c:.0f} °C."
            f" New jobs resume below {policy.cool_c:.0f} °C."
        )
        yield Ailment("HOT", Condition.THROTTLED, text)
    if _is_slow(new, old, now):
        yield Ailment("SLOWED", Condition.THROTTLED, _slow_text(new, old))
    yield from _power(new, now)
    if new.calls_failing_since and now - new.calls_failing_since >= FAILING_FOR:
        text = f"Calls of the driver fail at every sweep: {'; '.join(gpu.failed_calls or ())}."
        yield Ailment("CALLS_FAILING", Condition.HEALTHY, text)


def _memory(health: HealthReading) -> Iterator[Ailment]:
    if health.ecc_uncorrected:
        text = "Its memory had an error that could not be corrected; it must be reset."
        yield Ailment("ECC_UNCORRECTED", Condition.FAILING, text)
    if health.remap_failed:
        text = "Its memory could not replace a broken row; it needs to be exchanged."
        yield Ailment("REMAP_FAILED", Condition.FAILING, text)
    if health.remap_pending or health.retired_pending:
        text = "It takes broken memory out of use at its next reset."
        yield Ailment("REPAIR_PENDING", Condition.HEALTHY, text)


def _is_slow(new: HealthReading, old: HealthReading, now: datetime) -> bool:
    if new.slow_since is not None and now - new.slow_since >= SLOW_FOR:
        return True
    if not old.has("SLOWED"):
        return False
    # The GPU may not report its reasons now; that ends nothing.
    unknown = new.clock_reasons is None
    return unknown or new.slow_at is None or now - new.slow_at < SLOW_CLEAR


def _slow_text(new: HealthReading, old: HealthReading) -> str:
    reasons = _harmful(new.clock_reasons)
    if not reasons:
        return next((a.text for a in old.ailments if a.code == "SLOWED"), "It was slowed down.")
    why = [words for bit, words in HARMFUL_REASONS.items() if reasons & bit]
    return f"It does not run at full speed: {', and '.join(why)}."


def _power(health: HealthReading, now: datetime) -> Iterator[Ailment]:
    if health.spinning_since and now - health.spinning_since >= SPIN_FOR:
        text = "It is wholly busy but draws hardly any power: its program seems to spin or to hang."
        yield Ailment("SPINNING", Condition.HEALTHY, text)
    if health.over_power_since and now - health.over_power_since >= OVER_POWER_FOR:
        text = "It draws more than its power limit allows."
        yield Ailment("OVER_POWER", Condition.HEALTHY, text)
