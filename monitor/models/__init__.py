from __future__ import annotations

from monitor.models.access import ApiToken
from monitor.models.chores import Chore
from monitor.models.claims import Claim
from monitor.models.constraints import Constraint
from monitor.models.events import Event
from monitor.models.gpus import Gpu
from monitor.models.leases import Lease
from monitor.models.samples import HostSample, LatestSnapshot, Sample

__all__ = [
    "ApiToken",
    "Chore",
    "Claim",
    "Constraint",
    "Event",
    "Gpu",
    "HostSample",
    "LatestSnapshot",
    "Lease",
    "Sample",
]
