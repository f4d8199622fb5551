"""Thresholds of the incident rules. Each rule can be disabled."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.facts.thresholds import percent, threshold

# Desktop and driver processes: they belong to no user, or to the interactive user.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimePolicy:
    """Overuse of GPU and CPU time outside jobs, and exemptions from all rules."""

    # fmt: off
    coverage_pct: float = percent(80.0, "Minimum coverage",
        "No incident is opened if readings cover less of the measured time.")
    clear_minutes: float = threshold(5.0, "Close an incident after", unit="min", ge=0, le=1440,
        help="The condition must be absent for this time; otherwise the incident continues.")
    sustained_on: bool = threshold(True, "Detect sustained use",
        "GPU hog: a user keeps one GPU busy for long, outside jobs.")
    sustained_pct: float = percent(80.0, "Sustained use: opens above",
        "A user's mean use of one GPU, outside jobs.")
    sustained_clear_pct: float = percent(60.0, "Sustained use: closes below",
        "Mean use over the same time.")
    sustained_minutes: float = threshold(10.0, "Sustained use: measured over",
        unit="min", ge=0, le=1440)
    fair_on: bool = threshold(True, "Detect use above the fair share",
        "A user exceeds the fair share while other users wait.")
    fair_entitled_pct: float = percent(30.0, "Fair share: default share",
        "Share of all GPUs for a user without a quota.")
    fair_margin_pct: float = percent(5.0, "Fair share: tolerance",
        "Allowed use above the fair share.")
    fair_minutes: float = threshold(10.0, "Fair share: measured over", unit="min", ge=0, le=1440)
    fair_wait_minutes: float = threshold(1.0, "Fair share: minimum wait of other users",
        unit="min", ge=0, le=1440,
        help="Other users must wait this long before an incident opens.")
    severe_wait_minutes: float = threshold(60.0, "Serious after a total wait of",
        unit="min", ge=0, le=1440,
        help="Sum of the waiting times of all waiting users.")
    cpu_on: bool = threshold(True, "Detect CPU overuse",
        "CPU hog. Disabled with simulated GPUs, because the CPUs are real.")
    cpu_pct: float = percent(50.0, "CPU overuse: opens above",
        "A user's share of all CPUs, outside jobs.")
    cpu_minutes: float = threshold(10.0, "CPU overuse: measured over", unit="min", ge=0, le=1440)
    exempt_users: tuple[str, ...] = threshold((), "Exempt users", "User names; * is a wildcard.")
    exempt_programs: tuple[str, ...] = threshold((), "Exempt programs",
        "Program names; * is a wildcard.")
    exempt_containers: tuple[str, ...] = threshold((), "Exempt containers",
        "Container names as displayed; * is a wildcard.")
    system_programs: tuple[str, ...] = threshold(SYSTEM_PROGRAMS, "System programs",
        "Exempt. A user's process with such a name is exempt only if it is a graphics process.")
    spare_service_accounts: bool = threshold(True, "Exempt service accounts",
        "Accounts with user IDs 1 to 999.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.sustained_clear_pct > self.sustained_pct:
            return {"sustained_clear_pct": "it must not be above the opening value"}
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """GPU memory that is overused, leaking, idle or orphaned."""

    # fmt: off
    hog_on: bool = threshold(True, "Detect GPU memory overuse",
        "Memory hog: a user holds most of one GPU's memory, outside jobs.")
    hog_pct: float = percent(80.0, "Memory overuse: opens above",
        "Share of one GPU's memory that a user holds outside jobs.")
    hog_minutes: float = threshold(10.0, "Memory overuse: measured over", unit="min", ge=0, le=1440)
    leak_on: bool = threshold(True, "Detect memory leaks", "A process's GPU memory grows steadily.")
    leak_minutes: float = threshold(60.0, "Leak: measured over", unit="min", ge=0, le=1440)
    leak_gib_per_hour: float = threshold(1.0, "Leak: minimum growth", unit="GiB", ge=0,
        help="Growth per hour.")
    leak_rising_pct: float = percent(85.0, "Leak: steadiness",
        "Minimum share of rising pairs among all pairs of minutes (Mann–Kendall).")
    idle_on: bool = threshold(True, "Detect idle memory",
        "A process holds GPU memory without using the GPU while others need it.")
    idle_minutes: float = threshold(60.0, "Idle memory: measured over", unit="min", ge=0, le=1440)
    idle_pct: float = percent(2.0, "Idle memory: GPU use below",
        "Mean use; an occasional keep-alive still counts as idle.")
    idle_gib: float = threshold(1.0, "Idle memory: minimum size", unit="GiB", ge=0)
    idle_busy_pct: float = percent(30.0, "Idle memory: other users' use above",
        "Alternatively, a job must be waiting for this GPU.")
    orphaned_on: bool = threshold(True, "Detect orphaned memory",
        "GPU memory is in use by no visible process.")
    orphaned_minutes: float = threshold(10.0, "Orphaned memory: measured over",
        unit="min", ge=0, le=1440)
    orphaned_gib: float = threshold(1.0, "Orphaned memory: minimum size", unit="GiB", ge=0)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingPolicy:
    """Differences between booked and actual use."""

    # fmt: off
    empty_on: bool = threshold(True, "Detect empty bookings",
        "No process of the holder is on the booked GPUs.")
    empty_minutes: float = threshold(15.0, "Empty booking: after", unit="min", ge=0, le=1440)
    unused_on: bool = threshold(True, "Detect unused booked GPUs",
        "A job uses only some of its booked GPUs.")
    unused_minutes: float = threshold(30.0, "Unused booked GPU: measured over",
        unit="min", ge=0, le=1440)
    unused_pct: float = percent(2.0, "Unused booked GPU: use below", "Mean use over the same time.")
    over_on: bool = threshold(True, "Detect use beyond a booking",
        "A holder uses other GPUs or more memory than booked.")
    over_minutes: float = threshold(5.0, "Use beyond a booking: after", unit="min", ge=0, le=1440)
    over_margin_pct: float = percent(10.0, "Use beyond a booking: memory tolerance")
    over_gib: float = threshold(1.0, "Use beyond a booking: minimum memory on another GPU",
        unit="GiB", ge=0,
        help="Less memory is driver overhead or idle.")
    unclaimed_on: bool = threshold(False, "Detect use outside the queue",
        "For hosts on which all use must be booked.")
    unclaimed_gib: float = threshold(1.0, "Outside the queue: memory above", unit="GiB", ge=0)
    unclaimed_gpu_minutes: float = threshold(30.0, "Outside the queue: GPU-minutes above",
        unit="min", ge=0, le=1440,
        help="Sum over the last two hours.")
    unclaimed_minutes: float = threshold(10.0, "Outside the queue: after",
        unit="min", ge=0, le=1440)
    # fmt: on
