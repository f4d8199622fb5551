"""All meters of a process against an exact timeline, with samples that come up to 1 s late."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice, takewhile

import pytest

from monitor.facts.readings import EndedProcess, UseSource
from monitor.usage.policy.accounting import ProcessRecord, ProcessUses, UsageAmounts
from tests.builders import GIB, NOW, gpu, gpu_uuid, process

IDLE_W = 50.0
Spans = list[tuple[float, float]]


def during(spans: Spans, begin: float, end: float) -> float:
    first = max(0, bisect(spans, (begin,)) - 1)
    overlaps = takewhile(lambda span: span[0] < end, islice(spans, first, None))
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in overlaps)


@dataclass
class Worker:
    """On the GPU from `come` to `go`; it uses `share` of the GPU, and `full_w` at full use."""

    pid: int
    come: float
    go: float
    work: Spans
    share: float = 1.0
    full_w: float = 300.0
    counted_to: float = 0.0

    def busy(self, begin: float, end: float) -> float:
        return self.share * during(self.work, max(begin, self.come), min(end, self.go))


def cycles(come: float, go: float, every: float, long: float, offset: float = 0.0) -> Spans:
    count = int((go - come) / every) + 1
    begins = [come + offset + every * number for number in range(count)]
    return [(begin, min(begin + long, go)) for begin in begins if begin < go]


@dataclass
class Server:
    """A GPU that is read each second and its processes at each second reading."""

    workers: Sequence[Worker]
    late_s: float
    jitter_s: float
    seed: int = 1
    uses: ProcessUses = field(default_factory=ProcessUses)
    done: dict[int, ProcessRecord] = field(default_factory=dict)

    def run(self, seconds: int) -> None:
        chance, energy_j, read_at = random.Random(self.seed), 0.0, 0.0
        seen: set[int] = set()
        for number in range(1, seconds + 1):
            t = number + chance.random() * self.jitter_s
            late = t + chance.random() * 0.1 * self.jitter_s
            energy_j += IDLE_W * (late - read_at)
            energy_j += sum(w.full_w * w.busy(read_at, late) for w in self.workers)
            read_at = late
            load = min(1.0, sum(w.busy(t - 1, t) for w in self.workers))
            now = NOW + timedelta(seconds=t)
            reading = gpu(
                energy_mj=round(energy_j * 1000), power_w=None, utilization_pct=round(100 * load)
            )
            if number % 2:
                self.uses.note(now, [reading])
                continue
            until = t - chance.random() * self.late_s
            listed = [w for w in self.workers if w.come <= t < w.go]
            busy, ended = {}, []
            for w in self.workers:
                due = w.busy(w.counted_to, max(w.counted_to, until))
                w.counted_to = max(w.counted_to, until)
                if w in listed:
                    busy[gpu_uuid(0), w.pid] = due
                    seen.add(w.pid)
                elif due and w.pid in seen:
                    source = UseSource.PROCESS_UTILIZATION
                    last = EndedProcess(gpu_uuid=gpu_uuid(0), pid=w.pid, busy_s=due, source=source)
                    ended.append(last)
            old = NOW - timedelta(hours=1)
            shown = [process(w.pid, created_at=old, memory_bytes=GIB) for w in listed]
            self.uses.take(now, [reading], shown, busy, ended)
            self.done |= {use.pid: use for use in (*self.uses.open.values(), *self.uses.ended)}
            self.uses.taken()

    def errors(self, worker: Worker) -> dict[str, float]:
        total: UsageAmounts = self.done[worker.pid].total
        sm_s = worker.busy(worker.come, worker.go)
        held_s = worker.go - worker.come
        return {
            "work": total.sm_s / sm_s - 1,
            "held": total.held_s / held_s - 1,
            "memory": total.memory_byte_s / GIB / held_s - 1,
            "energy": (total.joules or 0.0) / (sm_s * worker.full_w) - 1,
        }


LATE = [0.0, 0.3, 0.6, 1.0]


@pytest.mark.parametrize("jitter_s", [0.0, 0.9])
@pytest.mark.parametrize("late_s", LATE)
@pytest.mark.parametrize(
    ("every", "long"), [(10.0, 3.0), (60.0, 1.0), (120.0, 2.0), (7.3, 4.1), (600.0, 600.0)]
)
def test_a_burst_is_measured_within_three_percent(
    every: float, long: float, late_s: float, jitter_s: float
) -> None:
    worker = Worker(1, 30.5, 630.5, cycles(30.5, 630.5, every, long, 0.7))
    server = Server([worker], late_s, jitter_s)
    server.run(660)
    worst = server.errors(worker)
    assert {name: pytest.approx(0.0, abs=0.03) for name in worst} == worst


@pytest.mark.parametrize("jitter_s", [0.0, 0.9])
@pytest.mark.parametrize("late_s", LATE)
def test_a_small_user_does_not_pay_for_the_bursts_of_another(
    late_s: float, jitter_s: float
) -> None:
    small = Worker(1, 30.5, 630.5, [(30.5, 630.5)], share=0.05)
    big = Worker(2, 30.5, 630.5, cycles(30.5, 630.5, 10.0, 3.0, 0.7), share=0.5)
    server = Server([small, big], late_s, jitter_s)
    server.run(660)
    for worker in (small, big):
        worst = server.errors(worker)
        assert {name: pytest.approx(0.0, abs=0.03) for name in worst} == worst


@pytest.mark.parametrize("late_s", LATE)
@pytest.mark.parametrize(("long", "tolerance"), [(4.0, 0.06), (9.0, 0.06), (30.0, 0.03)])
def test_short_processes_are_right_on_average(late_s: float, long: float, tolerance: float) -> None:
    """Of a process that works all the time, half of the interval is often less than its work."""
    chance = random.Random(7)
    begins = [20.0 + number * (long + 7) + chance.random() * 2 for number in range(60)]
    workers = [Worker(n, b, b + long, [(b, b + long)]) for n, b in enumerate(begins, start=1)]
    server = Server(workers, late_s, 0.5)
    server.run(int(begins[-1] + long + 10))
    means = dict.fromkeys(("work", "held", "memory", "energy"), 0.0)
    for worker in workers:
        for name, error in server.errors(worker).items():
            means[name] += error / len(workers)
    assert {name: pytest.approx(0.0, abs=tolerance) for name in means} == means
    assert means["work"] == pytest.approx(0.0, abs=0.03)
