from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import ProcessReading, Snapshot
from monitor.incidents import actions
from monitor.incidents.alerts import steps as alert_writer
from monitor.journal.rows import events
from monitor.models import (
    AuditEntry,
    Channel,
    Event,
    Gpu,
    Incident,
    Message,
    PolicyValues,
    ProcessUse,
    Response,
)
from scheduler.dispatch.steps.enforcement import Enforcement
from scheduler.runner.actions import Target
from tests.builders import NOW, gpu_uuid, process, snapshot
from tests.monitor import past
from tests.monitor.alerts_made import channel, incident, later

pytestmark = pytest.mark.django_db
REFUSED = Response.State.REFUSED
MAIL = {"is_mail": True, "to_owners": True}
ALL = {
    "enabled": True,
    "dry_run": False,
    "users": ["alice"],
    "warn_again_minutes": 2.0,
    "renice_minutes": 3.0,
    "limit_minutes": 4.0,
    "freeze_minutes": 6.0,
    "terminate_minutes": 8.0,
    "grace_minutes": 1.0,
}


def hog(**changes: Any) -> Incident:
    """An incident that takes from others: the only kind that enforcement acts on."""
    return incident(hog_spans=[[NOW.timestamp(), NOW.timestamp()]], **changes)


class Noted:
    """Hands that only note what they are told; `problem` is what they answer."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.problem: str | None = None
        self.gone = False
        self.about: list[int] = []

    def owner(self, target: Target) -> int | None:
        return None if self.gone else 1001

    def look(self, target: Target) -> dict[str, Any] | None:
        return None if self.gone else {"priority": {"nice": 0}, "cgroup": None}

    def lower(self, target: Target, nice: int) -> str | None:
        self.about.append(target.pid)
        return self._note(f"nice {nice}")

    def restore(self, target: Target, before: dict[str, Any]) -> None:
        self.about.append(target.pid)
        self._note(f"nice {before['priority']['nice']} again")

    def cap(self, target: Target, before: Any, cores: float, memory_bytes: Any) -> str | None:
        return self._note("cap")

    def uncap(self, target: Target, before: dict[str, Any]) -> None:
        self._note("uncap")

    def freeze(
        self, target: Target, run_s: float, stop_s: float, *, again: bool = False
    ) -> str | None:
        return None if again else self._note("freeze")

    def thaw(self, target: Target) -> None:
        self._note("thaw")

    def end(self, target: Target, *, kill: bool = False) -> str | None:
        self.about.append(target.pid)
        return self._note("kill" if kill else "end")

    def _note(self, what: str) -> str | None:
        self.did.append(what)
        return self.problem


class World:
    """Minutes pass, alice's python runs on, and mails arrive unless the post is shut."""

    def __init__(self, **policy: Any) -> None:
        PolicyValues.objects.create(name="enforcement", values=ALL | policy)
        self.actions = Noted()
        self.part = Enforcement("gpubox", self.actions)
        self.minute = 0
        self.post_is_open = True
        self.processes: tuple[ProcessReading, ...] = (process(),)

    def run(self, minutes: int) -> World:
        for _ in range(minutes):
            self.tick()
            self.minute += 1
        return self

    def tick(self) -> None:
        now = later(self.minute)
        latest: Snapshot = snapshot(2, self.processes, at=now)
        self.part.judge(latest, now)
        self.part.judge(latest, now + timedelta(seconds=5))
        if self.post_is_open:
            Message.objects.filter(state="waiting").update(state="sent", sent_at=now)


@pytest.fixture
def world(alice: User) -> World:
    channel(**MAIL)
    hog()
    return World()


def kinds() -> list[str]:
    return [event.kind.removeprefix("ENFORCEMENT_") for event in reversed(events.recent(100))]


def test_it_warns_twice_and_then_acts_step_by_step(world: World) -> None:
    world.run(9)

    assert world.actions.did == ["nice 10", "cap", "freeze", "end"]
    assert kinds() == ["ACTED"] * 6
    assert [m.number for m in Message.objects.order_by("id")] == [1, 2]
    assert AuditEntry.objects.filter(by="gpucoord", subject__startswith="incident").count() == 6


def test_the_warning_says_what_comes_and_when(world: World) -> None:
    world.tick()
    text = Message.objects.get().text

    assert text.startswith("python has kept GPU 0 – busy for 0 s.")
    assert "Process 4200001 on gpubox." in text
    assert "gpucoord submit" in text
    assert "3 minutes after the first of these mails: lower its priority" in text
    assert "8 minutes after the first of these mails: terminate it" in text
    assert Message.objects.get().receiver == "alice@example.org"


def test_the_warning_goes_by_a_channel_that_works(world: World) -> None:
    Channel.objects.update(failing_since=later(0))
    channel("second", **MAIL)

    world.tick()

    assert Message.objects.get().channel.name == "second"


def test_while_the_warning_has_not_arrived_nothing_is_done(world: World) -> None:
    world.post_is_open = False

    world.run(20)

    assert world.actions.did == []


@pytest.mark.parametrize("lacking", ["channel", "address"])
def test_without_a_way_to_warn_nothing_is_done_and_that_is_told_once(
    alice: User, lacking: str
) -> None:
    channel(**(MAIL if lacking == "address" else {}))
    if lacking == "address":
        User.objects.update(email="")
    hog()
    world = World().run(7)

    assert world.actions.did == []
    assert kinds() == ["REFUSED"]
    User.objects.update(email="alice@example.org")
    channel("mail", **MAIL)
    assert world.run(15).actions.did[:1] == ["nice 10"]


def test_a_dry_run_says_what_it_would_do_and_touches_nothing(alice: User) -> None:
    hog()
    world = World(dry_run=True).run(9)

    assert (world.actions.did, Message.objects.count()) == ([], 0)
    assert kinds() == ["DRY_RUN"] * 6
    assert events.recent(1)[0].text == "Would send SIGTERM to python (PID 4200001, alice) on GPU 0"


def test_what_a_dry_run_said_counts_for_nothing_when_it_gets_serious(world: World) -> None:
    PolicyValues.objects.update(values=ALL | {"dry_run": True})
    world.run(9)
    PolicyValues.objects.update(values=ALL)
    world.run(3)

    assert (world.actions.did, Message.objects.count()) == ([], 2)


def test_it_is_off_by_default(alice: User) -> None:
    channel(**MAIL)
    hog()
    world = World()
    PolicyValues.objects.all().delete()

    assert (world.run(12).actions.did, kinds()) == ([], [])


@pytest.mark.parametrize(
    "end",
    [
        {"closed_at": later(0)},
        {"snoozed_until": later(10_000)},
        {"exempt_until": later(10_000)},
    ],
)
def test_what_lasts_is_taken_back_when_it_is_over_the_last_first(
    world: World, end: dict[str, Any]
) -> None:
    world.run(7)
    Incident.objects.update(**end)

    # After a restart: the rows know.
    world.part = Enforcement("gpubox", world.actions)
    world.run(3)

    assert world.actions.did[3:] == ["thaw", "uncap", "nice 0 again"]
    assert kinds()[-3:] == ["UNDONE"] * 3


@pytest.mark.parametrize("change", [{"enabled": False}, {"dry_run": True}, {"users": ["bob"]}])
def test_a_change_of_the_policy_takes_back_what_lasts(world: World, change: Any) -> None:
    world.run(5)
    PolicyValues.objects.update(values=ALL | change)

    world.run(1)

    assert world.actions.did[2:] == ["uncap", "nice 0 again"]


def test_what_was_planned_when_gpucoord_died_is_done_or_taken_back(world: World) -> None:
    world.run(3)
    now = later(3)
    latest = snapshot(2, world.processes, at=now)
    world.part.judge(latest, now)
    row = Response.objects.get(step="renice")
    assert (row.state, world.actions.did) == ("planned", [])

    Incident.objects.update(closed_at=now)
    Enforcement("gpubox", world.actions).judge(latest, now)

    row.refresh_from_db()
    assert (row.state, world.actions.did) == ("undone", ["nice 0 again"])


def test_one_that_is_off_the_gpu_for_a_moment_keeps_its_limits_and_gets_no_new_ones(
    world: World,
) -> None:
    gpu_id = Incident.objects.get().gpu_id
    use = ProcessUse.objects.create(
        host="gpubox", pid=4_200_001, start_ticks=4_201_001, gpu_id=gpu_id, user="alice", uid=1001,
        first_seen_at=later(0), last_seen_at=later(0),
    )  # fmt: skip
    Incident.objects.update(use=use)
    world.run(4)
    world.processes = ()

    world.run(7)

    assert world.actions.did == ["nice 10"]


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": 0},
        {"uid": None},
        {"start_ticks": 1},
        {"pid": 4_200_002},
    ],
)
def test_another_process_or_one_of_the_system_is_spared(world: World, changes: Any) -> None:
    world.processes = (process(**({"start_ticks": 1000 + 4_200_001} | changes)),)

    assert (world.run(9).actions.did, kinds()) == ([], [])


OTHER = 4_200_002


def names_another() -> None:
    """Of two processes of one hog the other now uses more: the incident names that."""
    Incident.objects.update(pid=OTHER, start_ticks=1000 + OTHER, program="python3")


def test_what_was_done_to_one_process_is_taken_back_from_that_one(world: World) -> None:
    world.processes = (process(), process(OTHER))
    world.run(4)
    names_another()
    world.run(1)
    Incident.objects.update(closed_at=later(5))
    world.run(1)

    assert world.actions.did == ["nice 10", "cap", "uncap", "nice 0 again"]
    assert set(world.actions.about) == {4_200_001}


def test_what_was_planned_for_one_process_is_never_done_to_another(world: World) -> None:
    world.processes = (process(), process(OTHER))
    world.run(3)
    now = later(3)
    world.part.judge(snapshot(2, world.processes, at=now), now)
    assert Response.objects.get(step="renice").state == "planned"
    names_another()
    world.processes = (process(OTHER),)

    world.run(1)

    assert set(world.actions.about) == {4_200_001}
    assert world.actions.did == ["nice 0 again"]


def test_when_one_process_was_ended_the_next_has_all_the_time_again(world: World) -> None:
    world.processes = (process(), process(OTHER))
    world.run(9)
    assert (world.actions.did[-1], world.actions.about[-1]) == ("end", 4_200_001)
    names_another()
    world.processes = (process(OTHER),)
    world.run(3)
    assert OTHER not in world.actions.about

    world.run(6)

    assert [pid for pid in world.actions.about if pid == OTHER] == [OTHER, OTHER]
    assert Message.objects.count() == 2


def test_a_cpu_hog_is_slowed_though_it_is_on_no_gpu(world: World) -> None:
    PolicyValues.objects.update(values=ALL | {"rules": ["cpu_hog"]})
    Incident.objects.update(rule="cpu_hog", gpu=None)
    world.processes = ()

    world.run(4)

    assert (world.actions.did, world.actions.about) == (["nice 10"], [4_200_001])
    world.actions.gone = True
    world.run(9)
    assert set(world.actions.did) == {"nice 10", "nice 0 again"}
    assert "UNDONE" not in kinds()


def test_jobs_of_gpucoord_are_left_to_the_scheduler(world: World) -> None:
    Incident.objects.update(job_ref="7", job_owner="alice")

    assert world.run(9).actions.did == []


def test_several_incidents_of_one_process_are_one_case(world: World) -> None:
    hog(rule="fair_share", opened_at=later(1))

    world.run(5)

    assert world.actions.did == ["nice 10", "cap"]
    assert Message.objects.count() == 2


def test_a_step_that_can_not_be_taken_is_told_and_the_next_one_comes(world: World) -> None:
    world.actions.problem = "No privilege."
    world.run(5)

    assert Response.objects.get(step="renice").state == "refused"
    assert kinds().count("REFUSED") == 2
    assert "but can't: No privilege." in events.recent(1)[0].text
    Incident.objects.update(closed_at=later(5))
    world.run(1)
    assert world.actions.did == ["nice 10", "cap"]


def test_another_host_s_incidents_are_left_alone(world: World) -> None:
    Incident.objects.update(host="other")

    assert world.run(9).actions.did == []


def test_its_owner_gets_no_third_mail_that_only_informs(world: World) -> None:
    world.tick()
    alert_writer.write(later(0))

    assert Message.objects.count() == 1


@pytest.mark.parametrize("rule", ["sustained", "fair_share", "memory_hog", "cpu_hog"])
def test_neutral_use_outside_the_queue_is_never_enforced(alice: User, rule: str) -> None:
    channel(**MAIL)
    incident(rule=rule)
    everything = World(rules=["sustained", "fair_share", "memory_hog", "cpu_hog"]).run(20)

    assert everything.actions.did == []
    assert not Response.objects.exists()
    assert not Message.objects.exists()


def requested(world: World, row: Incident, *, kill: bool = False, after_s: float = 0) -> Response:
    """An operator has the process ended; the host looks `after_s` later."""
    now = later(world.minute)
    process = (4_200_001, 1000 + 4_200_001)
    assert actions.end_process(row, process, "root", now, kill=kill) == ""
    latest = snapshot(2, world.processes, at=now)
    world.part.judge(latest, now + timedelta(seconds=after_s))
    return Response.objects.get(by="root")


def named(**changes: Any) -> Incident:
    """The incident, and alice's process as it was last seen."""
    row = hog(**changes)
    ticks = 1000 + 4_200_001
    row.use = past.process_use(Gpu.objects.get(uuid=gpu_uuid(0)), NOW, start_ticks=ticks, uid=1001)
    row.save()
    return row


@pytest.mark.parametrize(("kill", "did"), [(False, "end"), (True, "kill")])
def test_an_operator_ends_the_process_without_a_policy(world: World, kill: bool, did: str) -> None:
    PolicyValues.objects.all().delete()
    response = requested(world, named(), kill=kill)
    assert world.actions.did == [did]
    assert response.state == Response.State.DONE
    event = Event.objects.get(kind="ENFORCEMENT_ACTED")
    assert event.text.endswith("python (PID 4200001, alice) on GPU 0 at the request of root")
    assert AuditEntry.objects.filter(action="INCIDENT_PROCESS_ENDED", by="root").exists()


def test_a_signal_is_sent_once_and_never_late(world: World) -> None:
    PolicyValues.objects.all().delete()
    response = requested(world, named(), after_s=121)
    world.run(2)
    assert world.actions.did == []
    assert (response.state, response.text) == (REFUSED, "This host got the request too late.")


def test_the_page_says_why_the_host_could_not_end_the_process(world: World) -> None:
    PolicyValues.objects.all().delete()
    world.actions.problem = "It has ended."
    response = requested(world, named())
    assert (response.state, response.text) == (REFUSED, "It has ended.")
    assert Event.objects.filter(kind="ENFORCEMENT_REFUSED").exists()


def test_a_process_that_the_operator_was_not_shown_is_not_ended(world: World) -> None:
    row = named()
    problem = actions.end_process(row, (4_200_001, 1), "root", NOW)
    assert problem == "The incident names another process now. Look at it again."
    assert not Response.objects.exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"job_ref": "7"}, "It is a job of gpucoord: the scheduler handles it."),
        ({"user": "root"}, "It belongs to a system account."),
        ({"user": ""}, "Its owner is unknown."),
        ({"closed_at": NOW}, "The incident is closed."),
        ({"pid": None}, "The incident names no process."),
    ],
)
def test_operators_end_no_jobs_and_no_system_processes(
    world: World, changes: dict[str, Any], problem: str
) -> None:
    row = named(**changes)
    assert actions.ending_problem(row) == problem
