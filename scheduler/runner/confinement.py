"""Edge: what the runner does to keep its job within its bounds: locks, a cgroup, a share, its log.

What this machine does not give is left out: the job runs without it, as `gpucoord check` said.
Only a lock that somebody else holds keeps the job from running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from scheduler.runner import device_rules, family, locks, scopes
from scheduler.runner.bounds import Bounds
from scheduler.runner.cgroups import Cgroup
from scheduler.runner.duty import Duty
from scheduler.runner.locks import Held, Refused
from scheduler.runner.log_limit import LogLimit
from scheduler.runner.spec import Spec


class Confinement:
    """In order: `lock`, `limit` the log, `make_cgroup`, `take_in` the held process, `beat` while it
    runs, `leave`, `tidy`."""

    def __init__(self, spec: Spec) -> None:
        bounds = Bounds.from_json(spec.bounds)
        self._bounds = bounds
        self._name = name_of(bounds, spec)
        self._held = Held()
        self._cgroup: Cgroup | None = None
        self._duty = Duty(bounds.share_pct, bounds.period_s)
        self._log: LogLimit | None = None

    def lock(self) -> str | None:
        """Take the GPUs' lock files; why not, when somebody else has one."""
        if not self._bounds.lock_folder or not self._bounds.gpus:
            return None
        try:
            taken = locks.take(
                Path(self._bounds.lock_folder),
                self._bounds.gpus,
                alone=self._bounds.alone,
                instance=self._bounds.instance,
            )
        except OSError as error:
            return locks.problem(error)
        if isinstance(taken, Refused):
            return locks.describe(taken)
        self._held = taken
        return None

    def limit(self, log: int) -> None:
        if self._bounds.log_bytes:
            self._log = LogLimit(log, self._bounds.log_bytes)

    def make_cgroup(self) -> tuple[Path, ...]:
        """The folders of the job's own cgroup, with its limits set, for it to be forked into."""
        if self._bounds.cgroup:
            with suppress(OSError):
                cgroup = Cgroup.under(self._bounds.cgroup, self._name)
                cgroup.make()
                self._bound(cgroup)
        return self._cgroup.folders if self._cgroup else ()

    def take_in(self, pid: int) -> None:
        """See where the job's first process is, while it waits; or have systemd take it in."""
        if self._bounds.scope:
            with suppress(OSError, subprocess.SubprocessError):
                self._bound(Cgroup((scopes.enter(self._bounds.scope, self._name, pid),)))
        elif self._cgroup is not None:
            self._cgroup = self._cgroup.holding(pid)

    def _bound(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        cgroup.limit(
            cpus=self._bounds.cpus,
            memory_bytes=self._bounds.memory_bytes,
            pids=self._bounds.pids,
        )
        device_rules.hide(cgroup, [(a, b) for a, b in self._bounds.hidden])

    def beat(self) -> float | None:
        """Look after its share and its log; when (monotonic) to be asked again."""
        dues = (self._log.beat() if self._log else None, self._take_turns())
        return min((due for due in dues if due is not None), default=None)

    def _take_turns(self) -> float | None:
        """Let the job run or pause, as its share says."""
        if not self._duty.caps:
            return None
        pauses, until = self._duty.at(time.monotonic())
        if pauses is not self._duty.pausing:
            self._duty.pausing = pauses
            self._pause(on=pauses)
        return until

    def let_go(self) -> None:
        """No more pauses: who is to end must hear it."""
        self._duty.caps = False
        if self._duty.pausing:
            self._duty.pausing = False
            self._pause(on=False)

    def cap_again(self) -> None:
        """It need not end after all."""
        self._duty = Duty(self._bounds.share_pct, self._bounds.period_s)

    def kill(self) -> None:
        """SIGKILL for all in the cgroup, whatever they call themselves by now."""
        if self._cgroup is not None:
            self._cgroup.kill()

    @property
    def ran_out_of_memory(self) -> bool:
        return self._cgroup is not None and self._cgroup.ran_out_of_memory()

    def leave(self) -> None:
        """The job is over: others may have its GPUs."""
        self.kill()
        self._held.release()
        if self._log is not None:
            self._log.finish()

    def tidy(self) -> None:
        """Once its end is told, as nobody waits for this."""
        if self._cgroup is not None:
            self._cgroup.remove()

    def _pause(self, *, on: bool) -> None:
        """By the freezer, which nobody notices; without one by SIGSTOP, as a shell would."""
        if self._cgroup is not None and self._cgroup.can_freeze and self._cgroup.freeze(on=on):
            return
        if on:
            family.signal_all(family.descendants(os.getpid()), signal.SIGSTOP)
        else:
            family.signal_all(family.descendants(os.getpid()), signal.SIGCONT)


def end(spec: Spec) -> None:
    """What a killed runner could not do any more: end all that is left in the job's cgroup."""
    bounds = Bounds.from_json(spec.bounds)
    cgroup = Cgroup.under(bounds.cgroup, name_of(bounds, spec))
    cgroup.kill()
    cgroup.remove()


def name_of(bounds: Bounds, spec: Spec) -> str:
    """Several instances of gpucoord may have their jobs in one folder."""
    return f"{bounds.instance or 0}-job-{spec.job_id}-{spec.attempt}"
