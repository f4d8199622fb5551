"""Holds are passed on to another engine until an answer shows them, and calls are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from scheduler.dispatch.steps.engine_tasks import EngineHolds, RecentCalls
from scheduler.execution.engines.facts import TaskReport, TaskState
from scheduler.jobs.rows import changes
from scheduler.models import EngineTask, Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db
NONCE = "ab" * 16


@dataclass
class FakeEngine:
    """One waiting task. `failing`: so many calls that come next change nothing."""

    failing: int = 0
    held: bool = False
    calls: list[str] = field(default_factory=list)

    def hold(self, ref: str) -> str:
        return self._change("hold", held=True)

    def release(self, ref: str) -> str:
        return self._change("release", held=False)

    def _change(self, call: str, *, held: bool) -> str:
        self.calls.append(call)
        if self.failing > 0:
            self.failing -= 1
            return "Socket timed out on send/recv operation"
        self.held = held
        return ""


class CallsAtOnce:
    """Calls have ended when they are started."""

    def start(self, kind: str, item: object, call: Callable[[], object]) -> bool:
        del kind, item
        call()
        return True


@dataclass
class Answers:
    """The engine's list, `delay_s` old."""

    engine: FakeEngine
    delay_s: int = 0
    reports: dict[str, TaskReport] = field(default_factory=dict)
    answered_at: datetime | None = None
    _seen: list[tuple[datetime, bool]] = field(default_factory=list)

    def at(self, now: datetime) -> Any:
        self._seen.append((now, self.engine.held))
        limit = now - timedelta(seconds=self.delay_s)
        old = [seen for seen in self._seen if seen[0] <= limit]
        if old:
            self.answered_at, held = old[-1]
            reason = "JobHeldUser" if held else "Priority"
            report = TaskReport(ref="71", state=TaskState.WAITING, reason=reason, nonce=NONCE)
            self.reports = {NONCE: report}
        return cast(Any, self)


@dataclass
class Stand:
    engine: FakeEngine
    answers: Answers
    holds: EngineHolds
    job: Job
    now: datetime = NOW

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            tasks = EngineTask.objects.filter(closed_at=None).select_related("job")
            self.holds.step(tasks, self.answers.at(self.now), self.now)

    @property
    def is_marked(self) -> bool:
        return EngineTask.objects.get().held


@pytest.fixture(params=[0, 2])
def stand(alice: User, request: pytest.FixtureRequest) -> Stand:
    engine, job = FakeEngine(), jobs_made.waiting(alice)
    EngineTask.objects.create(
        job=job, host="here", engine="slurm", number=1, nonce=NONCE, ref="71", created_at=NOW
    )
    calls = cast(Any, CallsAtOnce())
    holds = EngineHolds(transaction.atomic, cast(Any, engine), calls, RecentCalls())
    return Stand(engine, Answers(engine, request.param), holds, job)


def test_a_hold_that_failed_is_passed_on_again(stand: Stand) -> None:
    stand.engine.failing = 2
    changes.hold_job(stand.job.pk, "alice", NOW)

    stand.run(30)

    assert (stand.engine.held, stand.is_marked) == (True, True)
    assert stand.engine.calls == ["hold"] * 3


def test_a_release_that_failed_is_passed_on_again(stand: Stand) -> None:
    changes.hold_job(stand.job.pk, "alice", NOW)
    stand.run(10)
    stand.engine.failing = 2
    changes.release_job(stand.job.pk, "alice", NOW)

    stand.run(60)

    assert (stand.engine.held, stand.is_marked) == (False, False)
    assert stand.engine.calls[-3:] == ["release"] * 3


def test_a_release_right_after_a_hold_ends_released(stand: Stand) -> None:
    changes.hold_job(stand.job.pk, "alice", NOW)
    stand.run(1)
    changes.release_job(stand.job.pk, "alice", NOW)

    stand.run(60)

    assert (stand.engine.held, stand.is_marked) == (False, False)


def test_what_a_user_holds_in_the_engine_stays_held(stand: Stand) -> None:
    stand.engine.held = True

    stand.run(30)

    assert (stand.engine.held, stand.engine.calls) == (True, [])


def test_calls_are_forgotten_after_a_minute() -> None:
    recent = RecentCalls()
    for second in range(600):
        now = NOW + timedelta(seconds=second)
        recent.forget(now)
        assert recent.is_due("stop", f"task {second}", now)
        assert not recent.is_due("stop", f"task {second}", now + timedelta(seconds=4))

    assert len(recent._made_at) <= 62
