"""Thresholds of the incident rules. Each rule can be disabled."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.facts.thresholds import percent, threshold

# %: no incident is opened if readings cover less of the measured time.
COVERAGE_PCT = 80.0
# %: an open incident of sustained use closes below this mean use.
SUSTAINED_CLEAR_PCT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimePolicy:
    """Overuse of GPU and CPU time outside jobs, and exemptions from all rules."""

    # fmt: off
    sustained_on: bool = threshold(True, "Detect sustained use",
        "GPU hog: a user keeps one GPU busy for long, outside jobs.")
    sustained_pct: float = percent(80.0, "Sustained use: opens above",
        "A user's mean use of one GPU, outside jobs.")
    sustained_minutes: float = threshold(10.0, "Sustained use: measured over",
        unit="min", ge=0, le=1440)
    alert_on_hog: bool = threshold(False, "Alert on sustained use while no job waits",
        "Sustained use is then reported as a GPU hog, at level warning and each hour. Otherwise it "
        "is reported without blame, at growing intervals.")
    fair_on: bool = threshold(True, "Detect use above the fair share",
        "A user exceeds the fair share by more than 5 % of all GPUs for 10 minutes, while other "
        "users wait.")
    cpu_on: bool = threshold(True, "Detect CPU overuse",
        "CPU hog: a user takes more than half of all CPUs for 10 minutes, outside jobs. "
        "Disabled with simulated GPUs, because the CPUs are real.")
    exempt_users: tuple[str, ...] = threshold((), "Exempt users", "User names; * is a wildcard.")
    exempt_programs: tuple[str, ...] = threshold((), "Exempt programs",
        "Program names; * is a wildcard.")
    exempt_containers: tuple[str, ...] = threshold((), "Exempt containers",
        "Container names as displayed; * is a wildcard.")
    spare_service_accounts: bool = threshold(True, "Exempt service accounts",
        "Accounts with user IDs 1 to 999.")
    # fmt: on

    @property
    def sustained_clear_pct(self) -> float:
        return min(SUSTAINED_CLEAR_PCT, self.sustained_pct)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """GPU memory that is overused, leaking, idle or orphaned."""

    # fmt: off
    hog_on: bool = threshold(True, "Detect GPU memory overuse",
        "Memory hog: a user holds 80 % of one GPU's memory for 10 minutes, outside jobs.")
    leak_on: bool = threshold(True, "Detect memory leaks",
        "The GPU memory of a process grows steadily for an hour, by at least 1 GiB.")
    idle_on: bool = threshold(True, "Detect idle memory",
        "A process holds GPU memory without using the GPU while others need it.")
    idle_minutes: float = threshold(60.0, "Idle memory: measured over", unit="min", ge=0, le=1440)
    orphaned_on: bool = threshold(True, "Detect orphaned memory",
        "At least 1 GiB of GPU memory is in use by no visible process for 10 minutes.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingPolicy:
    """Differences between booked and actual use."""

    # fmt: off
    empty_on: bool = threshold(True, "Detect empty bookings",
        "No process of the holder is on the booked GPUs for 15 minutes.")
    unused_on: bool = threshold(True, "Detect unused booked GPUs",
        "A job uses only some of its booked GPUs, and others below 2 % for 30 minutes.")
    over_on: bool = threshold(True, "Detect use beyond a booking",
        "A holder uses other GPUs, or 10 % more memory than booked, for 5 minutes.")
    unclaimed_on: bool = threshold(False, "Detect use outside the queue",
        "For hosts on which all use must be booked: 1 GiB of memory for 10 minutes, or 30 "
        "GPU-minutes within two hours.")
    # fmt: on
