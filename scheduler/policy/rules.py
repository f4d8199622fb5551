"""Policy: the thresholds of all that a pass of the planner asks, in one."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.policy.capacity import CapacityPolicy
from scheduler.policy.ordering import OrderPolicy
from scheduler.policy.quotas import QuotaPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Each part's own policy; what is not given is as shipped."""

    capacity: CapacityPolicy = field(default_factory=CapacityPolicy)
    order: OrderPolicy = field(default_factory=OrderPolicy)
    quotas: QuotaPolicy = field(default_factory=QuotaPolicy)
