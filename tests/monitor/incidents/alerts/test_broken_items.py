"""One broken item changes nothing for the others: alerts, their sending, and the sampler."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Xid
from monitor.facts.readings import GpuProcess, GpuSweep, HostReading, ProcessIdentity
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.host import Identities
from monitor.gpus.sampling.step import Sampler
from monitor.incidents.alerts import steps
from monitor.journal.rows import counters, events
from monitor.models import Channel, Event, Message
from tests.builders import NOW, gpu
from tests.monitor.alerts_made import Post, channel, incident, later

pytestmark = pytest.mark.django_db
NAMES = ("first", "second", "third")


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


# Alerts and their sending


@pytest.mark.parametrize("broken", NAMES)
def test_a_channel_that_fails_keeps_no_other_from_its_messages(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    for name in NAMES:
        channel(name)
    incident()
    route_of = steps.route_of

    def odd(row: Channel) -> Any:
        if row.name == broken:
            raise ValueError("an odd route")
        return route_of(row)

    monkeypatch.setattr(steps, "route_of", odd)
    steps.write(later(0))

    told = set(Message.objects.values_list("channel__name", flat=True))
    assert told == set(NAMES) - {broken}


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_an_incident_whose_message_cannot_be_written_delays_no_other(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    channel()
    rows = [incident(user=f"user{number}") for number in range(3)]
    letter = steps.message_text

    def odd(row: Any, *args: Any, **named: Any) -> str:
        if row.pk == rows[broken].pk:
            raise KeyError("rule")
        return letter(row, *args, **named)

    monkeypatch.setattr(steps, "message_text", odd)
    steps.write(later(0))

    told = set(Message.objects.values_list("incident_id", flat=True))
    assert told == {row.pk for row in rows} - {rows[broken].pk}


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_message_that_cannot_be_sent_keeps_no_other_of_its_channel_waiting(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    channel()
    rows = [incident(user=f"user{number}") for number in range(3)]
    steps.write(later(0))
    first_line = steps.first_line

    def odd(row: Any, **named: Any) -> str:
        if row.pk == rows[broken].pk:
            raise KeyError("rule")
        return first_line(row, **named)

    monkeypatch.setattr(steps, "first_line", odd)
    post = Post()
    for _ in range(6):
        steps.send_due(post, later(0.01))

    sent = set(Message.objects.filter(state="sent").values_list("incident_id", flat=True))
    assert sent == {row.pk for row in rows} - {rows[broken].pk}
    aside = Message.objects.get(incident=rows[broken])
    assert (aside.state, aside.attempts, aside.problem) == ("waiting", 1, steps.UNWRITABLE)
    assert Channel.objects.get().failing_since is None


@pytest.mark.parametrize("broken", NAMES)
def test_a_channel_whose_result_cannot_be_written_keeps_no_other_from_its_result(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    for name in NAMES:
        channel(name)
    incident()
    steps.write(later(0))
    works = steps._works

    def odd(row: Channel, now: datetime) -> None:
        works(row, now)
        if row.name == broken:
            raise OverflowError("an odd figure")

    monkeypatch.setattr(steps, "_works", odd)
    steps.send_due(Post(), later(0.01))

    sent = set(Message.objects.filter(state="sent").values_list("channel__name", flat=True))
    assert sent == set(NAMES) - {broken}


# The sampler


class Probe:
    """Shows the sweeps one after the other, the last one for ever."""

    name = "nvml"

    def __init__(self, *sweeps: GpuSweep) -> None:
        self.sweeps = list(sweeps)

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        return self.sweeps.pop(0) if len(self.sweeps) > 1 else self.sweeps[0]

    def close(self) -> None: ...


class Machine:
    name = "box"

    def open(self) -> None: ...
    def close(self) -> None: ...

    def read(self, now: datetime) -> HostReading:
        return HostReading(name="box", boot_id="b")

    def identities(self, pids: Collection[int]) -> dict[int, ProcessIdentity]:
        return {}


def sampler(probe: Probe, guard: Any = transaction.atomic, machine: Any = None) -> Sampler:
    made = Sampler(guard, probe, machine or Machine())  # type: ignore[arg-type]
    made.open()
    return made


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_an_event_that_cannot_be_written_delays_no_other(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    add = events.add

    def odd(kind: str, text: str, **about: Any) -> Event:
        if about.get("gpu_uuid") == gpu(broken).uuid:
            raise ValueError("an odd text")
        return add(kind, text, **about)

    monkeypatch.setattr(events, "add", odd)
    every = tuple(gpu(index) for index in range(4))
    running = sampler(Probe(GpuSweep(gpus=every[3:]), GpuSweep(gpus=every)))
    running.step(at(0))
    shot = running.step(at(1))

    assert snapshots.newest("box") == shot
    found = Event.objects.filter(kind="GPU_FOUND").values_list("gpu_uuid", flat=True)
    assert set(found) == {gpu(i).uuid for i in range(3)} - {gpu(broken).uuid}


@pytest.mark.parametrize("broken", [301, 302, 303])
def test_a_process_that_cannot_be_identified_keeps_no_other_unknown(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    def odd(self: Identities, pid: int, _stats: Any) -> ProcessIdentity:
        if pid == broken:
            raise ValueError("an odd line")
        return ProcessIdentity(pid=pid, start_ticks=9, created_at=NOW, user="alice")

    class Box(Machine):
        known = Identities(0.0)
        process_faults = property(lambda self: self.known.faults)

        def identities(self, pids: Collection[int]) -> dict[int, ProcessIdentity]:
            return self.known.of(pids)

    monkeypatch.setattr(Identities, "_identify", odd)
    processes = tuple(GpuProcess(gpu_uuid=gpu(0).uuid, pid=pid) for pid in (301, 302, 303))
    probe = Probe(GpuSweep(gpus=(gpu(0),), processes=processes))

    shot = sampler(probe, machine=Box()).step(at(0))

    users = {process.pid: process.user for process in shot.processes}
    assert users == {301: "alice", 302: "alice", 303: "alice"} | {broken: None}


def test_an_error_of_a_gpu_survives_a_failed_transaction() -> None:
    fails = [False, True, False]

    def guard() -> Any:
        if fails and fails.pop(0):
            raise OperationalError("database is locked")
        return transaction.atomic()

    seen = GpuSweep(gpus=(gpu(0),))
    error = GpuSweep(gpus=(gpu(0),), xids=(Xid(gpu(0).uuid, 79),))
    running = sampler(Probe(seen, error, seen), guard)
    running._ledger.written(at(0))  # no rows of uses in this test
    running.step(at(0))
    with pytest.raises(OperationalError):
        running.step(at(1))
    for second in (2, 3, 4):
        running.step(at(second))

    kinds = list(Event.objects.values_list("kind", flat=True))
    assert (kinds.count("GPU_XID"), kinds.count("GPU_UNHEALTHY")) == (1, 1)
    assert counters.xids() == {gpu(0).uuid: {79: 1}}
