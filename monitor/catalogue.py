"""Policy: the policies of the monitor by their stable names, and the presets of each profile.

A policy is a frozen dataclass of thresholds. The defaults are those of the profile "server".
"""

from __future__ import annotations

from typing import Any

from monitor.gpus.policy.health import HealthPolicy
from monitor.gpus.policy.presence import PresencePolicy
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.policy.constraints import ConstraintPolicy
from monitor.incidents.policy.enforcement import EnforcementPolicy
from monitor.incidents.policy.findings import BookingPolicy, GpuTimePolicy, MemoryPolicy
from monitor.incidents.policy.patterns import PatternPolicy
from monitor.usage.policy.ranges import RetentionPolicy

POLICIES: dict[str, type[Any]] = {
    "constraints": ConstraintPolicy,
    "alerts": AlertPolicy,
    "enforcement": EnforcementPolicy,
    "presence": PresencePolicy,
    "health": HealthPolicy,
    "hogs": GpuTimePolicy,
    "memory_hogs": MemoryPolicy,
    "claims": BookingPolicy,
    "patterns": PatternPolicy,
    "retention": RetentionPolicy,
}

# Values that differ from the defaults, by profile and policy.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "desktop": {
        "constraints": {"cpu_busy_pct": 90.0, "cpu_wait_pct": 60.0},
        # The interactive user may use everything; only waste is reported.
        "hogs": {"sustained_on": False, "fair_on": False, "cpu_on": False},
        "memory_hogs": {"hog_on": False, "idle_on": False},
        "presence": {"enabled": True, "yields": "all"},
    },
    "server": {},
    "coordinator": {
        "claims": {"unclaimed_on": True},
        "constraints": {
            "cpu_busy_pct": 70.0,
            "cpu_calm_pct": 50.0,
            "memory_busy_pct": 60.0,
            "memory_calm_pct": 55.0,
        },
    },
}
# Headings of the page of rules, and the title of each policy. Policies without a topic come last.
TOPICS: dict[str, dict[str, str]] = {
    "Overuse and enforcement": {
        "hogs": "Overuse of GPU and CPU time",
        "memory_hogs": "Overuse of GPU memory",
        "claims": "Unused bookings",
        "patterns": "Recurring use",
        "presence": "Interactive users",
        "enforcement": "Automatic enforcement",
    },
    "Health and operation": {
        "constraints": "Shortages of the host",
        "health": "Health of GPUs",
        "alerts": "Delivery of alerts",
        "retention": "Retention of records",
    },
}
PROFILE_WORDS = {
    "desktop": "a workstation; an interactive user has priority on the GPUs in use",
    "server": "a server that many users share",
    "coordinator": "a host that serves other hosts and should carry little load",
}
