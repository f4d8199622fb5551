"""The controller's part that reports silent hosts, and settles jobs of hosts that are down.

Nothing is restarted elsewhere before an operator or the threshold `retries.down_after_minutes` has
confirmed that the host is down, and then only jobs with `requeue`. When such a host returns, it
ends what those jobs have left there.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import QuerySet

from monitor.facts.readings import HostFact, Snapshot
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.rows import hosts as host_rows
from monitor.journal.rows import events
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.execution.policy import NICE, is_busy
from scheduler.execution.probes import Capability
from scheduler.execution.steps import outcomes
from scheduler.jobs.policy import RetryPolicy
from scheduler.models import Attempt, HostCapability
from scheduler.runner import attempt_files, files
from scheduler.runner.confine import caps

# After the database was away, each host has readings again by then.
RETURN = timedelta(seconds=5)
# Named as the operator who confirmed it.
BY_THRESHOLD = "Threshold retries.down_after_minutes"


@compiled_once
def _abandoned(host: str) -> QuerySet[Attempt]:
    return Attempt.objects.filter(host=host, abandoned=True, engine="")


class HostWatch:
    """A Part."""

    name = "hosts"

    def __init__(self, host: str, data: Path) -> None:
        self._host, self._data = host, data
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[int]:
        """Returns the jobs that were put back into the queue."""
        if snapshot is not None:
            self._return(now)
        self._report_silent(now)
        requeued = self._requeue(now)
        self._end_abandoned(now)
        return requeued

    def _return(self, now: datetime) -> None:
        """This host has readings, whatever the others concluded."""
        was_silent, was_down = host_rows.mark_heard(self._host), host_rows.clear_down(self._host)
        if was_silent or was_down:
            text = f"The host {self._host} is in contact again."
            events.add("HOST_RETURNED", text, now=now, host=self._host)

    def _report_silent(self, now: datetime) -> None:
        for host in host_rows.all_hosts():
            since = host_policy.silent_since(host, now)
            if since is None or host.name == self._host:
                continue
            if self._had_contact(since, now) and host_rows.mark_silent(host.name, since, now):
                text = f"Contact with the host {host.name} is lost; its jobs may still run."
                events.add("HOST_SILENT", text, now=now, host=host.name, severity="warning")
                wake("live")
            if host.down_at is None:
                self._confirm_down(host, since, now)

    def _had_contact(self, since: datetime, now: datetime) -> bool:
        """Whether this host stored readings while the other one was silent.

        When the database was away, all hosts were silent, and return within a few seconds.
        """
        return host_rows.has_readings(self._host, since + RETURN, now - RETURN)

    def _confirm_down(self, host: HostFact, since: datetime, now: datetime) -> None:
        """As an operator does, after the time of the threshold.

        Only time in which this host had readings counts. While the database was away, all hosts
        were silent.
        """
        wanted = timedelta(minutes=thresholds.current(RetryPolicy).down_after_minutes)
        if not wanted or now - since < wanted:
            return
        if host_rows.seconds_with_readings(self._host, since) >= wanted.total_seconds():
            host_rows.confirm_down(host, BY_THRESHOLD, now)

    def _requeue(self, now: datetime) -> list[int]:
        down = {name for name in host_rows.confirmed_down() if name != self._host}
        if not down:
            return []
        # A host that sends readings again continues its jobs, and is not down.
        for host in host_rows.all_hosts():
            if host.seen_at is not None and host_policy.silent_since(host, now) is None:
                down.discard(host.name)
        # A job that another engine runs is on a node of that engine, which may be up.
        attempts = Attempt.objects.filter(
            host__in=down, ended_at=None, job__requeue=True, engine=""
        )
        read_until = {host: host_rows.read_until(host, now) for host in down}
        results = self._isolation.each(
            attempts.select_related("job__owner", "yield_request"),
            lambda attempt: f"job {attempt.job_id}",
            lambda attempt: outcomes.record_host_down(attempt, now, read_until[attempt.host]),
            now,
        )
        if results:
            wake("scheduler")
        return [attempt.job_id for attempt, _ in results]

    def _end_abandoned(self, now: datetime) -> None:
        self._isolation.each(
            _abandoned(self._host),
            lambda attempt: f"abandoned job {attempt.job_id}",
            self._end,
            now,
        )

    def _end(self, attempt: Attempt) -> None:
        """Repeated until no process is left: SIGTERM by the runner, else SIGKILL."""
        if attempt.boot_id == boot_id() and not self._has_ended(attempt):
            return
        Attempt.objects.filter(pk=attempt.pk).update(abandoned=False)

    def _has_ended(self, attempt: Attempt) -> bool:
        folder = files.attempt_folder(self._data, attempt.job_id, attempt.number)
        observed = attempt_files.read_attempt(folder, attempt.nonce)
        if observed.runner_alive:
            attempt_files.ask_to_stop(observed)
            return False
        if observed.started is None:
            # No runner has taken it up; from now on none can.
            attempt_files.give_up(folder, attempt.nonce)
            return True
        if attempt_files.end_orphans(observed.started, signal.SIGKILL):
            return False
        attempt_files.end_confined(folder)
        return True


# Rows <-> facts: the isolation features of each host, for the status page.


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
