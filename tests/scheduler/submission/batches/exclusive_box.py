"""A host with models, jobs and batches on a simulated clock, planned by the real steps.

All step objects are new at each tick, so that nothing but rows lasts from tick to tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading
from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.exclusive_batches import ExclusiveBatches
from scheduler.dispatch.steps.model_evictions import ModelEvictions
from scheduler.dispatch.steps.yields import WithdrawalStep
from scheduler.facts.jobs import AttemptEnding, Identity, NewJob, Outcome, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.policy import SAVED_EXIT_CODE, AttemptEnd, RetryHistory, decide
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.language_models.model_services import rows as model_rows
from scheduler.language_models.model_services.probes import HealthProbe
from scheduler.language_models.model_services.step import ModelStep
from scheduler.models import (
    Attempt,
    Batch,
    ExclusiveRun,
    IdleTemplate,
    Job,
    ModelInstance,
    ModelService,
)
from scheduler.submission.batches import actions
from scheduler.submission.batches.step import BatchStep
from scheduler.submission.idle_work.step import IdleWork
from tests.builders import GIB, NOW, gpu, gpu_uuid, snapshot

POLICY = PlanPolicy(cpu_jobs=1)
HOST = "gpubox"


class Killed(Exception):
    """The process ends here, before the commit of its transaction."""


class BootsIn(HealthProbe):
    """A server answers so many seconds after its process was placed."""

    def __init__(self, boot_s: float, now: datetime) -> None:
        self._placed_before = now - timedelta(seconds=boot_s)

    def results(self, urls: Mapping[int, str]) -> dict[int, bool]:
        up = ModelInstance.objects.filter(started_boot_at__lte=self._placed_before)
        return {pk: up.filter(pk=pk).exists() for pk in urls}

    def close(self) -> None:
        """It has no threads."""


class Box:
    """Processes end by the clock: items after work_s, models unload_s after their SIGTERM."""

    def __init__(self, gpus: int = 3, tick_s: float = 5.0) -> None:
        self.gpus, self.tick_s = gpus, tick_s
        self.work_s, self.unload_s, self.boot_s = 45.0, 5.0, 30.0
        # A job that is asked to leave its GPU saves its work for so long; None: until SIGKILL.
        self.saves_s: float | None = None
        self.now = NOW
        # Models that were being loaded at the same time.
        self.most_booting = 0
        # The process dies once in the transaction that begins each of these steps.
        self.dies_in: set[str] = set()
        self.deaths = 0

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self._tick()

    def until(self, batch: Batch, step: str, within_s: float = 7200) -> ExclusiveRun:
        """Tick until the batch has reached the step."""
        last = self.now + timedelta(seconds=within_s)
        while (run := self.run(batch)).step != step:
            assert self.now < last, f"still {run.step}: {run.waits_for}"
            self.tick()
        return run

    def run(self, batch: Batch) -> ExclusiveRun:
        return ExclusiveRun.objects.select_related("batch").get(pk=batch.pk)

    def _tick(self) -> None:
        self.now += timedelta(seconds=self.tick_s)
        now = self.now
        self._end_processes()
        seen = snapshot([self._gpu(index) for index in range(self.gpus)], at=now)
        monitor_store.record(seen)
        guard = self._guard
        with guard():
            IdleWork(HOST).judge(seen, now)
        ModelStep(guard, HOST, BootsIn(self.boot_s, now)).step(now)
        ModelEvictions(guard, HOST, POLICY).step(now)
        ExclusiveBatches(guard, HOST, POLICY).step(now)
        BatchStep(guard, HOST).step(now)
        for attempt in Dispatcher(guard, HOST, POLICY).step(now):
            self._start(attempt)
        WithdrawalStep(guard, HOST).step(now)
        booting = ModelInstance.objects.filter(state="booting").count()
        self.most_booting = max(self.most_booting, booting)

    def _gpu(self, index: int) -> GpuReading:
        """Without a job, it has been idle for long."""
        if Claim.objects.filter(gpu_uuid=gpu_uuid(index), freed_at=None).exists():
            return gpu(index, state=GpuState.SCRIPT_BUSY)
        since = self.now - timedelta(hours=1)
        return gpu(index, utilization_pct=1.0, state=GpuState.IDLE, idle_since=since)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """The transaction of a step. A process that dies before the commit leaves nothing of it."""
        with suppress(Killed), transaction.atomic():
            yield
            reached = set(ExclusiveRun.objects.values_list("step", flat=True))
            if reached & self.dies_in:
                self.dies_in -= reached
                self.deaths += 1
                raise Killed

    def _start(self, attempt: Attempt) -> None:
        identity = Identity(
            account="nobody", runner_pid=10, runner_start_ticks=1, pid=11, start_ticks=2,
            started_at=self.now,
        )  # fmt: skip
        transitions.record_start(attempt, identity)
        ModelInstance.objects.filter(job=attempt.job_id).update(port=9000)

    def _end_processes(self) -> None:
        for attempt in Attempt.objects.filter(ended_at=None).select_related("job"):
            job, asked = attempt.job, attempt.job.cancel_requested_at
            if asked is not None and self.now - asked >= timedelta(seconds=self.unload_s):
                self._end(attempt, Outcome.CANCELLED)
            elif self._leaves(attempt):
                self._yield(attempt)
            elif job.model_service_id is None and self._is_done(attempt):
                self._end(attempt, Outcome.SUCCEEDED)

    def _leaves(self, attempt: Attempt) -> bool:
        request = attempt.asked_to_leave
        if request is None:
            return False
        saved = None if self.saves_s is None else request.asked_at + timedelta(seconds=self.saves_s)
        return self.now >= min(saved or request.deadline, request.deadline)

    def _yield(self, attempt: Attempt) -> None:
        """Its process leaves as it was asked: it has saved its work, or is killed."""
        job, has_saved = attempt.job, self.saves_s is not None
        code, signal = (SAVED_EXIT_CODE, None) if has_saved else (None, 9)
        how = AttemptEnd(outcome=Outcome.FAILED, exit_code=code, signal=signal, yielded=True)
        history = RetryHistory(job_id=job.pk, requeue=job.requeue, preemptible=job.preemptible)
        decision = decide(how, history)
        ending = AttemptEnding(
            outcome=Outcome.FAILED, ended_at=self.now, exit_code=code, signal=signal
        )
        assert transitions.record_end(attempt, ending, self.now, decision)

    def _is_done(self, attempt: Attempt) -> bool:
        began = attempt.started_at
        if attempt.job.idle_template:
            return False
        return began is not None and self.now - began >= timedelta(seconds=self.work_s)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        code = 0 if outcome is Outcome.SUCCEEDED else None
        ending = AttemptEnding(outcome=outcome, ended_at=self.now, exit_code=code)
        assert transitions.record_end(attempt, ending, self.now)

    def model(self, name: str = "qwen2.5:14b", count: int = 1, **values: Any) -> ModelService:
        """A service with so many ready instances."""
        fixed = {"argv": ["serve", "{port}"], "memory_mib": 60 * 1024, "keep_alive_s": None}
        counts = {"min_instances": count, "max_instances": count}
        service = ModelService.objects.create(name=name, **(fixed | counts | values))
        model_rows.request_instance(service.pk, self.now)
        for _ in range(100):
            if service.instances.filter(state="ready").count() == count:
                return service
            self.tick()
        raise AssertionError("the models did not boot")

    def idle_work(self, account: User, count: int = 1, **request: Any) -> list[Job]:
        """Running jobs of a template, which would run for ever."""
        body = {"command": "python step.py"} | request
        IdleTemplate.objects.create(
            name="train", account=account, request=body, most_running=count, most_per_gpu=1
        )
        for _ in range(10):
            self.tick()
            jobs = Job.objects.filter(idle_template="train", state="running")
            if jobs.count() == count:
                return list(jobs)
        raise AssertionError("the idle work did not start")

    def ready(self) -> int:
        return ModelInstance.objects.filter(state="ready").count()

    def batch(
        self, owner: User, items: int = 10, mode: str | None = "exclusive", **request_: Any
    ) -> Batch:
        texts = [f"item {n}" for n in range(items)]
        request = {"command": "true", "name": "whisper", "exclusive": True} | request_
        return actions.submit(request, texts, mode, owner, self.now)

    def job(self, owner: User, priority: int = 3, **values: Any) -> Job:
        alone = Requirement(gpus=1, memory_bytes=70 * GIB)
        new = NewJob(command="other", requirement=alone, priority=priority, **values)
        return job_queue.submit(new, owner, self.now)
