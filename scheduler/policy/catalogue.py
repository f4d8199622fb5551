"""Policy: every policy of the scheduler by its short stable name, and what profiles preset of them.

A policy is a frozen dataclass whose fields all have defaults: these are as on a shared server.
"""

from __future__ import annotations

from typing import Any

from scheduler.policy.adaptive import AdaptivePolicy
from scheduler.policy.backfill import BackfillPolicy
from scheduler.policy.capacity import CapacityPolicy
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
    "capacity": CapacityPolicy,
    "mode": ModePolicy,
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
    "coordinator": {},
}
