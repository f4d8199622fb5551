"""Policy: whether gpucoord is cooperative, or defends its users against lasting hogs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

PCT = {"unit": "%", "least": 0, "most": 100}


class Mode(StrEnum):
    """cooperative: as usual · defensive: hogs were there too long, normal and background jobs

    are kept small; nobody else's process is touched.
    """

    COOPERATIVE = "cooperative"
    DEFENSIVE = "defensive"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePolicy:
    """When the mode changes, and what it does."""

    hours: float = field(
        default=24.0,
        metadata={
            "label": "Look back",
            "help": "Over so long.",
            "unit": "h",
            "least": 1,
            "most": 168,
        },
    )
    defensive_above_pct: float = field(
        default=30.0,
        metadata={
            "label": "Defensive above",
            "help": "The part of that time in which a hog was there. 100 = never.",
            **PCT,
        },
    )
    cooperative_below_pct: float = field(
        default=20.0,
        metadata={"label": "Cooperative again below", "help": "", **PCT},
    )
    defensive_multiplier: float = field(
        default=0.5,
        metadata={
            "label": "Multiplier when defensive",
            "help": "Of all quotas, for normal and background jobs.",
            "unit": "×",
            "least": 0,
            "most": 1,
        },
    )

    def conflicts(self) -> dict[str, str]:
        if self.cooperative_below_pct <= self.defensive_above_pct:
            return {}
        return {"cooperative_below_pct": "it must not be above where defensive begins."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What an operator decided instead, until when."""

    mode: Mode
    until: datetime
    by: str


@dataclass(frozen=True, slots=True)
class Judged:
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
) -> Judged:
    """`automatic`: the last mode by the hogs alone; hog_share: 0..1 of the time, None = unknown."""
    mode = _automatic(automatic, hog_share, policy)
    why = _why(mode, hog_share, policy)
    if override is None or override.until <= now:
        return Judged(mode, why, mode, why)
    return Judged(override.mode, f"{override.by} has set it.", mode, why)


def _automatic(old: Mode, share: float | None, policy: ModePolicy) -> Mode:
    """Nobody is held to be a hog on what is not known: then it stays as it is."""
    if share is None:
        return old
    if 100 * share > policy.defensive_above_pct:
        return Mode.DEFENSIVE
    return Mode.COOPERATIVE if 100 * share < policy.cooperative_below_pct else old


def _why(mode: Mode, share: float | None, policy: ModePolicy) -> str:
    if share is None:
        return "How long hogs were there is not known now."
    text = f"Hogs were present {100 * share:.0f} % of the last {policy.hours:.0f} h"
    if mode is Mode.DEFENSIVE:
        return f"{text}; it is cooperative again below {policy.cooperative_below_pct:.0f} %."
    return f"{text}; it gets defensive above {policy.defensive_above_pct:.0f} %."


def multiplier(mode: Mode, policy: ModePolicy) -> float:
    return policy.defensive_multiplier if mode is Mode.DEFENSIVE else 1.0
