"""Condition of a GPU: heat, slow-downs, memory errors, XIDs and power, each with hysteresis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log10

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Ailment, Condition, HealthReading, Xid
from monitor.facts.readings import GpuReading, GpuSweep, Health, ProcessReading, Snapshot
from monitor.facts.thresholds import threshold
from monitor.gpus.policy.changes import Note, together

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


class ConditionChange(Struct, frozen=True):
    """A GPU whose condition changed; `old` None: it is new."""

    reading: GpuReading
    old: GpuReading | None


class Checkup(Struct, frozen=True):
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
    new = _remember(gpu, reading or replace(old, xids=(), ailments=()), old, policy, now)
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


# Events about the health of GPUs, and the users that they concern.


XID_WORDS = {
    13: "a program made an error on it (graphics engine exception)",
    31: "a program used memory that is not its own (page fault)",
    43: "a program stopped working on it",
    48: "its memory had an error that could not be corrected",
    62: "its internal controller stopped",
    63: "it noted a broken memory row to take out of use",
    64: "it could not take a broken memory row out of use",
    74: "its NVLink has an error",
    79: "it has fallen off the bus",
    92: "many memory errors were corrected",
    94: "a memory error hit one program",
    95: "a memory error could not be kept to one program",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
_CONDITION_KINDS = {
    Condition.HEALTHY: ("GPU_HEALTHY", "info"),
    Condition.THROTTLED: ("GPU_THROTTLED", "warning"),
    Condition.FAILING: ("GPU_UNHEALTHY", "error"),
}


def of_checkup(
    checkup: Checkup,
    last: Snapshot | None,
    xids: Sequence[Xid],
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
    hot_c: float | None = None,
) -> list[Note]:
    """Events of one sweep; `processes` are those that may have caused an XID.

    `hot_c`: the temperature from which a GPU counts as too hot, for the log.
    """
    before = {health.gpu_uuid: health for health in last.health} if last else {}
    now = {health.gpu_uuid: health for health in checkup.health}
    notes = [*of_conditions(checkup.changes, hot_c), *of_ailments(checkup.gpus, before, now)]
    return [*together(notes), *of_xids(xids, checkup.gpus, processes, claims)]


def of_conditions(changes: Iterable[ConditionChange], hot_c: float | None = None) -> Iterator[Note]:
    """Changes of the condition; a lost or failing GPU already has an event of its state."""
    for change in changes:
        gpu, old = change.reading, change.old
        is_well = gpu.condition is Condition.HEALTHY
        if gpu.health is not Health.OK or (is_well and (old is None or old.problem)):
            continue
        kind, severity = _CONDITION_KINDS[gpu.condition or Condition.HEALTHY]
        why = "is healthy again and accepts jobs."
        if not is_well:
            why = f"accepts no new jobs. {gpu.condition_reason}"
        figures = {
            "gpu_util": gpu.utilization_pct,
            "temperature": gpu.temperature_c,
            "threshold": hot_c,
        }
        yield Note(
            kind=kind,
            text=f"{_name(gpu)} {why}",
            severity=severity,
            gpu_uuid=gpu.uuid,
            figures={name: value for name, value in figures.items() if value is not None},
        )


def of_ailments(
    gpus: Iterable[GpuReading],
    before: Mapping[str, HealthReading],
    now: Mapping[str, HealthReading],
) -> Iterator[Note]:
    """Findings that do not stop work: pending repairs, ECC errors, failing calls and their end."""
    for gpu in gpus:
        new, old = now[gpu.uuid], before.get(gpu.uuid)
        for ailment in new.ailments:
            if ailment.condition is Condition.HEALTHY and not _was_reported(old, ailment.code):
                yield _ailing(gpu, ailment)
        if _was_reported(old, "CALLS_FAILING") and "CALLS_FAILING" not in (new.reported or ()):
            text = f"{_name(gpu)}: all calls of the driver are answered again."
            yield Note(kind="GPU_CALLS_ANSWERED", text=text, gpu_uuid=gpu.uuid)
        if old is not None and _grew(old.ecc_corrected, new.ecc_corrected):
            text = f"{_name(gpu)} has corrected {new.ecc_corrected} memory errors so far."
            yield Note(kind="GPU_ECC_CORRECTED", text=text, gpu_uuid=gpu.uuid)


def _was_reported(old: HealthReading | None, code: str) -> bool:
    return old is not None and (old.has(code) or code in (old.reported or ()))


def of_xids(
    xids: Sequence[Xid],
    gpus: Iterable[GpuReading],
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
) -> Iterator[Note]:
    """A hardware XID concerns all users; an XID of a program concerns the users of the GPU."""
    gpus_by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for xid in dict.fromkeys(xids):
        gpu = gpus_by_uuid.get(xid.gpu_uuid)
        if gpu is None:
            continue
        text = f"{_name(gpu)}: XID {xid.code}, {XID_WORDS.get(xid.code, 'see the log of NVIDIA')}."
        severity = "error" if xid.code in HARDWARE_XIDS else "warning"
        people = _people(xid.gpu_uuid, processes, claims) if xid.code in APPLICATION_XIDS else []
        if not people:
            yield Note(kind="GPU_XID", text=text, severity=severity, gpu_uuid=gpu.uuid)
        for owner, job_ref in people:
            ran = f" Job {job_ref} of {owner} ran there." if job_ref else f" {owner} ran there."
            yield Note(
                kind="GPU_XID",
                text=text + ran,
                severity=severity,
                gpu_uuid=gpu.uuid,
                job_ref=job_ref,
                owner=owner,
            )


def _people(
    gpu_uuid: str, processes: Sequence[ProcessReading], claims: Sequence[ClaimFact]
) -> list[tuple[str, str]]:
    """(owner, job) of each process that may have caused the XID: NVML does not name the pid."""
    jobs = [(c.owner, c.job_ref) for c in claims if c.gpu_uuid == gpu_uuid]
    others = [
        (p.user, "") for p in processes if p.gpu_uuid == gpu_uuid and p.user and not p.job_ref
    ]
    return list(dict.fromkeys([*jobs, *others]))


def _ailing(gpu: GpuReading, ailment: Ailment) -> Note:
    text = f"{_name(gpu)}: {ailment.text}"
    return Note(kind=f"GPU_{ailment.code}", text=text, severity="warning", gpu_uuid=gpu.uuid)


def _grew(old: int | None, new: int | None) -> bool:
    """Reported at 1, 10, 100 …: single errors are normal for large memories."""
    if new is None or new <= (old or 0) or old is None:
        return False
    return int(log10(new)) > (int(log10(old)) if old else -1)


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")
