"""Policy: every policy of the monitor by its short stable name, and what profiles preset of them.

A policy is a frozen dataclass whose fields all have defaults: these are as on a shared server.
"""

from __future__ import annotations

from typing import Any

from monitor.policy.alerting import AlertPolicy
from monitor.policy.constraints import ConstraintPolicy
from monitor.policy.cooling import CoolingPolicy
from monitor.policy.enforcement_policy import EnforcementPolicy
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.presence_policy import PresencePolicy
from monitor.policy.retention import RetentionPolicy

POLICIES: dict[str, type[Any]] = {
    "constraints": ConstraintPolicy,
    "alerts": AlertPolicy,
    "cooling": CoolingPolicy,
    "enforcement": EnforcementPolicy,
    "presence": PresencePolicy,
    "hogs": HogPolicy,
    "memory_hogs": MemoryPolicy,
    "claims": ClaimPolicy,
    "retention": RetentionPolicy,
}

# What a machine is for: the values that differ there from the defaults, by profile and policy.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "desktop": {
        "constraints": {"cpu_busy_pct": 90.0, "cpu_wait_pct": 60.0},
        "presence": {"enabled": True, "yields": "all"},
    },
    "server": {},
    "coordinator": {"claims": {"unclaimed_on": True}},
}
PROFILE_WORDS = {
    "desktop": "somebody works at this machine: whoever uses a GPU there has it for themselves",
    "server": "many people share this machine, and none of them sits at it",
    "coordinator": "this machine serves the others: little is to run on it",
}
