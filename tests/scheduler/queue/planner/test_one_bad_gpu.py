"""One of eight GPUs answers badly: the planner uses the others, and the bad one if figures allow.

The slots come from what the probe makes of the driver's answers.
"""

from __future__ import annotations

import os
from typing import Any

import pynvml
import pytest

from monitor.facts.readings import GpuSweep, ProcessReading
from monitor.gpus.sampling.policy import bounded_sweep
from monitor.gpus.sampling.probes.nvml import NvmlProbe, detect
from scheduler.facts.plans import PlanPolicy
from scheduler.queue.planner import capacity
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, host, queued_job, snapshot
from tests.monitor.fake_nvml import FakeGpu, FakeNvml, Hang

COUNT, BAD = 8, 3
OTHERS = [number for number in range(COUNT) if number != BAD]
MEMORY, COMPUTE = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"
POWER, NAME = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetName"
UNKNOWN = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
WHOLE, SHARED = {"exclusive": True}, {"memory_bytes": 70 * GIB}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    gpus = [FakeGpu(f"GPU-{number}", used=0) for number in range(COUNT)]
    return FakeNvml(*gpus).install(monkeypatch)


def placed(sweep: GpuSweep, **asked: Any) -> list[int]:
    """The numbers of the GPUs that get one of nine such jobs."""
    sweep = bounded_sweep(sweep)
    processes = [
        ProcessReading(gpu_uuid=p.gpu_uuid, pid=p.pid, memory_bytes=p.memory_bytes)
        for p in sweep.processes
    ]
    seen = snapshot(sweep.gpus, processes, host=host())
    slots = capacity.slots(seen, (), PlanPolicy(), NOW, host=seen.host.name)
    jobs = [queued_job(id, **asked) for id in range(1, COUNT + 2)]
    made = plan(jobs, slots, PlanPolicy(), NOW)
    number = {gpu.uuid: gpu.index for gpu in sweep.gpus}
    assert len(made.placements) + len(made.blockers) == len(jobs)
    return sorted(number[uuid] for place in made.placements for uuid in place.gpu_uuids)


def swept() -> GpuSweep:
    return NvmlProbe().read(NOW, ())


@pytest.mark.parametrize("asked", [WHOLE, SHARED], ids=["whole GPUs", "shared GPUs"])
def test_eight_good_gpus_take_eight_jobs(nvml: FakeNvml, asked: dict[str, Any]) -> None:
    assert placed(swept(), **asked) == list(range(COUNT))


@pytest.mark.parametrize("asked", [WHOLE, SHARED], ids=["whole GPUs", "shared GPUs"])
@pytest.mark.parametrize(
    "function", [MEMORY, COMPUTE, POWER, NAME, "nvmlDeviceGetUUID", "nvmlDeviceRegisterEvents"]
)
def test_jobs_go_to_the_other_seven_while_a_call_of_one_hangs(
    nvml: FakeNvml, function: str, asked: dict[str, Any]
) -> None:
    hang = Hang()
    nvml.gpus[BAD].odd = {function: hang}
    assert placed(detect(NOW, hang.patience_s)[0], **asked) == OTHERS


@pytest.mark.parametrize("asked", [WHOLE, SHARED], ids=["whole GPUs", "shared GPUs"])
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_jobs_go_to_the_other_seven_while_one_refuses_every_call(
    nvml: FakeNvml, code: int, asked: dict[str, Any]
) -> None:
    probe = NvmlProbe()
    probe.read(NOW, ())
    nvml.gpus[BAD].fails(code)
    assert placed(probe.read(NOW, ()), **asked) == OTHERS


@pytest.mark.parametrize("odd", [UNKNOWN, None, -1, b"\xff"])
def test_a_call_that_no_placement_needs_takes_no_gpu_away(nvml: FakeNvml, odd: Any) -> None:
    nvml.gpus[BAD].odd = {POWER: odd, NAME: odd}
    assert placed(swept(), **WHOLE) == placed(swept(), **SHARED) == list(range(COUNT))


def test_without_a_figure_of_its_memory_no_job_that_declares_memory_starts(
    nvml: FakeNvml,
) -> None:
    nvml.gpus[BAD].odd = {MEMORY: UNKNOWN}
    assert placed(swept(), **SHARED) == OTHERS
    assert placed(swept(), **WHOLE) == list(range(COUNT))


@pytest.mark.parametrize("nonsense", [2**64 - 1, -GIB])
def test_nonsense_about_its_memory_counts_as_no_figure(nvml: FakeNvml, nonsense: int) -> None:
    nvml.gpus[BAD].used = nonsense
    assert placed(swept(), **SHARED) == OTHERS


@pytest.mark.parametrize("odd", [UNKNOWN, None, b"\xff"])
def test_a_whole_gpu_without_a_list_of_its_processes_is_not_given_unless_it_is_empty(
    nvml: FakeNvml, odd: Any
) -> None:
    nvml.gpus[BAD].odd = {COMPUTE: odd}
    assert placed(swept(), **WHOLE) == list(range(COUNT))
    nvml.gpus[BAD].used = 40 * GIB
    assert placed(swept(), **WHOLE) == OTHERS


def test_a_whole_gpu_is_not_given_where_neither_memory_nor_processes_can_be_read(
    nvml: FakeNvml,
) -> None:
    nvml.gpus[BAD].compute = [(os.getpid(), 40 * GIB)]
    nvml.gpus[BAD].odd = {COMPUTE: UNKNOWN, MEMORY: UNKNOWN}
    assert placed(swept(), **WHOLE) == OTHERS


def test_a_whole_gpu_is_not_given_where_many_calls_fail(nvml: FakeNvml) -> None:
    """The lists of processes are read after many other calls."""
    wells = {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetComputeMode"}
    calls = {name for name in dir(nvml) if name.startswith("nvmlDeviceGet")} - wells
    nvml.gpus[BAD].odd = dict.fromkeys(calls, UNKNOWN)
    assert placed(swept(), **WHOLE) == OTHERS
