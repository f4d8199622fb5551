"""Declaration of a threshold as a field of a policy, and former thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

# Declaration of a threshold: a field of a policy's dataclass with its label, help and limits.


def threshold(
    default: Any,
    label: str,
    help: str = "",
    *,
    unit: str = "",
    ge: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """`ge` and `le` limit a number, or each number of a tuple; `choices` the texts of a tuple."""
    metadata = {
        "label": label, "help": help, "unit": unit, "ge": ge, "le": le, "choices": tuple(choices)
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def percent(default: float, label: str, help: str = "") -> Any:
    return threshold(default, label, help, unit="%", ge=0, le=100)


# The sources of values, in words.
IN_SETTINGS, BY_OPERATORS = "in gpucoord.toml or GPUCOORD_POLICY", "set in the admin"
# By policy: the names of its former thresholds.
RETIRED: dict[str, frozenset[str]] = {
    policy: frozenset(names.split())
    for policy, names in {
        "adaptive": (
            "margin_pct unknown_multiplier hog_multiplier least_multiplier smooth_s coverage_pct"
        ),
        "alerts": "owner_days retry_first_s retry_most_s give_up_hours",
        "backfill": "patience_minutes",
        "batches": "announce_s drain_minutes",
        "bounds": "default_memory_gib process_memory_pct pids cap_share period_s mps",
        "capacity": "above_peak_pct heavy_pct ramped_pct ramp_s",
        "claims": (
            "empty_minutes unused_minutes unused_pct over_minutes over_margin_pct over_gib "
            "unclaimed_gib unclaimed_gpu_minutes unclaimed_minutes"
        ),
        "cleaning": "checkpoint_keep checkpoint_days data_days",
        "constraints": (
            "disk_free_pct disk_free_again_pct data_free_again_gib memory_free_pct "
            "memory_free_again_pct memory_stall_over_pct cpu_wait_over_pct io_wait_over_pct"
        ),
        "cooling": "wait_s",
        "delivery": "incident_hours incident_days requested_days",
        "disk": "calm_pct",
        "enforcement": "nice cpu_cores run_s stop_s",
        "eviction": "long_script_queue script_seconds",
        "health": (
            "cool_c slow_s slow_clear_s spin_pct idle_power_pct spin_minutes over_power_pct "
            "over_power_s xid_hold_minutes"
        ),
        "hogs": (
            "coverage_pct clear_minutes sustained_clear_pct fair_margin_pct fair_minutes "
            "fair_entitled_pct "
            "fair_wait_minutes severe_wait_minutes cpu_pct cpu_minutes system_programs"
        ),
        "idle": "idle_minutes",
        "idle_work": "half_life_hours stale_hours seed",
        "interactive": "warn_minutes busy_pct reconnect_minutes",
        "memory_hogs": (
            "hog_pct hog_minutes leak_minutes leak_gib_per_hour leak_rising_pct idle_pct "
            "idle_gib idle_busy_pct orphaned_minutes orphaned_gib"
        ),
        "mode": "hours cooperative_below_pct",
        "niceness": "enabled nice idle_io busy_cpu_pct quiet_cpu_pct busy_io_pct",
        "notifications": "soon_minutes most_per_hour",
        "order": "fair_weight age_hours overdue_hours",
        "patterns": "busy_pct sure_pct least_times least_hours",
        "preemption": "young_minutes keep_s cool_down_minutes most_requeues",
        "presence": (
            "enter_use_pct leave_use_pct leave_memory_mib leave_compute_memory_mib latch_s "
            "learn_minutes"
        ),
        "pressure": "background_earlier_pct first_s cap_s jitter_pct calm_s forget_s smooth_s",
        "prompts": "waiting_mib use_days",
        "quotas": "catch_up entry_hours longest_gap_s",
        "rank": "enabled long_hours",
        "reports": "coverage_pct high_pct sustained_pct violation_hours",
        "retention": "state_change_days message_days",
        "retries": "first_pause_s longest_pause_minutes jitter_pct memory_factor most_lost",
        "sizing": "runs least_runs percentile margin_pct",
        "utilisation": "gain integral_gain derivative_gain smooth_s settle_s quiet_pct",
        "windows": "unknown_hours saturated_pct trusted_after_minutes",
    }.items()
}


def retired(tables: Mapping[str, object]) -> list[str]:
    """Such as `["hogs.coverage_pct"]`: the values in tables of policies that have no effect."""
    return [
        f"{policy}.{name}"
        for policy, values in tables.items()
        if isinstance(values, Mapping)
        for name in values
        if name in RETIRED.get(policy, ())
    ]


def without_retired(tables: Mapping[str, object]) -> dict[str, object]:
    """The tables without such values, and without the tables of policies that have none left."""
    kept: dict[str, object] = {}
    for policy, values in tables.items():
        names = RETIRED.get(policy, frozenset())
        if names and isinstance(values, Mapping):
            values = {name: value for name, value in values.items() if name not in names}
            if not values:
                continue
        kept[policy] = values
    return kept


def sentence(names: Iterable[str], origin: str) -> str:
    """`cooling.wait_s is no threshold any more: its value set in the admin is ignored.`"""
    listed = sorted(names)
    if len(listed) == 1:
        return f"{listed[0]} is no threshold any more: its value {origin} is ignored."
    return f"{', '.join(listed)} are no thresholds any more: their values {origin} are ignored."
