"""Rows <-> facts: the isolation features of each host, for the status page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import QuerySet

from monitor.facts.readings import Snapshot
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.prepared import compiled_once
from scheduler.execution.policy import NICE, is_busy
from scheduler.execution.probes import Capability
from scheduler.models import Attempt, HostCapability
from scheduler.runner.confine import caps

TITLES = {
    "cgroup": "A cgroup per job",
    "hiding": "Other GPUs hidden",
    "share": "Share of a GPU's time capped",
    "mps": "MPS",
    "locks": "Lock files",
    "nice": "Niceness of own jobs",
}


def record(host: str, means: Iterable[Capability], now: datetime) -> int:
    """Store changes; returns their number. The caller opens the transaction."""
    stored = {row.name: row for row in _rows(host)}
    changed = 0
    for mean in means:
        row = stored.get(mean.name)
        if row is not None and (row.active, row.text) == (mean.active, mean.text):
            continue
        HostCapability.objects.update_or_create(
            host=host,
            name=mean.name,
            defaults={"active": mean.active, "text": mean.text, "since_at": now},
        )
        changed += 1
    return changed


def is_active(host: str, name: str) -> bool:
    return any(row.name == name and row.active for row in _rows(host))


@compiled_once
def _rows(host: str) -> QuerySet[HostCapability]:
    return HostCapability.objects.filter(host=host)


def word(row: HostCapability) -> str:
    """For its badge: niceness waits for its time."""
    if row.active:
        return "active"
    return "ready" if row.name == "nice" and row.text.startswith("+") else "off"


def listed() -> list[tuple[str, list[tuple[str, str, HostCapability]]]]:
    """(host, [(title, word, row)]) for the status page."""
    order = list(TITLES)
    hosts: dict[str, list[HostCapability]] = {}
    for row in HostCapability.objects.order_by("host"):
        hosts.setdefault(row.host, []).append(row)
    return [
        (
            host,
            [
                (TITLES[row.name], word(row), row)
                for row in sorted(rows, key=lambda row: order.index(row.name))
            ],
        )
        for host, rows in hosts.items()
    ]


class BackgroundNiceness:
    """Raises and restores nice values. The state is in a row, so it survives a restart.

    Processes whose nice value cannot be restored later are not changed.
    """

    name = "niceness"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)
        self._may: bool | None = None

    def judge(self, snapshot: Snapshot | None, now: datetime) -> int | None:
        """How many processes were changed; None = nothing can be done, or is known."""
        if self._may is None:
            self._may = caps.can_restore()
        if not self._may:
            text = "this account may not take niceness back, so none is given"
            record(self._host, [Capability(name="nice", active=False, text=text)], now)
            return None
        if snapshot is None:
            return None
        applied = is_active(self._host, "nice")
        host = snapshot.host
        busy = is_busy(host.cpu_pct, host.pressure.io_some_pct, was_busy=applied)
        if not busy and not applied:
            record(self._host, [_mean(busy)], now)
            return 0
        changed = self._isolation.each(
            _running(self._host),
            lambda attempt: f"job {attempt.job_id}",
            lambda attempt: _change(attempt, busy),
            now,
        )
        record(self._host, [_mean(busy)], now)
        return sum(count for _, count in changed)


def _change(attempt: Attempt, busy: bool) -> int:
    runner, ticks = attempt.runner_pid or 0, attempt.runner_start_ticks or 0
    if busy:
        return caps.raise_niceness(runner, ticks, NICE, idle_io=True)
    return caps.restore_niceness(runner, ticks, NICE)


@compiled_once
def _running(host: str) -> QuerySet[Attempt]:
    # Another engine sets the priority of its jobs, whose accounts report these processes.
    attempts = Attempt.objects.filter(host=host, ended_at=None, boot_id=boot_id(), engine="")
    return attempts.exclude(runner_pid=None)


def _mean(busy: bool) -> Capability:
    when = "now, because the host is busy" if busy else "when the host is busy"
    text = f"+{NICE} {when}; disk access only when the disk is idle"
    return Capability(name="nice", active=busy, text=text)
