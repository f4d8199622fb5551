from __future__ import annotations

from monitor.models.access import Agent, ApiToken, LoginLink, OsAccount, PolicyValues
from monitor.models.alerts import Channel, Message, Response
from monitor.models.gpus import Claim, Gpu, GpuClosure
from monitor.models.hosts import Host, JoinToken
from monitor.models.incidents import CpuScanState, Exemption, Incident, Pattern
from monitor.models.journal import AuditEntry, Constraint, Counter, Event
from monitor.models.runtime import ItemFault, Lease, PeriodicTask
from monitor.models.samples import (
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    HostSample,
    LatestSnapshot,
    Sample,
)
from monitor.models.usage import ProcessHour, ProcessMinute, ProcessUse

__all__ = [
    "Agent",
    "ApiToken",
    "AuditEntry",
    "Channel",
    "Claim",
    "Constraint",
    "Counter",
    "CpuScanState",
    "Event",
    "Exemption",
    "Gpu",
    "GpuClosure",
    "GpuHour",
    "GpuMinute",
    "Host",
    "HostHour",
    "HostMinute",
    "HostSample",
    "Incident",
    "ItemFault",
    "JoinToken",
    "LatestSnapshot",
    "Lease",
    "LoginLink",
    "Message",
    "OsAccount",
    "Pattern",
    "PeriodicTask",
    "PolicyValues",
    "ProcessHour",
    "ProcessMinute",
    "ProcessUse",
    "Response",
    "Sample",
]
