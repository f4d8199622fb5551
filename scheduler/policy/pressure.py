"""Policy: which priority classes must wait because the machine is under load, and how long.

A deferral lasts 30 s at first; each that follows before the machine was calm for long lasts twice
as long, up to a cap. It ends when its time is over and nothing strains the machine any more, or
when the machine has been calm for a while.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.policy.constraints import Gauge
from scheduler.jobs import PriorityClass

PCT = {"unit": "%", "least": 0, "most": 100}
SECONDS = {"unit": "s", "least": 0, "most": 86_400}
# Who stops first.
CLASSES = (PriorityClass.BACKGROUND, PriorityClass.NORMAL, PriorityClass.USER_INITIATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PressurePolicy:
    """When starts are deferred. The host's own thresholds are in the policy of constraints."""

    gpu_busy_pct: float = field(
        default=80.0,
        metadata={
            "label": "A GPU is busy above",
            "help": "It gets no new normal and background jobs. 100 = never.",
            **PCT,
        },
    )
    gpu_calm_pct: float = field(
        default=70.0, metadata={"label": "… and calm below", "help": "", **PCT}
    )
    background_earlier_pct: float = field(
        default=10.0,
        metadata={
            "label": "Background stops earlier by",
            "help": "All thresholds of load are so much lower for background jobs.",
            **PCT,
        },
    )
    first_s: float = field(
        default=30.0, metadata={"label": "First deferral", "help": "", **SECONDS, "least": 1}
    )
    cap_s: float = field(
        default=240.0, metadata={"label": "Longest deferral", "help": "", **SECONDS, "least": 1}
    )
    jitter_pct: float = field(
        default=10.0,
        metadata={
            "label": "Jitter",
            "help": "From the second deferral on, so that hosts don't move in step.",
            **PCT,
        },
    )
    calm_s: float = field(
        default=30.0,
        metadata={
            "label": "Calm ends a deferral after",
            "help": "Nothing has to wait longer than that for a machine that is free again.",
            **SECONDS,
        },
    )
    forget_s: float = field(
        default=300.0,
        metadata={
            "label": "Calm starts over after",
            "help": "Then the next deferral is a first one again.",
            **SECONDS,
        },
    )
    smooth_s: float = field(
        default=20.0,
        metadata={"label": "A GPU's use is a mean of", "help": "", **SECONDS, "least": 1},
    )

    def conflicts(self) -> dict[str, str]:
        found = {}
        if self.gpu_calm_pct > self.gpu_busy_pct:
            found["gpu_calm_pct"] = "it must not be above what counts as busy."
        if self.first_s > self.cap_s:
            found["first_s"] = "it must not be longer than the longest."
        return found


@dataclass(frozen=True, slots=True)
class Strain:
    """One thing that strains the machine. `label` and `value` stand in log lines: gpu_util=91.

    of_gpus: it does not concern jobs without a GPU.
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
    """How long the jobs of a class wait, in epoch seconds.

    `number`: the how manyth without a long calm. `calm_t`: since when nothing strains the machine;
    `over_t`: when it ended, kept so that the next one knows of it.
    """

    number: int
    since_t: float
    until_t: float
    strains: tuple[Strain, ...] = ()
    calm_t: float | None = None
    over_t: float | None = None

    @property
    def holds(self) -> bool:
        return self.over_t is None

    @property
    def hard(self) -> bool:
        return any(strain.hard for strain in self.strains)


def deferred(
    old: Deferral | None,
    strains: Sequence[Strain],
    policy: PressurePolicy,
    now_t: float,
    seed: str = "",
) -> Deferral | None:
    """The deferral of one class now; None = none, and none remembered."""
    if strains:
        return _strained(old, tuple(strains), policy, now_t, seed)
    if old is None:
        return None
    if old.over_t is not None:
        return old if now_t - old.over_t < policy.forget_s else None
    calm_t = now_t if old.calm_t is None else old.calm_t
    if now_t >= old.until_t or now_t - calm_t >= policy.calm_s:
        return replace(old, calm_t=calm_t, over_t=now_t)
    return replace(old, calm_t=calm_t)


def _strained(
    old: Deferral | None,
    strains: tuple[Strain, ...],
    policy: PressurePolicy,
    now_t: float,
    seed: str,
) -> Deferral:
    if old is not None and old.holds and now_t < old.until_t:
        return replace(old, strains=strains, calm_t=None)
    is_new = old is None or (old.over_t is not None and now_t - old.over_t >= policy.forget_s)
    number = 1 if old is None or is_new else old.number + 1
    since_t = old.since_t if old is not None and old.holds else now_t
    until_t = now_t + delay_s(number, policy, seed)
    return Deferral(number=number, since_t=since_t, until_t=until_t, strains=strains)


def delay_s(number: int, policy: PressurePolicy, seed: str = "") -> float:
    """How long deferral `number` lasts: the same for the same seed."""
    plain = min(policy.cap_s, policy.first_s * 2.0 ** min(number - 1, 30))
    if number <= 1:
        return plain
    part = zlib.crc32(f"{seed}/{number}".encode()) / 0xFFFFFFFF
    return plain * (1 + policy.jitter_pct / 100 * (2 * part - 1))


def saturated(
    loads: Mapping[str, float | None],
    held: Collection[str],
    policy: PressurePolicy,
    *,
    earlier: bool = False,
) -> frozenset[str]:
    """The GPUs that are too busy for more, of whole smoothed use. Unknown stays as it was."""
    if policy.gpu_busy_pct >= 100:
        return frozenset()
    lower = policy.background_earlier_pct if earlier else 0.0
    found = set()
    for uuid, load in loads.items():
        was = uuid in held
        least = (policy.gpu_calm_pct if was else policy.gpu_busy_pct) - lower
        if was if load is None else load > least:
            found.add(uuid)
    return frozenset(found)


def early(
    gauges: Sequence[Gauge], held: Collection[str], policy: PressurePolicy
) -> tuple[tuple[Strain, ...], frozenset[str]]:
    """What strains the machine for background jobs already; and the kinds, for the next time."""
    lower = policy.background_earlier_pct
    over = [g for g in gauges if _is_early(g, g.kind in held, lower)]
    strains = tuple(
        Strain(g.label, f"{g.what} above {g.opens - lower:.0f} %", g.value) for g in over
    )
    return strains, frozenset(gauge.kind for gauge in over)


def _is_early(gauge: Gauge, was: bool, lower: float) -> bool:
    """Unknown stays as it was."""
    is_over = gauge.is_over(was, lower)
    return was if is_over is None else is_over
