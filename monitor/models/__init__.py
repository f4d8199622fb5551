from __future__ import annotations

from monitor.models.access import ApiToken
from monitor.models.alerts import Channel, Message, Response
from monitor.models.chores import Chore
from monitor.models.claims import Claim
from monitor.models.closures import GpuClosure
from monitor.models.constraints import Constraint
from monitor.models.events import Event
from monitor.models.gpus import Gpu
from monitor.models.incidents import CpuLook, Exemption, Incident, Pattern
from monitor.models.leases import Lease
from monitor.models.policies import AuditEntry, PolicyValues
from monitor.models.rollups import GpuHour, GpuMinute, HostHour, HostMinute, ProcessHour
from monitor.models.samples import HostSample, LatestSnapshot, Sample
from monitor.models.tallies import Tally
from monitor.models.uses import ProcessMinute, ProcessUse

__all__ = [
    "ApiToken",
    "AuditEntry",
    "Channel",
    "Chore",
    "Claim",
    "Constraint",
    "CpuLook",
    "Event",
    "Exemption",
    "Gpu",
    "GpuClosure",
    "GpuHour",
    "GpuMinute",
    "HostHour",
    "HostMinute",
    "HostSample",
    "Incident",
    "LatestSnapshot",
    "Lease",
    "Message",
    "Pattern",
    "PolicyValues",
    "ProcessHour",
    "ProcessMinute",
    "ProcessUse",
    "Response",
    "Sample",
    "Tally",
]
