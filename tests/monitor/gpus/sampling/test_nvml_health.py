from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pynvml
import pytest

from monitor.facts.gpus import HealthReading, Xid
from monitor.facts.readings import GpuSweep, Health
from monitor.gpus.sampling.probes import nvml as nvml_module
from monitor.gpus.sampling.probes.nvml import NvmlProbe
from tests.monitor.fake_nvml import FakeGpu, FakeNvml
from tests.monitor.made_readings import NOW
from tests.pace import Stopwatch

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b")).install(monkeypatch)


@pytest.fixture
def probe(nvml: FakeNvml) -> Iterator[NvmlProbe]:
    probe = NvmlProbe()
    probe.open()
    yield probe
    probe.close()


def sweep(probe: NvmlProbe, second: float = 0) -> GpuSweep:
    return probe.read(NOW + timedelta(seconds=second), ())


def test_it_reads_every_count_of_faults(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].reasons, nvml.gpus[0].ecc, nvml.gpus[0].rows = 0x44, (12, 1), (3, 1, 1, 0)
    assert sweep(probe).health[0] == HealthReading(
        gpu_uuid="GPU-a",
        clock_reasons=0x44,
        ecc_corrected=12,
        ecc_uncorrected=1,
        remapped_corrected=3,
        remapped_uncorrected=1,
        remap_pending=True,
        remap_failed=False,
    )


def test_gpus_without_remapped_rows_have_retired_pages(nvml: FakeNvml, probe: NvmlProbe) -> None:
    gpu = nvml.gpus[0]
    gpu.rows, gpu.pages, gpu.pages_pending = None, (4, 1), 1
    seen = sweep(probe).health[0]
    assert (seen.retired_pages, seen.retired_pending, seen.remap_pending) == (5, True, None)


def test_what_a_gpu_does_not_count_is_unknown_and_asked_once(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    for gpu in nvml.gpus:
        gpu.errors = {"nvmlDeviceGetTotalEccErrors": pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert sweep(probe).health[0].ecc_uncorrected is None
    nvml.calls.clear()
    sweep(probe, 6)
    assert "nvmlDeviceGetTotalEccErrors" not in nvml.calls
    assert REASONS in nvml.calls


def test_it_asks_each_five_seconds_only(nvml: FakeNvml, probe: NvmlProbe) -> None:
    for second in range(10):
        nvml.gpus[0].reasons = second
        seen = sweep(probe, second).health[0].clock_reasons
        assert seen == (0 if second < 5 else 5)
    assert nvml.calls.count(REASONS) == 2 * len(nvml.gpus)


def test_an_older_driver_is_asked_by_the_old_name(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.errors = {REASONS: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    nvml.gpus[0].reasons = 0x8
    assert sweep(probe).health[0].clock_reasons == 0x8


def test_a_gpu_that_is_lost_while_its_health_is_read_is_lost(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[1].errors = {"nvmlDeviceGetRemappedRows": pynvml.NVML_ERROR_GPU_IS_LOST}
    seen = sweep(probe)
    assert [gpu.health for gpu in seen.gpus] == [Health.OK, Health.LOST]
    assert [health.gpu_uuid for health in seen.health] == ["GPU-a"]


def test_it_counts_errors_but_no_questions_without_an_answer(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[0].errors = {
        "nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN,
        "nvmlDeviceGetClockInfo": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    assert sweep(probe).query_errors == 1
    assert sweep(probe, 1).query_errors == 1
    nvml.gpus[0].works()
    assert sweep(probe, 2).query_errors == 0


def test_it_counts_failed_starts(nvml: FakeNvml) -> None:
    nvml.errors = {"nvmlInit": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    probe = NvmlProbe()
    probe.open()
    assert sweep(probe).init_failures == 2
    assert sweep(probe, 1).init_failures == 1


def heard(probe: NvmlProbe, *wanted: Xid) -> bool:
    found: list[Xid] = []
    watch = Stopwatch()
    while len(found) < len(wanted) and not watch.has_run(5):
        found += sweep(probe).xids
        time.sleep(0.01)
    return found == list(wanted)


def test_it_hears_xids_in_a_thread_of_its_own(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.xids.put((nvml.gpus[1], 79))
    nvml.xids.put((nvml.gpus[0], 31))
    assert heard(probe, Xid("GPU-b", 79), Xid("GPU-a", 31))
    assert sweep(probe).xids == ()


def test_it_receives_xids_after_a_reinitialisation(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus.append(FakeGpu("GPU-c"))
    sweep(probe)
    nvml.xids.put((nvml.gpus[2], 48))
    assert heard(probe, Xid("GPU-c", 48))


def test_a_driver_without_events_is_read_all_the_same(nvml: FakeNvml) -> None:
    nvml.errors = {"nvmlEventSetCreate": pynvml.NVML_ERROR_NOT_SUPPORTED}
    probe = NvmlProbe()
    probe.open()
    assert len(sweep(probe).gpus) == 2


def test_it_names_the_call_in_progress(nvml: FakeNvml, probe: NvmlProbe) -> None:
    seen: list[str | None] = []
    real = pynvml.nvmlDeviceGetPowerUsage

    def looks(handle: object) -> object:
        seen.append(probe.asking[0] if probe.asking else None)
        return real(handle)

    pynvml.nvmlDeviceGetPowerUsage = looks  # undone by the fixture's monkeypatch
    sweep(probe)
    assert seen[0] == "nvmlDeviceGetPowerUsage"
    assert probe.asking is None


def test_a_gpu_that_can_not_be_opened_is_found_at_the_sweep_after_it_answers(
    nvml: FakeNvml,
) -> None:
    nvml.gpus[1].fails(pynvml.NVML_ERROR_GPU_IS_LOST)
    probe = NvmlProbe()
    probe._reinit_at = float("inf")
    assert len(sweep(probe).gpus) == 1
    probe._reinit_at = float("inf")
    nvml.gpus[1].works()
    assert len(sweep(probe, 1).gpus) == 2
    probe.close()


def test_nvml_is_not_reinitialised_for_a_gpu_that_stays_silent(nvml: FakeNvml) -> None:
    nvml.gpus[1].fails(pynvml.NVML_ERROR_GPU_IS_LOST)
    probe = NvmlProbe()
    for second in range(5):
        sweep(probe, second)
    assert nvml.inits == 1
    probe.close()


def test_a_gpu_that_is_added_is_there_at_the_next_sweep(nvml: FakeNvml, probe: NvmlProbe) -> None:
    sweep(probe)
    nvml.gpus.insert(0, FakeGpu("GPU-new"))
    seen = sweep(probe, 1)
    assert {gpu.uuid: gpu.index for gpu in seen.gpus} == {"GPU-new": 0, "GPU-a": 1, "GPU-b": 2}


def test_where_the_kernel_lists_no_gpus_it_looks_for_new_ones_itself(
    nvml: FakeNvml, probe: NvmlProbe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvml_module, "KERNEL_LIST", tmp_path / "none")
    sweep(probe)
    nvml.counted = 2
    nvml.gpus.append(FakeGpu("GPU-new"))
    assert len(sweep(probe, 1).gpus) == 2
    probe._relook_at = 0.0
    assert len(sweep(probe, 2).gpus) == 3


def test_nvml_is_not_reinitialised_if_the_kernel_lists_the_gpus(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "0000:18:00.0").mkdir()
    monkeypatch.setattr(nvml_module, "KERNEL_LIST", tmp_path)
    probe = NvmlProbe()
    sweep(probe)
    probe._relook_at = 0.0
    sweep(probe, 60)
    assert nvml.inits == 1
    probe.close()
