"""Every door says the same expected end and start of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from time_machine import TimeMachineFixture

from gpucoord_site.cli import jobs as jobs_command
from monitor.gpus.rows import snapshot as snapshots
from monitor.pages.metrics import Families
from scheduler import metrics
from scheduler.dispatch.steps import preview
from scheduler.execution.steps.progress import ProgressStep
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import Requirement
from scheduler.jobs.pages import timeline
from scheduler.models import Job
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner.plan import plan
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, process, snapshot
from tests.cli_bridge import connect_as

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(minutes=2)
ALONE = Requirement(exclusive=True)
WAITS = ("starts_p50", "starts_p90", "position", "blockers", "headline", "advice", "factors")


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


@pytest.mark.parametrize("case", ["behind a job", "on a full GPU", "held", "not yet"])
@pytest.mark.usefixtures("_machine")
def test_each_door_says_the_same_of_a_waiting_job(
    case: str,
    alice: User,
    data: Path,
    as_user: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its expected start, its reasons, its place, what would help, and how long it has waited."""
    job = _waiting(alice, data, case)
    client, path = as_user(alice), f"/api/jobs/{job.pk}/"
    connect_as(alice, monkeypatch)
    assert jobs_command.why([str(job.pk), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    why = client.get(f"{path}why/").json()
    assert {name: why[name] for name in WAITS} == {name: told[name] for name in WAITS}
    assert why["advice"] == client.get(f"{path}advice/").json()["advice"]
    assert bool(why["advice"]) == (case in ("on a full GPU", "held"))
    whole, page = client.get(path).json(), unescape(client.get(f"/jobs/{job.pk}/").text)
    start = _time(why["starts_p50"])
    assert (start is None) == (case in ("on a full GPU", "held"))
    estimate = preview.estimates(LATER)[job.pk]
    assert (estimate.p50, estimate.position) == (start, why["position"])
    for html in (page, client.get("/jobs/").text) if start else ():
        assert start in {_time(each) for each in re.findall(r'datetime="([^"]+)"', html)}
    codes = [blocker["code"] for blocker in why["blockers"]]
    assert [blocker["code"] for blocker in whole["blockers"]] == codes
    # A page shows times in the zone of the reader.
    assert why["headline"]["headline"].partition(" Mon ")[0] in page
    for each in why["advice"]:
        assert each["text"].partition(":")[0] in page
    for name, value in (("gpucoord_queue_oldest_wait_seconds", 120), ("gpucoord_jobs", 1)):
        assert _metric(name) == value
    bars = [bar for row in timeline.build(LATER).rows for bar, _ in row.bars if bar.job == job.pk]
    assert [bar.begin for bar in bars] == ([int(start.timestamp())] if start else [])


def _waiting(owner: User, data: Path, case: str) -> Job:
    """A job that waits, with the reasons that a pass of the dispatcher stored."""
    if case == "behind a job":
        _running(owner, data, "progress")
        job = jobs_made.waiting(owner, requirement=ALONE)
    elif case == "on a full GPU":
        full = gpu(0, memory_used_bytes=72 * GIB)
        held = process(on=0, user="dana", uid=1004, memory_bytes=72 * GIB)
        snapshots.record(snapshot([full], [held], at=LATER))
        job = jobs_made.waiting(owner, requirement=Requirement(memory_bytes=32 * GIB))
    elif case == "held":
        job = jobs_made.waiting(owner, requirement=ALONE)
        Job.objects.filter(pk=job.pk).update(held="user", held_by=owner.username)
    else:
        begins = LATER + timedelta(minutes=5)
        job = jobs_made.waiting(owner, requirement=ALONE, begin_at=begins)
    preview.forget()
    preview.forget_advice()
    given = preview.plan_input("gpubox", LATER)
    made = plan(given.queue, given.slots, given.policy, LATER, given.rules)
    Job.objects.filter(pk=job.pk).update(
        blockers=list(map(stored_blockers.body, made.blockers[job.pk]))
    )
    return job


def _metric(name: str) -> float:
    families = Families()
    metrics.add_metrics(families, LATER)
    return next(
        sample.value
        for metric in families.collect()
        for sample in metric.samples
        if sample.name == name and sample.labels.get("state", "queued") == "queued"
    )


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
