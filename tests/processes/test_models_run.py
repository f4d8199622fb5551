"""Model services on real processes: boot, adoption, unload, failure."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from monitor.models import Event
from scheduler.facts.language_models import InstanceState
from scheduler.language_models.model_services import rows
from scheduler.models import Attempt, ModelBoot, ModelInstance, ModelService
from scheduler.runner import process_tree
from tests.processes.attempts import is_running
from tests.processes.scheduling import Scheduler

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]
# A real server without a model: it answers as soon as it listens.
SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
NEVER_READY = [sys.executable, "-c", "import time; time.sleep(600)", "{port}"]
CRASHES = [sys.executable, "-c", "raise SystemExit(3)", "{port}"]


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()
    for attempt in Attempt.objects.filter(ended_at=None):
        process_tree.signal_all(process_tree.orphans(0, 0, attempt.nonce), signal.SIGKILL)


def service(argv: list[str] = SERVER, **values: Any) -> ModelService:
    # Python of the tests may be closed to other accounts.
    account = pwd.getpwuid(os.geteuid()).pw_name
    fixed = {"name": "small", "argv": argv, "gpus": 0, "health_path": "/", "account": account}
    return ModelService.objects.create(**(fixed | values))


def only_instance() -> ModelInstance:
    return ModelInstance.objects.select_related("service", "job").get()


def reach(scheduler: Scheduler, state: InstanceState) -> ModelInstance:
    rows_in = ModelInstance.objects.filter(state=state.value)
    scheduler.run_until(rows_in.exists, within_s=30)
    return rows_in.select_related("service", "job").latest("pk")


def test_a_request_boots_an_instance_that_answers(scheduler: Scheduler) -> None:
    small = service()
    rows.request_instance(small.pk, timezone.now())

    ready = reach(scheduler, InstanceState.READY)

    assert httpx.get(ready.address, trust_env=False).status_code == 200
    assert ready.pid is not None
    assert is_running(ready.pid)
    assert (ready.job.state if ready.job else "") == "running"
    assert ready.service == small
    boot = ModelBoot.objects.get()
    assert boot.boots == 1
    assert boot.boot_s is not None
    assert boot.boot_s < 30


def test_a_restarted_scheduler_adopts_its_instance(scheduler: Scheduler) -> None:
    small = service(min_instances=1)
    before = reach(scheduler, InstanceState.READY)

    scheduler.restart()
    for _ in range(3):
        scheduler.step()

    after = only_instance()
    assert (after.pk, after.pid, after.state) == (before.pk, before.pid, "ready")
    assert small.instances.count() == 1


def test_an_idle_instance_is_unloaded_and_its_process_ends(scheduler: Scheduler) -> None:
    small = service(keep_alive_s=60)
    rows.request_instance(small.pk, timezone.now())
    ready = reach(scheduler, InstanceState.READY)
    assert ready.pid is not None

    scheduler.late = timedelta(seconds=100)
    stopped = reach(scheduler, InstanceState.STOPPED)

    assert stopped.pk == ready.pk
    assert "idle for 60 s" in stopped.reason
    assert not is_running(ready.pid)
    assert Event.objects.filter(kind="MODEL_UNLOADED").exists()


def test_a_crash_is_reported_and_the_next_boot_waits(scheduler: Scheduler) -> None:
    small = service(CRASHES, min_instances=1)

    failed = reach(scheduler, InstanceState.FAILED)
    for _ in range(3):
        scheduler.step()
    small.refresh_from_db()

    assert "exit code 3" in failed.reason
    assert small.failures == 1
    assert small.retry_at is not None
    assert ModelInstance.objects.count() == 1
    scheduler.late = timedelta(seconds=10)
    scheduler.run_until(lambda: ModelInstance.objects.count() == 2)


def test_a_boot_that_takes_too_long_is_ended(scheduler: Scheduler) -> None:
    small = service(NEVER_READY, min_instances=1, boot_timeout_s=60)
    scheduler.run_until(lambda: ModelInstance.objects.filter(pid__isnull=False).exists())
    pid = only_instance().pid
    assert pid is not None

    scheduler.late = timedelta(seconds=61)
    scheduler.run_until(lambda: not is_running(pid))
    small.refresh_from_db()

    assert small.problem == "It was not ready after 60 s."
    assert Event.objects.filter(kind="MODEL_FAILED", text__contains="not ready").exists()


def test_a_disabled_service_ends_its_instances(scheduler: Scheduler) -> None:
    small = service(min_instances=1)
    ready = reach(scheduler, InstanceState.READY)

    small.enabled = False
    small.save()
    reach(scheduler, InstanceState.STOPPED)

    assert ready.pid is not None
    assert not is_running(ready.pid)
