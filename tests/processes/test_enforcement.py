"""The whole ladder about a real process, of this test's own, that runs as a person."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.incidents.policy.enforcement import RUN_S
from monitor.models import Incident, Message, PolicyValues, Response
from scheduler.dispatch.steps.enforcement import Enforcement
from scheduler.runner import process_tree
from scheduler.runner.actions import ProcessControl, Target
from scheduler.runner.confine import caps
from tests.builders import NOW, process, snapshot
from tests.monitor.alerts_made import channel, incident, later
from tests.monitor.past import process_use
from tests.processes.service import wait_until
from tests.processes.test_enforcing import is_stopped, paced

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db,
    pytest.mark.skipif(
        os.geteuid() != 0 or not caps.may_restore(), reason="needs root's privileges"
    ),
]
PERSON = 12_345
POLICY = {
    "enabled": True,
    "dry_run": False,
    "users": ["alice"],
    "warn_again_minutes": 0.0,
    "renice_minutes": 2.0,
    "limit_minutes": 0.0,
    "freeze_minutes": 3.0,
    "grace_minutes": 1.0,
}


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], user=PERSON) as child:
        yield child.pid
        child.kill()


def test_it_is_warned_slowed_stopped_in_turns_and_let_go_when_the_incident_closes(
    alice: User, pid: int, tmp_path: Path
) -> None:
    ticks = process_tree.start_ticks_of(pid)
    channel(is_mail=True, to_owners=True)
    incident(
        pid=pid,
        start_ticks=ticks,
        program="sleep",
        hog_spans=[[NOW.timestamp(), NOW.timestamp()]],
    )
    PolicyValues.objects.create(name="enforcement", values=POLICY)
    base = os.getpriority(os.PRIO_PROCESS, pid)

    def tick(minute: float) -> None:
        # Each time a new part, as after a restart.
        part = Enforcement("gpubox", ProcessControl(tmp_path / "pacing"))
        now = later(minute)
        holder = process(pid, start_ticks=ticks, uid=PERSON, program="sleep")
        for second in (0, 5):
            at = now + timedelta(seconds=second)
            part.judge(snapshot(1, [holder], at=at), at)

    tick(0)
    tick(1)
    assert os.getpriority(os.PRIO_PROCESS, pid) == base
    Message.objects.update(state="sent", sent_at=later(1))
    tick(3)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10
    tick(4)
    target = Target("incident", pid, ticks or 0)
    wait_until(lambda: is_stopped(target), RUN_S + 5, "stopped")

    Incident.objects.update(closed_at=later(5))
    tick(5)

    assert os.getpriority(os.PRIO_PROCESS, pid) == base
    wait_until(lambda: not paced(target), 3, "no pacer")
    assert not is_stopped(target)
    states = dict(Response.objects.values_list("step", "state"))
    assert states == {"warn": "done", "renice": "undone", "freeze": "undone"}


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a person that ignores SIGTERM."""
    ignores = ["/bin/sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 1; done']
    with subprocess.Popen(ignores, user=PERSON, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_an_operator_ends_it_by_the_page_of_the_incident_and_kills_it_if_it_stays(
    root: User,
    as_user: Callable[[User], Client],
    stubborn: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    pid, ticks = stubborn.pid, process_tree.start_ticks_of(stubborn.pid)
    row = incident(pid=pid, start_ticks=ticks, program="sh")
    row.use = process_use(row.gpu, NOW, uid=PERSON)  # type: ignore[arg-type]
    row.save()
    path, browser = f"/incidents/{row.pk}/", as_user(root)
    holder = process(pid, start_ticks=ticks, uid=PERSON, program="sh")
    part = Enforcement("gpubox", ProcessControl(tmp_path / "pacing"))

    def press(verb: str, value: str) -> None:
        assert verb in browser.get(path).content.decode()
        browser.post(f"{path}end/", {"pid": pid, "start_ticks": ticks, "signal": value})
        for second in range(2):
            at = timezone.now() + timedelta(seconds=second)
            part.judge(snapshot(1, [holder], at=at), at)

    press("Send SIGTERM", "terminate")
    assert stubborn.poll() is None
    press("Send SIGKILL", "kill")
    assert stubborn.wait(5) == -signal.SIGKILL
