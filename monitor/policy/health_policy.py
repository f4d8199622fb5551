"""Policy: the thresholds by which a GPU counts as healthy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When a GPU gets no new work because it is not well, and when it does again."""

    hot_c: float = field(
        default=85.0,
        metadata={
            "label": "Too hot from",
            "help": "A GPU this hot is throttled: it gets no new work.",
            "unit": "°C",
            "least": 40,
            "most": 120,
        },
    )
    cool_c: float = field(
        default=80.0,
        metadata={
            "label": "Cool again at",
            "help": "Then it gets work again.",
            "unit": "°C",
            "least": 0,
            "most": 120,
        },
    )
    slow_s: float = field(
        default=10.0,
        metadata={
            "label": "Slowed down for",
            "help": "A slow-down by its hardware or driver counts once it has lasted so long.",
            "unit": "s",
            "least": 0,
            "most": 3600,
        },
    )
    slow_clear_s: float = field(
        default=30.0,
        metadata={
            "label": "… and no longer after",
            "help": "Once the slow-down has stayed away so long.",
            "unit": "s",
            "least": 0,
            "most": 3600,
        },
    )
    spin_pct: float = field(
        default=99.0,
        metadata={"label": "Seems to spin from this use", "unit": "%", "least": 1, "most": 100},
    )
    idle_power_pct: float = field(
        default=25.0,
        metadata={
            "label": "… on less power than",
            "help": "Of its power limit: then it seems to wait in a loop.",
            "unit": "%",
            "least": 0,
            "most": 100,
        },
    )
    spin_minutes: float = field(
        default=10.0,
        metadata={"label": "… for", "unit": "min", "least": 0, "most": 1440},
    )
    over_power_pct: float = field(
        default=110.0,
        metadata={
            "label": "Over its power from",
            "help": "Of its power limit.",
            "unit": "%",
            "least": 100,
            "most": 200,
        },
    )
    over_power_s: float = field(
        default=30.0, metadata={"label": "… for", "unit": "s", "least": 0, "most": 3600}
    )
    xid_hold_minutes: float = field(
        default=60.0,
        metadata={
            "label": "After an XID of its hardware",
            "help": "So long it gets no new work.",
            "unit": "min",
            "least": 0,
            "most": 10_080,
        },
    )

    def conflicts(self) -> dict[str, str]:
        above = self.cool_c > self.hot_c
        return {"cool_c": "it must not be above what is too hot"} if above else {}

    @property
    def slow_for(self) -> timedelta:
        return timedelta(seconds=self.slow_s)

    @property
    def slow_clear(self) -> timedelta:
        return timedelta(seconds=self.slow_clear_s)

    @property
    def spin_for(self) -> timedelta:
        return timedelta(minutes=self.spin_minutes)

    @property
    def over_power_for(self) -> timedelta:
        return timedelta(seconds=self.over_power_s)

    @property
    def xid_hold(self) -> timedelta:
        return timedelta(minutes=self.xid_hold_minutes)
