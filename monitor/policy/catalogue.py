"""Policy: every policy of the monitor by its short stable name, and what profiles preset of them.

A policy is a frozen dataclass whose fields all have defaults: these are as on a shared server.
"""

from __future__ import annotations

from typing import Any

from monitor.policy.alerting import AlertPolicy
from monitor.policy.constraints import ConstraintPolicy
from monitor.policy.cooling import CoolingPolicy
from monitor.policy.enforcement_policy import EnforcementPolicy
from monitor.policy.health_policy import HealthPolicy
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.patterns import PatternPolicy
from monitor.policy.presence_policy import PresencePolicy
from monitor.policy.retention import RetentionPolicy

POLICIES: dict[str, type[Any]] = {
    "constraints": ConstraintPolicy,
    "alerts": AlertPolicy,
    "cooling": CoolingPolicy,
    "enforcement": EnforcementPolicy,
    "presence": PresencePolicy,
    "health": HealthPolicy,
    "hogs": HogPolicy,
    "memory_hogs": MemoryPolicy,
    "claims": ClaimPolicy,
    "patterns": PatternPolicy,
    "retention": RetentionPolicy,
}

# What a machine is for: the values that differ there from the defaults, by profile and policy.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "desktop": {
        "constraints": {"cpu_busy_pct": 90.0, "cpu_wait_pct": 60.0},
        # Who sits there takes what they want: only what nobody has any good of is noticed.
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
# As the page of rules lists them; what is in no topic comes last.
TOPICS: dict[str, tuple[str, ...]] = {
    "Who is asked to make room": (
        "hogs",
        "memory_hogs",
        "claims",
        "patterns",
        "presence",
        "enforcement",
    ),
    "How the machine is looked after": ("constraints", "health", "cooling", "alerts", "retention"),
}
PROFILE_WORDS = {
    "desktop": "somebody works at this machine: whoever uses a GPU there has it for themselves",
    "server": "many people share this machine, and none of them sits at it",
    "coordinator": "this machine serves the others: little is to run on it",
}
