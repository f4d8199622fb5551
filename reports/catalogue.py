"""Policy: the policies of the reports by their stable names."""

from __future__ import annotations

from typing import Any

from reports.capacity.policy.demand import CapacityPolicy
from reports.figures.policy.advice import ReportPolicy
from reports.schedule.policy import DeliveryPolicy

POLICIES: dict[str, type[Any]] = {
    "capacity": CapacityPolicy,
    "delivery": DeliveryPolicy,
    "reports": ReportPolicy,
}
PROFILES: dict[str, dict[str, dict[str, Any]]] = {"desktop": {}, "server": {}, "coordinator": {}}
# Headings of the page of rules, and the title of each policy.
TOPICS: dict[str, dict[str, str]] = {
    "Reports": {
        "reports": "Fair-share reports",
        "delivery": "Stored reports",
        "capacity": "Capacity planning",
    },
}
