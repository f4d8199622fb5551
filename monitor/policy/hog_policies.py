"""Thresholds of the rules that find incidents: each rule can be switched off by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PCT = {"unit": "%", "least": 0, "most": 100}
MIN = {"unit": "min", "least": 0, "most": 1440}
GIB = {"unit": "GiB", "least": 0}
SWITCH: dict[str, Any] = {}
# Desktops and the driver's own: they belong to nobody, or to the person who sits there.
SYSTEM_PROGRAMS = (
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "kwin*",
    "plasmashell",
    "mutter*",
    "sddm*",
    "gdm*",
    "lightdm*",
    "nvidia-*",
    "nv-hostengine",
    "dcgm*",
)


def _meta(label: str, help_: str, kind: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "help": help_, **kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class HogPolicy:
    """Who takes too much of the GPUs' time, and whom no rule accuses."""

    coverage_pct: float = field(
        default=80.0,
        metadata=_meta("Least coverage", "Nobody is accused on less of the time known.", PCT),
    )
    clear_minutes: float = field(
        default=5.0, metadata=_meta("Quiet before it is closed", "Less, and it goes on.", MIN)
    )
    sustained_on: bool = field(default=True, metadata=_meta("Sustained use", "", SWITCH))
    sustained_pct: float = field(
        default=80.0,
        metadata=_meta("Sustained use above", "A person's mean on one GPU, outside jobs.", PCT),
    )
    sustained_clear_pct: float = field(
        default=60.0, metadata=_meta("Sustained use ends below", "The mean of the same time.", PCT)
    )
    sustained_minutes: float = field(
        default=10.0, metadata=_meta("Sustained use for", "How long at least.", MIN)
    )
    fair_on: bool = field(default=True, metadata=_meta("Fair share", "", SWITCH))
    fair_entitled_pct: float = field(
        default=30.0,
        metadata=_meta("Share of who waits", "Of the machine, for people without a quota.", PCT),
    )
    fair_margin_pct: float = field(
        default=5.0, metadata=_meta("Fair share: tolerance", "Above the share of others.", PCT)
    )
    fair_minutes: float = field(default=10.0, metadata=_meta("Fair share: measured over", "", MIN))
    fair_wait_minutes: float = field(
        default=1.0,
        metadata=_meta("Fair share: others wait for", "Before somebody is asked to leave.", MIN),
    )
    severe_wait_minutes: float = field(
        default=60.0,
        metadata=_meta("Serious after others waited", "All who waited, added up.", MIN),
    )
    cpu_on: bool = field(
        default=True,
        metadata=_meta("CPU hog", "Not judged beside simulated GPUs: the CPUs are real.", SWITCH),
    )
    cpu_pct: float = field(
        default=50.0,
        metadata=_meta("CPU hog above", "A person's part of all CPUs, outside jobs.", PCT),
    )
    cpu_minutes: float = field(default=10.0, metadata=_meta("CPU hog for", "", MIN))
    exempt_users: tuple[str, ...] = field(
        default=(), metadata=_meta("Spared people", "Names; * stands for anything.", SWITCH)
    )
    exempt_programs: tuple[str, ...] = field(
        default=(), metadata=_meta("Spared programs", "Names; * stands for anything.", SWITCH)
    )
    exempt_containers: tuple[str, ...] = field(
        default=(), metadata=_meta("Spared containers", "As shown; * stands for anything.", SWITCH)
    )
    system_programs: tuple[str, ...] = field(
        default=SYSTEM_PROGRAMS,
        metadata=_meta(
            "Programs of the system",
            "Spared; of people, whose programs may have any name, only what draws on a screen.",
            SWITCH,
        ),
    )
    spare_service_accounts: bool = field(
        default=True,
        metadata=_meta("Spare service accounts", "Account numbers 1 to 999.", SWITCH),
    )

    def conflicts(self) -> dict[str, str]:
        if self.sustained_clear_pct > self.sustained_pct:
            return {"sustained_clear_pct": "It must not be above the threshold that opens."}
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """Who holds a GPU's memory to the harm of others."""

    hog_on: bool = field(default=True, metadata=_meta("Memory hog", "", SWITCH))
    hog_pct: float = field(
        default=80.0,
        metadata=_meta("Memory hog above", "Of one GPU's memory, a person outside jobs.", PCT),
    )
    hog_minutes: float = field(default=10.0, metadata=_meta("Memory hog for", "", MIN))
    leak_on: bool = field(default=True, metadata=_meta("Leak", "", SWITCH))
    leak_minutes: float = field(default=60.0, metadata=_meta("Leak: watched for", "", MIN))
    leak_gib_per_hour: float = field(
        default=1.0, metadata=_meta("Leak: grows by at least", "GiB each hour.", GIB)
    )
    leak_rising_pct: float = field(
        default=85.0,
        metadata=_meta("Leak: how steadily", "Of all pairs of minutes, those that rise.", PCT),
    )
    idle_on: bool = field(default=True, metadata=_meta("Memory held idle", "", SWITCH))
    idle_minutes: float = field(default=60.0, metadata=_meta("Held idle for", "", MIN))
    idle_pct: float = field(
        default=2.0,
        metadata=_meta("Idle below", "The mean: a keep-alive now and then is idle, too.", PCT),
    )
    idle_gib: float = field(default=1.0, metadata=_meta("Held idle: at least", "", GIB))
    idle_busy_pct: float = field(
        default=30.0,
        metadata=_meta("Beside others above", "Or while somebody waits for that GPU.", PCT),
    )
    orphaned_on: bool = field(default=True, metadata=_meta("Orphaned memory", "", SWITCH))
    orphaned_minutes: float = field(default=10.0, metadata=_meta("Orphaned for", "", MIN))
    orphaned_gib: float = field(default=1.0, metadata=_meta("Orphaned: at least", "", GIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPolicy:
    """What was booked beside what is used."""

    empty_on: bool = field(default=True, metadata=_meta("Booked but empty", "", SWITCH))
    empty_minutes: float = field(default=15.0, metadata=_meta("Booked but empty for", "", MIN))
    unused_on: bool = field(default=True, metadata=_meta("Booked GPUs unused", "", SWITCH))
    unused_minutes: float = field(default=30.0, metadata=_meta("GPUs unused for", "", MIN))
    unused_pct: float = field(
        default=2.0, metadata=_meta("Unused below", "The mean of that time.", PCT)
    )
    over_on: bool = field(default=True, metadata=_meta("More than booked", "", SWITCH))
    over_minutes: float = field(default=5.0, metadata=_meta("More than booked for", "", MIN))
    over_margin_pct: float = field(
        default=10.0, metadata=_meta("More memory than booked: tolerance", "", PCT)
    )
    over_gib: float = field(
        default=1.0,
        metadata=_meta("Another GPU counts from", "Less is the driver's own, or idle.", GIB),
    )
    unclaimed_on: bool = field(
        default=False,
        metadata=_meta("Use outside the queue", "For machines where all use is booked.", SWITCH),
    )
    unclaimed_gib: float = field(
        default=1.0, metadata=_meta("Outside the queue: memory above", "", GIB)
    )
    unclaimed_gpu_minutes: float = field(
        default=30.0,
        metadata=_meta("Outside the queue: GPU-minutes", "In the last two hours.", MIN),
    )
    unclaimed_minutes: float = field(default=10.0, metadata=_meta("Outside the queue for", "", MIN))
