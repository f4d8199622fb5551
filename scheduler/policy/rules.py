"""Policy: the thresholds of all that a pass of the planner asks, in one."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.policy.backfill import BackfillPolicy
from scheduler.policy.capacity import CapacityPolicy
from scheduler.policy.ordering import OrderPolicy
from scheduler.policy.preemption import PreemptionPolicy
from scheduler.policy.quotas import QuotaPolicy
from scheduler.policy.windows import WindowPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Each part's own policy; what is not given is as shipped."""

    backfill: BackfillPolicy = field(default_factory=BackfillPolicy)
    capacity: CapacityPolicy = field(default_factory=CapacityPolicy)
    order: OrderPolicy = field(default_factory=OrderPolicy)
    quotas: QuotaPolicy = field(default_factory=QuotaPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    windows: WindowPolicy = field(default_factory=WindowPolicy)
