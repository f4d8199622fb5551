"""Cost of watching 8 GPUs with 24 processes: python -m tests.bench.bench_cost [seconds].

The real probe asks a simulated driver whose calls take as long as real ones are reported to: 2.5 µs
for the utilisation, 11.6 µs for memory and the like, 137 µs for the fan (never asked), 4.5 ms for
a list of processes; nobody tells of the processes' utilisation: taken as ten memory calls. The
memory of two GPUs changes each second, so that their lists are always asked.

Seconds pass as fast as they can be worked off, so CPU time per simulated second is the share of
one core. A driver that sleeps costs no CPU: what it makes the sampler wait is printed beside it,
and in all, as if all of that were CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

GIB = 1024**3
GPUS, PROCESSES = 8, 24
UTILISATION_S, MEMORY_S, FAN_S, LIST_S = 2.5e-6, 11.6e-6, 137e-6, 4.5e-3
LIMIT_PCT = 3.0
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class Costs:
    """CPU seconds by part; inner parts are taken out of outer ones."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        began = time.process_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = time.process_time() - began
            self.cpu[part] += spent - self._inner.pop()
            self._inner[-1] += spent

    def watch(self, owner: Any, name: str, part: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.of(part):
                return real(*args, **kwargs)

        setattr(owner, name, call)


class Driver:
    """The functions of pynvml that are asked; every other one is not there."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.t = 0.0
        self.waited: dict[str, float] = defaultdict(float)

    def answers(self) -> dict[str, Callable[..., Any]]:
        def fixed(value: Any, seconds: float = MEMORY_S) -> Callable[..., Any]:
            return lambda *_: (self.takes(seconds), value)[1]

        return {
            "nvmlInit": fixed(None),
            "nvmlShutdown": fixed(None),
            "nvmlDeviceGetCount": fixed(GPUS),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu:032d}",
            "nvmlDeviceGetName": fixed("NVIDIA H100 80GB HBM3"),
            "nvmlDeviceGetMemoryInfo": self.memory,
            "nvmlDeviceGetUtilizationRates": fixed(
                SimpleNamespace(gpu=70, memory=30), UTILISATION_S
            ),
            "nvmlDeviceGetFanSpeed": fixed(40, FAN_S),
            "nvmlDeviceGetPowerUsage": fixed(350_000),
            "nvmlDeviceGetEnforcedPowerLimit": fixed(700_000),
            "nvmlDeviceGetTemperature": fixed(61),
            "nvmlDeviceGetClockInfo": fixed(1755),
            "nvmlDeviceGetPerformanceState": fixed(0),
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: int(self.t * 350_000),
            "nvmlDeviceGetCurrentClocksEventReasons": fixed(0),
            "nvmlDeviceGetTotalEccErrors": fixed(0),
            "nvmlDeviceGetRemappedRows": fixed((0, 0, 0, 0)),
            "nvmlDeviceGetMigMode": fixed([0, 0], UTILISATION_S),
            "nvmlDeviceGetAccountingMode": fixed(0, UTILISATION_S),
            "nvmlDeviceGetComputeRunningProcesses_v3": self.listed,
            "nvmlDeviceGetGraphicsRunningProcesses_v3": fixed([], LIST_S),
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": fixed([], LIST_S),
            "nvmlDeviceGetProcessesUtilizationInfo": self.shares,
        }

    def memory(self, gpu: int, version: int = 0) -> Any:
        self.takes(MEMORY_S)
        moves = int(self.t) if gpu < 2 else 0
        return SimpleNamespace(total=80 * GIB, used=31 * GIB + moves, reserved=GIB)

    def listed(self, gpu: int) -> list[Any]:
        self.takes(LIST_S)
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=10 * GIB, gpuInstanceId=0xFFFFFFFF)
            for pid in self.pids[gpu::GPUS]
        ]

    def shares(self, gpu: int, since_us: int) -> list[Any]:
        self.takes(10 * MEMORY_S)
        t = int(self.t * 1e6) + 5_000_000
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=20) for p in self.pids[gpu::GPUS]]

    def takes(self, seconds: float) -> None:
        """Short calls keep the CPU busy, long ones wait for the driver."""
        if seconds >= 1e-3:
            self.waited["slept"] += seconds
            time.sleep(seconds)
            return
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpucoord-bench-"))
        os.environ |= {"GPUCOORD_DATA": folder, "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]
        for sleeper in sleepers:
            stack.callback(sleeper.wait)
            stack.callback(sleeper.kill)
        measure(Driver([sleeper.pid for sleeper in sleepers]), seconds)


def measure(driver: Driver, seconds: int) -> None:
    import pynvml
    from django.db import transaction

    from monitor.gpus.rows import snapshot as snapshots
    from monitor.gpus.sampling.probes import nvml
    from monitor.gpus.sampling.probes.host import HostProbe
    from monitor.gpus.sampling.step import PROCESSES_S, Sampler
    from monitor.pages.rendering import DASHBOARD, Renderer
    from monitor.usage.step import Ledger

    answers = driver.answers()
    for name in [name for name in dir(pynvml) if name.startswith("nvml")]:
        function = getattr(pynvml, name)
        if callable(function) and not isinstance(function, type):
            setattr(pynvml, name, answers.get(name) or _absent)
    probe, machine = nvml.NvmlProbe(PROCESSES_S), HostProbe("box")
    sampler, renderer = Sampler(transaction.atomic, probe, machine), Renderer()
    costs = Costs()
    costs.watch(probe, "read", "probe: GPUs and processes")
    costs.watch(machine, "read", "probe: host")
    costs.watch(machine, "identities", "probe: who the processes are")
    costs.watch(Ledger, "take", "account: add up")
    costs.watch(Ledger, "carry", "account: what the next sampler needs")
    costs.watch(Ledger, "write", "database: account, every 5 s")
    costs.watch(snapshots, "record", "database: snapshot and samples")
    sampler.open()
    sampler.step(NOW)
    # The first page loads all templates and addresses.
    renderer.whole(snapshots.newest_all(), [DASHBOARD], NOW)
    costs.cpu.clear()
    driver.waited.clear()
    began, cpu = time.perf_counter(), time.process_time()
    for second in range(1, seconds + 1):
        driver.t = float(second)
        now = NOW + timedelta(seconds=second)
        with costs.of("judging, planning the tick, commit"):
            sampler.step(now)
        with costs.of("publish: read, render, once for all viewers"):
            renderer.whole(snapshots.newest_all(), [DASHBOARD], now)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    sampler.close()
    report(costs, driver, seconds, cpu, wall)
    calls(snapshots.newest_all()[0].costs)


def _absent(*_: Any) -> Any:
    import pynvml

    raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def report(costs: Costs, driver: Driver, seconds: int, cpu: float, wall: float) -> None:
    print(f"{GPUS} GPUs, {PROCESSES} processes, {seconds} simulated seconds")
    for part, spent in sorted(costs.cpu.items(), key=lambda item: -item[1]):
        print(f"  {part:46}{1e3 * spent / seconds:8.3f} ms/s{100 * spent / seconds:8.3f} %")
    slept = driver.waited["slept"]
    print(f"  {'all, CPU':46}{1e3 * cpu / seconds:8.3f} ms/s{100 * cpu / seconds:8.3f} %")
    print(f"  {'waiting for the driver (asleep)':46}{1e3 * slept / seconds:8.3f} ms/s")
    all_in = 100 * (cpu + slept) / seconds
    print(f"  {'all, as if waiting were CPU':46}{10 * all_in:8.3f} ms/s{all_in:8.3f} %")
    share = 100 * cpu / seconds
    print(f"{'PASS' if share <= LIMIT_PCT else 'FAIL'}: {share:.2f} % of one core (limit 3 %)")
    print(f"a simulated second took {1e3 * wall / seconds:.1f} ms")


def calls(found: Any) -> None:
    print("what each call of the driver cost, as /status/ shows it:")
    for cost in sorted(found, key=lambda c: -c.p50_ms)[:8]:
        print(
            f"  {cost.call:46}{cost.count:7} × p50 {cost.p50_ms:.4f} ms, p99 {cost.p99_ms:.4f} ms"
        )


if __name__ == "__main__":
    main()
