"""Every door says the same expected end and start of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from time_machine import TimeMachineFixture

from gpucoord_site.cli import jobs as jobs_command
from monitor.gpus.snapshot import rows as snapshots
from scheduler.dispatch.steps import preview
from scheduler.execution.progress.step import ProgressStep
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import Requirement
from scheduler.jobs.timeline import pages as timeline
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW, gpu, snapshot
from tests.cli_bridge import connect_as

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(minutes=2)
ALONE = Requirement(exclusive=True)


@pytest.fixture
def _machine(data: Path, time_machine: TimeMachineFixture) -> Iterator[None]:
    """One GPU, two minutes after NOW."""
    time_machine.move_to(LATER, tick=False)
    snapshots.record(snapshot([gpu(0)], at=LATER))
    preview.forget()
    timeline.forget()
    yield
    preview.forget()
    timeline.forget()


@pytest.mark.parametrize("known", ["progress", "estimate", "limit", "nothing"])
@pytest.mark.usefixtures("_machine")
def test_each_door_says_the_same_expected_end(
    known: str,
    alice: User,
    data: Path,
    as_user: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = _running(alice, data, known)
    waiting = jobs_made.waiting(alice, requirement=ALONE)
    client = as_user(alice)
    at = _rest(client, f"/api/jobs/{job.pk}/")

    assert (at is None) == (known == "nothing")
    connect_as(alice, monkeypatch)
    assert jobs_command.queue(["--json"]) == 0
    told = {row["id"]: row for row in json.loads(capsys.readouterr().out)["jobs"]}
    assert _time(told[job.pk]["ends_p50_at"]) == at
    listed = {row["id"]: row for row in client.get("/api/jobs/").json()["jobs"]}
    assert _time(listed[job.pk]["ends_p50_at"]) == at
    (card,) = client.get("/api/gpus/").json()["gpus"]
    assert _time(card["eta"]) == at
    for path in ("/", "/jobs/", f"/jobs/{job.pk}/"):
        shown = re.findall(r'ends ~\s*<time[^>]*datetime="([^"]+)"', client.get(path).text)
        ends = {at.replace(microsecond=0)} if at else set()
        assert {_time(each) for each in shown} == ends, path
    (bar,) = [bar for row in timeline.build(LATER).rows for bar, _ in row.bars if bar.job == job.pk]
    assert bar.expected_end == (int(at.timestamp()) if at else None)
    (planned,) = preview.plan_input("gpubox", LATER).slots.running
    assert (planned.ends.p50 if planned.ends else None) == at
    start = _time(client.get(f"/api/jobs/{waiting.pk}/why/").json()["starts_p50"])
    assert at is None or at <= start <= at + timedelta(minutes=1)


def _running(owner: User, data: Path, known: str) -> Job:
    says = {
        "estimate": {"estimate": timedelta(minutes=10)},
        "limit": {"time_limit": timedelta(minutes=30)},
    }
    job = jobs_made.running(owner, requirement=ALONE, **says.get(known, {}))
    if known == "progress":
        jobs_made.write_log(data, job, b"::gpucoord progress 0.25\n")
    specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data / "run")
    ProgressStep(transaction.atomic, "gpubox", specs).step(LATER)
    return job


def _rest(client: Client, path: str) -> datetime | None:
    return _time(client.get(path).json()["ends_p50_at"])


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
