"""Step: hand waiting jobs to another engine, and store why they wait there."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from django.db.models import Max

from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.steps.dispatcher import (
    StoredReasons,
    group_by_reasons,
    keys_by_job,
    store,
)
from scheduler.execution.engines.facts import EngineName, Ticket
from scheduler.execution.engines.policy import slurm_texts
from scheduler.execution.engines.policy.requests import (
    EngineRules,
    niceness_of,
    problem_of,
    variables_of,
)
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.rows import queue_facts
from scheduler.jobs.lifecycle.rows.relations import UnmetDependencies
from scheduler.models import Attempt, EngineTask, Job
from scheduler.runner.accounts import Account

# New tasks in one step: a submission takes tens of milliseconds.
MOST_NEW = 200
FORGET_EVERY, KEPT_FOR = timedelta(hours=1), timedelta(days=1)
# Begins a refusal that is not the engine's.
BY_GPUCOORD = "gpucoord: "
REQUESTED = (
    "argv", "cwd", "env", "gpus", "gpu_memory_bytes", "gpu_model", "capability", "power",
    "gpu_uuid", "share_pct", "cpus", "memory_bytes", "time_limit_s", "umask", "limits",
    "primary_group", "priority", "grace_s", "yield_signal",
)  # fmt: skip


def digest_of(job: Job) -> str:
    """Equal as long as nothing changes that the engine or the runner was given."""
    values = [getattr(job, name) for name in REQUESTED]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def ticket_of(task: EngineTask, folder: str, account: Account, rules: EngineRules) -> Ticket:
    job = task.job
    return Ticket(
        job_id=job.pk,
        nonce=task.nonce,
        folder=folder,
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        home=account.home,
        gpus=job.gpus,
        gpu_type=rules.gpu_types.get(job.gpu_model, ""),
        niceness=niceness_of(job.priority),
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        time_limit_s=job.time_limit_s,
        grace_s=rules.grace_s if job.grace_s is None else job.grace_s,
        options=rules.options,
        variables=variables_of(job.env),
    )


class EngineQueue:
    """`step(now)` creates tasks for waiting jobs and stores the reasons of those that wait."""

    def __init__(self, guard: Guard, host: str, engine: EngineName, rules: EngineRules) -> None:
        self._guard = guard
        self._host = host
        self._engine = engine
        self._rules = rules
        self._isolation = ItemIsolation(host, "engine queue", guard)
        self._unmet = UnmetDependencies()
        self._reported: StoredReasons | None = None
        self._forgot_at: datetime | None = None

    def waits(self, now: datetime) -> dict[int, tuple[Blocker, ...]]:
        """Reasons that gpucoord itself decides: holds, begin times, dependencies, array limits."""
        return queue_facts.load(now, self._isolation.converter(now), self._unmet)

    def step(
        self,
        tasks: Iterable[EngineTask],
        waits: Mapping[int, tuple[Blocker, ...]],
        problem: str,
        now: datetime,
    ) -> int:
        """Returns the number of new tasks. problem: why the engine does not answer."""
        # Jobs that are meant for another host are not handed over.
        waiting = Job.objects.filter(state=JobState.QUEUED.value, host__in=("", self._host))
        waiting = waiting.order_by("-priority", "id")
        columns = ("pk", "gpus", "model_service_id", *REQUESTED[5:10])
        rows = {row[0]: row for row in waiting.values_list(*columns)}
        handed = {task.job_id: task for task in tasks}
        reasons: dict[int, tuple[Blocker, ...]] = {}
        ready = []
        for pk, _, service, *special in rows.values():
            impossible = problem_of(*special, is_service=service is not None, rules=self._rules)
            if pk in waits:
                reasons[pk] = waits[pk]
            elif impossible:
                reasons[pk] = (refusal(impossible),)
            elif pk in handed:
                reasons[pk] = (reason_of(handed[pk], problem),)
            else:
                reasons[pk] = (_WAITS_FOR_SUBMISSION,)
                ready.append(pk)
        new = self._hand_over(ready[:MOST_NEW], now) if not problem else 0
        self._forget(now)
        self._store(reasons, now)
        return new

    def store_reasons(self, tasks: Iterable[EngineTask], problem: str, now: datetime) -> None:
        """Of the jobs that are handed over, and of no others."""
        waiting = [task for task in tasks if task.job.state == JobState.QUEUED.value]
        self._store({task.job_id: (reason_of(task, problem),) for task in waiting}, now)
        self._forget(now)

    def _hand_over(self, ids: Collection[int], now: datetime) -> int:
        """Commit the intent; the submission follows in the next step."""
        if not ids:
            return 0
        jobs = Job.objects.filter(pk__in=ids, state=JobState.QUEUED.value)
        numbers = _newest_numbers(ids)
        rows = [
            EngineTask(
                job=job,
                host=self._host,
                engine=self._engine.value,
                number=numbers.get(job.pk, 0) + 1,
                nonce=secrets.token_hex(16),
                digest=digest_of(job),
                created_at=now,
            )
            for job in jobs
        ]
        with self._guard():
            # Another submission host may have been faster: the index allows one open task.
            EngineTask.objects.bulk_create(rows, ignore_conflicts=True)
        return len(rows)

    def _forget(self, now: datetime) -> None:
        """Delete tasks that were closed long ago; their attempts remain."""
        if self._forgot_at is not None and now - self._forgot_at < FORGET_EVERY:
            return
        self._forgot_at = now
        with self._guard():
            EngineTask.objects.filter(host=self._host, closed_at__lt=now - KEPT_FOR).delete()

    def _store(self, reasons: Mapping[int, tuple[Blocker, ...]], now: datetime) -> None:
        if self._reported is None:
            self._reported = StoredReasons.load(now)
        keys = keys_by_job(reasons)
        news = {id_: reasons[id_] for id_ in self._reported.news(keys, now)}
        if news:
            with self._guard():
                self._isolation.each(
                    group_by_reasons(news),
                    lambda same: f"reasons of job {same[0][0]}",
                    lambda same: store(*same, now),
                    now,
                )
                wake("live")
        self._reported.keep(keys, news, now)


def _newest_numbers(ids: Collection[int]) -> dict[int, int]:
    """The highest number of an attempt or of a task of each job."""
    numbers: dict[int, int] = {}
    for model in (Attempt, EngineTask):
        rows = model.objects.filter(job__in=ids).order_by().values_list("job")
        for pk, number in rows.annotate(Max("number")):
            numbers[pk] = max(number, numbers.get(pk, 0))
    return numbers


_WAITS_FOR_SUBMISSION = Blocker(
    code=BlockerCode.ENGINE_SUBMISSION, tier=Tier.NOT_YET, details=details(engine="Slurm")
)


def refusal(text: str, by: str = "") -> Blocker:
    """by: the engine that refuses the job; "" = gpucoord does, as the engine could not run it."""
    return Blocker(
        code=BlockerCode.ENGINE_REFUSED,
        tier=Tier.PERSON,
        holder=by or None,
        requested=text[:200],
        details=details(engine=by, reason=text),
    )


def reason_of(task: EngineTask, problem: str) -> Blocker:
    """Why a job waits that was handed over; the engine's reason is not changed."""
    if problem:
        facts = details(engine="Slurm", reason=problem)
        return Blocker(
            code=BlockerCode.ENGINE_AWAY, tier=Tier.MACHINE, holder="Slurm", details=facts
        )
    if task.refused:
        is_own = task.refused.startswith(BY_GPUCOORD)
        return refusal(task.refused.removeprefix(BY_GPUCOORD), "" if is_own else "Slurm")
    if not task.ref or not task.word:
        return _WAITS_FOR_SUBMISSION
    return Blocker(
        code=BlockerCode.ENGINE_WAITS,
        tier=slurm_texts.tier_of(task.reason),
        holder="Slurm",
        requested=task.reason or task.word,
        until=None,
        details=details(engine="Slurm", reason=task.reason or task.word, ref=task.ref),
    )
