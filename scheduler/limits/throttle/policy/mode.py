"""Policy: whether gpucoord is cooperative, or defends its users against lasting hogs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from monitor.facts.thresholds import percent, threshold


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """The mode that an operator set, and until when."""

    mode: Mode
    until: datetime
    by: str


@dataclass(frozen=True, slots=True)
class ModeDecision:
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


def multiplier(mode: Mode, policy: ModePolicy) -> float:
    return policy.defensive_multiplier if mode is Mode.DEFENSIVE else 1.0
