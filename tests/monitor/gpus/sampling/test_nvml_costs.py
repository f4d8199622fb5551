from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.gpus.sampling.probes.nvml import NvmlProbe
from monitor.gpus.sampling.probes.nvml_calls import MOST_SKIPPED, CallTimes
from tests.builders import NOW
from tests.monitor.driver_samples import steady
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeNvml

POWER = "nvmlDeviceGetPowerUsage"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"


def sweeps(times: CallTimes, count: int, gpus: int = 8) -> None:
    for number in range(count):
        times.begin(NOW + timedelta(seconds=number), gpus)


def made(times: CallTimes, seconds: float, count: int = 100) -> CallTimes:
    times.pace(POWER)
    for _ in range(count):
        times.add(POWER, seconds, False)
    return times


def test_it_reports_count_errors_and_times_of_each_call() -> None:
    times = CallTimes()
    for number in range(1, 101):
        times.add(POWER, number / 1000, number % 10 == 0)
    sweeps(times, 1)
    (cost,) = times.costs
    assert (cost.call, cost.count, cost.errors, cost.every) == (POWER, 100, 10, 1)
    assert cost.p50_ms == pytest.approx(50, abs=1)
    assert cost.p99_ms == pytest.approx(99, abs=1)


def test_a_call_that_has_grown_slow_is_made_less_often_and_again_when_it_is_fast() -> None:
    times = made(CallTimes(), 0.02)
    sweeps(times, 6)
    assert times.costs[0].every == 4
    made(times, 0.2, 200)
    sweeps(times, 6)
    assert times.costs[0].every == MOST_SKIPPED
    made(times, 0.00001, 200)
    sweeps(times, 6)
    assert times.costs[0].every == 1


def test_it_counts_on_from_the_process_before() -> None:
    before = made(CallTimes(), 0.001)
    sweeps(before, 1)
    times = CallTimes()
    times.resume(before.costs)
    made(times, 0.002, 5)
    sweeps(times, 1)
    assert times.costs[0].count == 105


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml(FakeGpu("GPU-a", compute=[(4_300_000, GIB)])).install(monkeypatch)


def look(probe: NvmlProbe, second: float) -> None:
    probe.read(NOW + timedelta(seconds=second), ())


def test_processes_are_looked_at_every_other_second(nvml: FakeNvml) -> None:
    probe = NvmlProbe(2.0)
    fresh = [probe.read(NOW + timedelta(seconds=s), ()).is_fresh for s in range(6)]
    assert fresh == [True, False] * 3
    assert probe.read(NOW + timedelta(seconds=6.9), ()).is_fresh
    assert nvml.calls.count(POWER) == 7


def test_processes_are_looked_at_early_when_that_is_asked_for(nvml: FakeNvml) -> None:
    probe = NvmlProbe(2.0)
    look(probe, 0)
    probe.list_processes()

    assert probe.read(NOW + timedelta(seconds=0.1), ()).is_fresh
    assert not probe.read(NOW + timedelta(seconds=1), ()).is_fresh


def test_the_same_processes_are_not_listed_again_while_memory_is_the_same(nvml: FakeNvml) -> None:
    probe = NvmlProbe(2.0)
    for second in range(0, 20, 2):
        look(probe, second)
    assert nvml.calls.count(LISTS) == 2
    nvml.gpus[0].used += 1
    look(probe, 20)
    assert nvml.calls.count(LISTS) == 3


def test_an_empty_process_list_is_read_less_often(nvml: FakeNvml) -> None:
    probe = NvmlProbe(2.0)
    for second in range(0, 20, 2):
        nvml.gpus[0].used += 1
        look(probe, second)
    assert (nvml.calls.count(LISTS), nvml.calls.count(GRAPHICS)) == (10, 2)


def test_slow_lists_make_the_looks_at_processes_rarer(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = NvmlProbe(2.0)
    clock = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) * 0.2)
    look(probe, 0)
    fresh = [probe.read(NOW + timedelta(seconds=s), ()).is_fresh for s in range(1, 6)]
    assert fresh == [False, False, False, True, False]


def test_pcie_throughput_and_the_fan_are_never_asked(nvml: FakeNvml) -> None:
    probe = NvmlProbe(2.0)
    for second in range(10):
        look(probe, second)
    asked = " ".join(nvml.calls)
    assert "Pcie" not in asked
    assert "Fan" not in asked


def test_work_that_a_new_list_does_not_explain_asks_for_no_further_lists(nvml: FakeNvml) -> None:
    gpu = nvml.gpus[0]
    gpu.compute = [(4_300_000, GIB), (4_300_001, GIB)]
    gpu.work, gpu.hidden = {4_300_000: steady(0.2), 4_300_001: steady(0.7)}, {4_300_001}
    probe = NvmlProbe(2.0)
    for second in range(41):
        nvml.now_us += 1_000_000
        look(probe, second)
    assert nvml.calls.count(LISTS) <= 6
