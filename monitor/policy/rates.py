"""How busy the host was between two readings, from what it counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from monitor.readings import HostReading, Snapshot


def with_rates(host: HostReading, last: Snapshot | None, now: datetime) -> HostReading:
    """The reading with means since the last snapshot; unknown after a restart of the machine."""
    if last is None or last.host.boot_id != host.boot_id or now <= last.at:
        return host
    old, new = last.host.counters, host.counters
    passed = (now - last.at).total_seconds()
    return replace(
        host,
        cpu_pct=_share(
            _grown(old.cpu_busy_s, new.cpu_busy_s), _grown(old.cpu_total_s, new.cpu_total_s)
        ),
        disk_read_bps=_rate(_grown(old.disk_read_bytes, new.disk_read_bytes), passed),
        disk_write_bps=_rate(_grown(old.disk_written_bytes, new.disk_written_bytes), passed),
    )


def _grown(old: float | None, new: float | None) -> float | None:
    """A counter that went backwards (a disk was taken out) tells nothing."""
    return None if old is None or new is None or new < old else new - old


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(min(100.0, 100 * part / whole), 1)


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None else float(round(amount / seconds))
