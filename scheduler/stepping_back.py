"""Part of the controller: own jobs are nice while the machine is busy, and not any longer."""

from __future__ import annotations

from datetime import datetime

from monitor import policies
from monitor.identity import boot_id
from monitor.readings import Snapshot
from scheduler import means
from scheduler.models import Attempt
from scheduler.policy.bounds import NicePolicy, is_busy
from scheduler.runner import niceness
from scheduler.runner.abilities import Mean


class SteppingBack:
    """The part that does so. Whether they stepped back is in a row, so a restart changes nothing.

    A process that cannot be taken back is not made nice at all: it would stay so for ever.
    """

    name = "niceness"

    def __init__(self, host: str) -> None:
        self._host = host
        self._may: bool | None = None

    def judge(self, snapshot: Snapshot | None, now: datetime) -> int | None:
        """How many processes were changed; None = nothing can be done, or is known."""
        if self._may is None:
            self._may = niceness.can_restore()
        if not self._may:
            text = "this account may not take niceness back, so none is given"
            means.record(self._host, [Mean(name="nice", active=False, text=text)], now)
            return None
        if snapshot is None:
            return None
        policy, was = policies.current(NicePolicy), means.is_active(self._host, "nice")
        host = snapshot.host
        busy = is_busy(host.cpu_pct, host.pressure.io_some_pct, was_busy=was, policy=policy)
        if not busy and not was:
            means.record(self._host, [_mean(busy, policy)], now)
            return 0
        changed = sum(_change(attempt, busy, policy) for attempt in _running(self._host))
        means.record(self._host, [_mean(busy, policy)], now)
        return changed


def _change(attempt: Attempt, busy: bool, policy: NicePolicy) -> int:
    runner, ticks = attempt.runner_pid or 0, attempt.runner_start_ticks or 0
    if busy:
        return niceness.step_back(runner, ticks, policy.nice, idle_io=policy.idle_io)
    return niceness.step_forward(runner, ticks, policy.nice)


def _running(host: str) -> list[Attempt]:
    here = Attempt.objects.filter(host=host, ended_at=None, boot_id=boot_id())
    return list(here.exclude(runner_pid=None))


def _mean(busy: bool, policy: NicePolicy) -> Mean:
    if not policy.enabled:
        return Mean(name="nice", active=False, text="the policy says no")
    when = "now, as the machine is busy" if busy else "as soon as the machine is busy"
    io = ", and disk only when nobody else wants it" if policy.idle_io else ""
    return Mean(name="nice", active=busy, text=f"+{policy.nice} {when}{io}")
