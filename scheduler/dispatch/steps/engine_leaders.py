"""Step of each node: check the first processes that jobs of another engine report.

The folder of such a job belongs to the job's account, so its report may name any process. Until
the node has checked it, no process is attributed to the job by it.

Slurm in the passes of a host: its step from the settings, and jobs of a former setting.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db.models import QuerySet

from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.steps.engine_answers import open_tasks
from scheduler.dispatch.steps.engine_tasks import EngineStep
from scheduler.execution.engines import slurm
from scheduler.execution.engines.policy import EngineRules, ReportedProcess, refusal_of
from scheduler.execution.engines.slurm import engine_of as slurm_engine
from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import Attempt, EngineStatus

# (pid, start ticks, ref) -> the process; None: it is not there.
Read = Callable[[int, int, str], ReportedProcess | None]


class LeaderCheck:
    """`step(now)` checks each report once and sets the leader of the claims, or refuses it."""

    def __init__(self, guard: Guard, host: str, read: Read = slurm.read_reported) -> None:
        self._guard = guard
        self._host = host
        self._read = read
        self._isolation = ItemIsolation(host, "engine leaders", guard)
        # The cgroup of a process is that of the task, which may turn out to be another one.
        self._checked: set[tuple[int, str]] = set()

    def step(self, now: datetime) -> int:
        """Returns the number of reports that were checked."""
        reported = [attempt for attempt in _reported(self._host) if attempt.gpu_uuids]
        self._checked &= {_key(attempt) for attempt in reported}
        new = [attempt for attempt in reported if _key(attempt) not in self._checked]
        if not new:
            return 0
        judged = self._isolation.each(new, _name, self._refusal, now)
        if judged:
            with self._guard():
                for attempt, refusal in judged:
                    store = partial(_store, attempt, refusal, now)
                    if self._isolation.attempt(_name(attempt), store, now):
                        self._checked.add(_key(attempt))
                wake("live")
        return len(judged)

    def _refusal(self, attempt: Attempt) -> str | None:
        """None: the process has ended, so nothing can be attributed by it."""
        process = self._read(attempt.pid or 0, attempt.start_ticks or 0, attempt.engine_ref)
        if process is None:
            return None
        return refusal_of(process, slurm.uid_of(attempt.account), attempt.engine_ref)


def _store(attempt: Attempt, refusal: str | None, now: datetime) -> None:
    job_ref, pid = str(attempt.job_id), attempt.pid
    if refusal == "" and pid is not None:
        snapshots.set_leader(job_ref, pid, attempt.start_ticks)
        return
    snapshots.set_leader(job_ref, None, None)
    is_told = refusal and events.recent(
        1, kind="JOB_PROCESS_REFUSED", job_ref=job_ref, since=attempt.placed_at
    )
    if refusal and not is_told:
        text = (
            f"Job {job_ref} reports process {pid} on {attempt.node} as its own, but {refusal}."
            " The process is not attributed to the job."
        )
        events.add(
            "JOB_PROCESS_REFUSED",
            text,
            now=now,
            severity="warning",
            host=attempt.node,
            job_ref=job_ref,
            owner=attempt.job.owner.username,
        )


def _reported(host: str) -> QuerySet[Attempt]:
    """Open attempts of other engines on this node, with the processes that they report."""
    rows = Attempt.objects.filter(ended_at=None, node=host, pid__isnull=False)
    return rows.exclude(engine="").select_related("job__owner")


def _key(attempt: Attempt) -> tuple[int, str]:
    return attempt.pk, attempt.engine_ref


def _name(attempt: Attempt) -> str:
    return f"process of job {attempt.job_id}"


def slurm_step(guard: Guard, specs: SpecWriter, *, accepts: bool = True) -> EngineStep:
    """Follows the jobs in Slurm, from the settings."""
    config = settings.CONFIG
    rules = EngineRules(
        options=tuple(config.slurm_options),
        gpu_types=config.slurm_gpu_types,
        grace_s=config.cancel_grace_s,
    )
    every = timedelta(seconds=config.slurm_interval_s)
    return EngineStep(
        guard, config.node, specs, slurm_engine(config), rules, every, accepts=accepts
    )


def former_engine(guard: Guard, specs: SpecWriter) -> FormerEngine:
    return FormerEngine(
        guard, settings.CONFIG.node, lambda: slurm_step(guard, specs, accepts=False)
    )


class FormerEngine:
    """Jobs that the host handed to Slurm before its setting `engine` was changed.

    Those that run are followed to their end; those that wait are withdrawn, and then wait here.
    When none is left, the state of Slurm is removed from the pages.
    """

    def __init__(self, guard: Guard, host: str, build: Callable[[], EngineStep]) -> None:
        self._guard = guard
        self._host = host
        self._build = build
        self._engine: EngineStep | None = None
        self._is_over = False

    def step(self, now: datetime) -> int:
        """Returns how many of its tasks moved."""
        if self._is_over:
            return 0
        if not open_tasks(self._host).exists():
            self.close()
            with self._guard():
                EngineStatus.objects.filter(host=self._host).delete()
            self._is_over = True
            return 0
        if self._engine is None:
            self._engine = self._build()
        return self._engine.step(now)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
