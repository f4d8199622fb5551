"""Policy: every policy of the scheduler by its short stable name, and what profiles preset of them.

A policy is a frozen dataclass whose fields all have defaults: these are as on a shared server.
"""

from __future__ import annotations

from typing import Any

from scheduler.policy.adaptive import AdaptivePolicy
from scheduler.policy.backfill import BackfillPolicy
from scheduler.policy.bounds import BoundsPolicy, NicePolicy
from scheduler.policy.capacity import CapacityPolicy
from scheduler.policy.idling import IdlePolicy
from scheduler.policy.keeping import KeepingPolicy
from scheduler.policy.mode import ModePolicy
from scheduler.policy.ordering import OrderPolicy
from scheduler.policy.preemption import PreemptionPolicy
from scheduler.policy.pressure import PressurePolicy
from scheduler.policy.quotas import QuotaPolicy
from scheduler.policy.retrying import RetryPolicy
from scheduler.policy.utilisation import UtilisationPolicy
from scheduler.policy.windows import WindowPolicy

POLICIES: dict[str, type[Any]] = {
    "adaptive": AdaptivePolicy,
    "backfill": BackfillPolicy,
    "bounds": BoundsPolicy,
    "capacity": CapacityPolicy,
    "idle": IdlePolicy,
    "keeping": KeepingPolicy,
    "mode": ModePolicy,
    "niceness": NicePolicy,
    "order": OrderPolicy,
    "preemption": PreemptionPolicy,
    "pressure": PressurePolicy,
    "quotas": QuotaPolicy,
    "retries": RetryPolicy,
    "utilisation": UtilisationPolicy,
    "windows": WindowPolicy,
}

# What a machine is for: the values that differ there from the defaults, by profile and policy.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "desktop": {},
    "server": {},
    "coordinator": {
        "pressure": {"gpu_busy_pct": 50.0, "gpu_calm_pct": 40.0},
        "utilisation": {"low_pct": 30.0, "high_pct": 50.0},
    },
}
# As the page of rules lists them; what is in no topic comes last.
TOPICS: dict[str, tuple[str, ...]] = {
    "Who gets which GPU next": (
        "quotas",
        "order",
        "windows",
        "preemption",
        "retries",
        "backfill",
        "capacity",
    ),
    "When jobs wait for the machine": ("pressure", "utilisation", "adaptive", "mode", "idle"),
    "What keeps jobs within bounds": ("bounds", "niceness", "keeping"),
}
