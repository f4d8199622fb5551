from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from monitor.facts.readings import GpuProcess, GpuSweep, ProcessIdentity, UseSource
from monitor.gpus.sampling.step import Sampler
from monitor.models import LatestSnapshot, ProcessMinute, ProcessUse
from monitor.usage.step import Ledger
from tests.builders import GIB, NOW, gpu
from tests.monitor.gpus.sampling.test_sampler import QuietMachine, ScriptedProbe, at

pytestmark = pytest.mark.django_db

ALICE = ProcessIdentity(
    pid=300,
    start_ticks=9,
    created_at=NOW - timedelta(hours=1),
    uid=1001,
    user="alice",
    program="python",
    container="docker 0123456789ab",
)


def work(**changes: object) -> GpuProcess:
    facts: dict[str, object] = {
        "gpu_uuid": gpu(0).uuid,
        "pid": 300,
        "memory_bytes": 10 * GIB,
        "sm_pct": 50.0,
        "source": UseSource.PROCESSES_INFO,
    }
    return GpuProcess(**(facts | changes))  # type: ignore[arg-type]


def busy(*processes: GpuProcess) -> GpuSweep:
    return GpuSweep(gpus=(gpu(0), gpu(1)), processes=processes)


def sampler(sweep: GpuSweep, name: str = "nvml") -> Sampler:
    made = Sampler(transaction.atomic, ScriptedProbe(sweep, name), QuietMachine(ALICE))
    made.open()
    return made


def test_it_stores_usage_every_few_seconds() -> None:
    running = sampler(busy(work()))
    for second in range(0, 22, 2):
        running.step(at(second))
    use = ProcessUse.objects.get()
    assert (use.host, use.pid, use.start_ticks, use.gpu_id) == ("box", 300, 9, gpu(0).uuid)
    assert (use.user, use.uid, use.program, use.container) == (
        "alice",
        1001,
        "python",
        "docker 0123456789ab",
    )
    assert (use.source, use.ended_at) == ("processes_info", None)
    assert (use.held_s, use.known_s, use.sm_s) == (18, 18, 9)
    assert use.memory_byte_s == 18 * 10 * GIB
    assert (use.first_seen_at, use.last_seen_at) == (at(0), at(18))


def test_minutes_hold_the_same_and_no_more_than_sixty_seconds() -> None:
    running = sampler(busy(work()))
    for second in range(31, 247, 2):
        running.step(at(second))
    running._probe.sweep = busy()  # type: ignore[attr-defined]
    running.step(at(247))
    for second in range(249, 256, 2):
        running.step(at(second))
    use = ProcessUse.objects.get()
    minutes = list(ProcessMinute.objects.order_by("t"))
    assert [m.t - int(NOW.timestamp()) for m in minutes] == [0, 60, 120, 180, 240]
    assert [m.held_s for m in minutes] == pytest.approx([29, 60, 60, 60, 6])
    for name in ("sm_s", "held_s", "known_s", "memory_byte_s"):
        total = sum(getattr(m, name) for m in minutes)
        assert total == pytest.approx(getattr(use, name))
    assert use.ended_at == at(247)


def test_another_sampler_continues_without_loss_or_double_counting() -> None:
    for start in range(0, 60, 6):
        running = sampler(busy(work()))
        for second in range(start, start + 6, 2):
            running.step(at(second))
    last = sampler(busy(work()))
    for second in range(60, 72, 2):
        last.step(at(second))
    use = ProcessUse.objects.get()
    seen = (use.last_seen_at - at(0)).total_seconds()
    assert (use.held_s, use.sm_s) == pytest.approx((seen, seen / 2))
    assert sum(m.held_s for m in ProcessMinute.objects.all()) == pytest.approx(seen)


def test_what_a_dead_sampler_had_not_written_yet_is_not_lost() -> None:
    running = sampler(busy(work()))
    for second in range(0, 10, 2):
        running.step(at(second))
    assert ProcessUse.objects.get().held_s == 6
    again = sampler(busy())
    again.step(at(10))
    use = ProcessUse.objects.get()
    assert (use.held_s, use.ended_at) == (9, at(10))


def test_a_process_that_returns_to_a_gpu_continues_its_row() -> None:
    running = sampler(busy(work()))
    shown = [busy(work()), busy(work()), busy(), busy(work()), busy(work())]
    for pause in (2, 30):
        for number, sweep in enumerate(shown):
            running._probe.sweep = sweep  # type: ignore[attr-defined]
            running.step(at(pause * 10 + number * 2))
    running.step(at(pause * 10 + 16))
    use = ProcessUse.objects.get()
    # 2 s twice in each round, half of the 4 s without it, and the 272 s and 8 s after the rounds.
    # Work before the first sweep without it is unknown.
    assert (use.held_s, use.known_s) == pytest.approx((2 * (2 + 2 + 2) + 272 + 8, 2 * (2 + 2 + 1)))
    assert sum(m.held_s for m in ProcessMinute.objects.all()) == pytest.approx(use.held_s)
    assert use.ended_at is None


def test_without_carried_state_it_starts_again_and_adds_to_the_rows() -> None:
    running = sampler(busy(work()))
    for second in range(0, 12, 2):
        running.step(at(second))
    before = ProcessUse.objects.get().held_s
    LatestSnapshot.objects.update(carry="{")
    again = sampler(busy(work()))
    for second in range(100, 108, 2):
        again.step(at(second))
    use = ProcessUse.objects.get()
    assert (use.held_s, use.ended_at) == (before + 6, None)


def test_uses_of_another_probe_end_when_they_were_last_seen() -> None:
    running = sampler(busy(work()), "simulated")
    for second in range(0, 12, 2):
        running.step(at(second))
    sampler(busy(), "nvml").step(at(30))
    use = ProcessUse.objects.get()
    assert use.ended_at == use.last_seen_at


def test_a_tick_that_is_rolled_back_is_counted_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, body: bytes) -> None:
        raise RuntimeError("disk full")

    running = sampler(busy(work()))
    for second in range(0, 8, 2):
        running.step(at(second))
    with monkeypatch.context() as patched:
        patched.setattr("monitor.gpus.sampling.step.wake", refuse)
        with pytest.raises(RuntimeError):
            running.step(at(8))
    running.step(at(12))
    assert ProcessUse.objects.get().held_s == 12


def test_a_sampler_that_dies_before_it_writes_the_rows_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(self: Ledger) -> str:
        raise RuntimeError("killed")

    running = sampler(busy(work()))
    for second in range(0, 4, 2):
        running.step(at(second))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "write", die)
        with pytest.raises(RuntimeError):
            running.step(at(6))
    again = sampler(busy())
    again.step(at(8))
    use = ProcessUse.objects.get()
    assert (use.held_s, use.ended_at) == (7, at(8))
    assert sum(m.held_s for m in ProcessMinute.objects.all()) == pytest.approx(7)
