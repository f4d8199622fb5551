from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from gpucoord_site.config.settings import load_config
from scheduler.dispatch import inputs as plan_inputs
from scheduler.dispatch import tasks as scheduler_pass
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db
GROWING = ("scheduler_job", "scheduler_attempt", "monitor_event", "monitor_claim")


@pytest.mark.parametrize(("cpus", "places"), [("1", 1), ("0.5", 1), ("1000", None)])
def test_places_for_jobs_without_a_gpu_never_exceed_the_cpus(
    settings: object,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: str,
    places: int | None,
) -> None:
    monkeypatch.setenv("GPUCOORD_CPUS", cpus)
    monkeypatch.setenv("GPUCOORD_CPU_JOBS", "64")
    settings.CONFIG = load_config()  # type: ignore[attr-defined]
    cpu_jobs = plan_inputs.plan_policy().cpu_jobs
    assert cpu_jobs == places if places else cpu_jobs <= (os.cpu_count() or 1)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite how it would answer")
def test_no_question_of_a_pass_reads_all_jobs_that_ever_were(alice: User, data: Path) -> None:
    """The number of ended jobs only grows, and a pass comes with each job that starts or ends."""
    jobs_made.finished(alice)
    jobs_made.placed(alice)
    jobs_made.waiting(alice)
    requests: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        requests.append((sql, params))
        return execute(sql, params, many, context)

    step = scheduler_pass.build_scheduler(transaction.atomic)
    step.step(NOW)
    with connection.execute_wrapper(note):
        step.step(NOW + timedelta(seconds=1))

    plans = {sql: _plan(sql, params) for sql, params in requests if sql.startswith("SELECT")}
    assert len(plans) > 5
    assert [
        sql for sql, plan in plans.items() if {f"SCAN {table}" for table in GROWING} & plan
    ] == []


def _plan(sql: str, params: Any) -> set[str]:
    """How the database would answer."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        return {row[-1] for row in cursor.fetchall()}
