"""Former thresholds, whose values are fixed now. Stored values of them are reported and ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# By policy: the names of its former thresholds.
RETIRED: dict[str, frozenset[str]] = {
    policy: frozenset(names.split())
    for policy, names in {
        "alerts": "owner_days retry_first_s retry_most_s give_up_hours",
        "claims": (
            "empty_minutes unused_minutes unused_pct over_minutes over_margin_pct over_gib "
            "unclaimed_gib unclaimed_gpu_minutes unclaimed_minutes"
        ),
        "constraints": (
            "disk_free_pct disk_free_again_pct data_free_again_gib memory_free_pct "
            "memory_free_again_pct memory_stall_over_pct cpu_wait_over_pct io_wait_over_pct"
        ),
        "cooling": "wait_s",
        "enforcement": "nice cpu_cores run_s stop_s",
        "health": (
            "cool_c slow_s slow_clear_s spin_pct idle_power_pct spin_minutes over_power_pct "
            "over_power_s xid_hold_minutes"
        ),
        "hogs": (
            "coverage_pct clear_minutes sustained_clear_pct fair_margin_pct fair_minutes "
            "fair_wait_minutes severe_wait_minutes cpu_pct cpu_minutes system_programs"
        ),
        "memory_hogs": (
            "hog_minutes leak_minutes leak_gib_per_hour leak_rising_pct idle_pct idle_gib "
            "idle_busy_pct orphaned_minutes orphaned_gib"
        ),
        "patterns": "busy_pct sure_pct least_times least_hours",
        "presence": (
            "enter_use_pct leave_use_pct leave_memory_mib leave_compute_memory_mib latch_s "
            "learn_minutes"
        ),
        "retention": "state_change_days",
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
    """`hogs.coverage_pct is no threshold any more: its value in gpucoord.toml is ignored.`"""
    listed = sorted(names)
    if len(listed) == 1:
        return f"{listed[0]} is no threshold any more: its value {origin} is ignored."
    return f"{', '.join(listed)} are no thresholds any more: their values {origin} are ignored."
