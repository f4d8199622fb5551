"""REST: CPU, memory and disks of hosts, from the newest snapshot of each."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema

from monitor.facts.hosts import HostFact
from monitor.facts.readings import DiskReading, Snapshot
from monitor.gpus.hosts import policy as host_policy
from monitor.gpus.hosts import rows as host_rows
from monitor.gpus.policy import use_split
from monitor.gpus.snapshot import rows as snapshots

router = Router()


class DiskBody(Schema):
    mount: str
    total_bytes: int
    free_bytes: int = Field(description="Available to ordinary users.")
    used_pct: float | None


class PressureBody(Schema):
    """Pressure stall information: percent of the last 10 s in which some or all tasks waited."""

    cpu_some_pct: float | None
    memory_some_pct: float | None
    memory_full_pct: float | None
    io_some_pct: float | None
    io_full_pct: float | None


class HostUsage(Schema):
    """null = not known; it is never reported as 0."""

    name: str
    as_of: datetime
    cpu_count: int | None = Field(description="CPUs of the machine.")
    cpu_limit: float | None = Field(description="CPU limit of the container or pod.")
    cpu_pct: float | None = Field(description="Percentage of the usable CPUs.")
    cpu_idle_seconds: float | None = Field(
        description="Time since the use of the CPUs fell below 5 %; 0: they are in use."
    )
    load_1: float | None
    load_5: float | None
    load_15: float | None
    memory_total_bytes: int | None = Field(
        description="Usable memory: the limit of the container or pod."
    )
    memory_available_bytes: int | None
    memory_used_pct: float | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    disks: list[DiskBody]
    disk_read_bps: float | None = Field(description="Bytes per second.")
    disk_write_bps: float | None
    pressure: PressureBody
    gpus: int
    state: str = Field(
        description="active; drained: no new jobs start there; disabled: its service does not"
        " start either."
    )
    version: str | None = Field(description="Version of gpucoord at its last start.")
    address: str | None = Field(description="Address of its pages.")
    silent_since: datetime | None = Field(
        description="Its last reading, if that is more than 15 s old: contact is lost."
    )
    confirmed_down_at: datetime | None = Field(description="An operator confirmed that it is down.")
    jobs_share_pct: float | None = Field(description="Share of all GPU time that jobs use.")
    others_share_pct: float | None = Field(description="Share that other processes use.")
    probe: str = Field(description="nvml, none or simulated (no value is real).")
    problem: str | None = Field(description="Why the GPUs can't be read.")


class Hosts(Schema):
    hosts: list[HostUsage]


@router.get("", response=Hosts, summary="List the hosts", url_name="hosts")
def list_hosts(request: HttpRequest) -> dict[str, Any]:
    """CPU, memory and disks of each host that has sent a reading."""
    now, registered = timezone.now(), {host.name: host for host in host_rows.all_hosts()}
    return {
        "hosts": [
            _host(snapshot) | _registered(registered[snapshot.host.name], now)
            for snapshot in snapshots.newest_all()
            if snapshot.host.name in registered
        ]
    }


def _registered(host: HostFact, now: datetime) -> dict[str, Any]:
    return {
        "state": host.state.value,
        "version": host.version or None,
        "address": host.address or None,
        "silent_since": host_policy.silent_since(host, now),
        "confirmed_down_at": host.down_at,
    }


def _host(snapshot: Snapshot) -> dict[str, Any]:
    host = snapshot.host
    total, available = host.memory_total_bytes, host.memory_available_bytes
    split = use_split.of_host(snapshot)
    used = None if total is None or available is None else total - available
    return {
        **{name: getattr(host, name, None) for name in HostUsage.model_fields},
        "as_of": snapshot.at,
        "cpu_limit": host.limits.cpus,
        "cpu_idle_seconds": host.cpu_idle_s(snapshot.at),
        "memory_used_pct": _pct(used, total),
        "disks": [_disk(disk) for disk in host.disks],
        "gpus": len(snapshot.gpus),
        "jobs_share_pct": split.jobs_pct,
        "others_share_pct": split.others_pct,
        "probe": snapshot.probe,
        "problem": snapshot.problem,
    }


def _disk(disk: DiskReading) -> dict[str, Any]:
    return {
        "mount": disk.mount,
        "total_bytes": disk.total_bytes,
        "free_bytes": disk.free_bytes,
        "used_pct": None if disk.used_pct is None else round(disk.used_pct, 1),
    }


def _pct(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 1)
