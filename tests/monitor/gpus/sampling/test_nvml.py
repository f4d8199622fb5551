from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from monitor.facts.readings import ComputeMode, GpuSweep, Health
from monitor.gpus.sampling.probes import nvml as nvml_module
from monitor.gpus.sampling.probes.nvml import NvmlProbe, detect
from monitor.gpus.sampling.probes.simulated import SimulatedProbe
from monitor.gpus.sampling.step import NoProbe, probe_from
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeNvml
from tests.monitor.made_readings import NOW

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    gpus = (FakeGpu("GPU-a"), FakeGpu("GPU-b"), FakeGpu("GPU-c"))
    return FakeNvml(*gpus).install(monkeypatch)


@pytest.fixture
def probe(nvml: FakeNvml) -> NvmlProbe:
    probe = NvmlProbe()
    probe.open()
    return probe


def sweep(probe: NvmlProbe) -> GpuSweep:
    return probe.read(NOW, ())


def no_pause(probe: NvmlProbe) -> None:
    probe._reinit_at = 0.0


def test_it_reads_every_field_of_every_gpu(probe: NvmlProbe) -> None:
    gpu = sweep(probe).gpus[1]
    assert (gpu.uuid, gpu.index, gpu.name) == ("GPU-b", 1, "NVIDIA H100 80GB HBM3")
    assert (gpu.pci_id, gpu.compute_capability) == ("00000000:18:00.0", "9.0")
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (80 * GIB, 10 * GIB)
    assert gpu.memory_reserved_bytes == GIB
    assert (gpu.utilization_pct, gpu.memory_utilization_pct) == (40.0, 20.0)
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c) == (350.5, 700.0, 61.0)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.performance_state) == (1755, 2619, 0)
    assert gpu.health is Health.OK


@pytest.mark.parametrize(
    ("told", "mode"),
    [
        (0, None),
        (1, ComputeMode.EXCLUSIVE),
        (2, ComputeMode.PROHIBITED),
        (3, ComputeMode.EXCLUSIVE),
    ],
)
def test_it_reads_how_many_may_compute(
    nvml: FakeNvml, probe: NvmlProbe, told: int, mode: ComputeMode | None
) -> None:
    nvml.gpus[0].compute_mode = told
    nvml.gpus[1].errors = {"nvmlDeviceGetComputeMode": UNSUPPORTED}

    assert [gpu.compute_mode for gpu in sweep(probe).gpus[:2]] == [mode, None]


def test_it_takes_names_as_bytes_too(nvml: FakeNvml) -> None:
    nvml.gpus[0].name = b"Tesla T4"
    assert sweep(NvmlProbe()).gpus[0].name == "Tesla T4"


def test_it_keeps_what_is_not_supported_unknown(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].errors = {
        "nvmlDeviceGetPowerUsage": UNSUPPORTED,
        "nvmlDeviceGetUtilizationRates": UNSUPPORTED,
        "nvmlDeviceGetTemperature": pynvml.NVML_ERROR_NOT_FOUND,
        "nvmlDeviceGetClockInfo": pynvml.NVML_ERROR_NO_PERMISSION,
    }
    gpu = sweep(probe).gpus[0]
    assert (gpu.power_w, gpu.utilization_pct, gpu.temperature_c) == (None, None, None)
    assert gpu.sm_clock_mhz is None
    assert (gpu.health, gpu.memory_used_bytes) == (Health.OK, 10 * GIB)


def test_it_falls_back_to_the_old_memory_call(nvml: FakeNvml) -> None:
    for gpu in nvml.gpus:
        gpu.errors = {"memory v2": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    gpu = sweep(NvmlProbe()).gpus[0]
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (11 * GIB, None)


def test_it_does_not_change_the_meaning_of_used_memory_after_one_fault(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    sweep(probe)
    nvml.gpus[0].errors = {"memory v2": pynvml.NVML_ERROR_UNKNOWN}
    assert sweep(probe).gpus[0].memory_used_bytes is None
    nvml.gpus[0].works()
    assert sweep(probe).gpus[0].memory_used_bytes == 10 * GIB


def test_a_gpu_lost_in_mid_sweep_leaves_the_others_alone(nvml: FakeNvml, probe: NvmlProbe) -> None:
    sweep(probe)
    nvml.gpus[1].errors = {"nvmlDeviceGetTemperature": LOST}
    seen = sweep(probe)
    assert [gpu.health for gpu in seen.gpus] == [Health.OK, Health.LOST, Health.OK]
    lost = seen.gpus[1]
    assert lost.uuid == "GPU-b"
    assert "fallen off the bus" in (lost.problem or "")
    assert (lost.utilization_pct, lost.memory_total_bytes) == (None, 80 * GIB)


def test_a_gpu_lost_between_its_values_and_its_processes_is_lost(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[2].errors = {"nvmlDeviceGetGraphicsRunningProcesses_v3": LOST}
    assert [gpu.health for gpu in sweep(probe).gpus][2] is Health.LOST


def test_after_a_loss_it_reinitialises_and_finds_all_by_uuid(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[0].fails(LOST)
    sweep(probe)
    nvml.gpus[0].works()
    nvml.gpus.reverse()
    no_pause(probe)
    seen = {gpu.uuid: gpu for gpu in sweep(probe).gpus}
    assert nvml.inits == 2
    assert {uuid: gpu.index for uuid, gpu in seen.items()} == {"GPU-a": 2, "GPU-b": 1, "GPU-c": 0}
    assert all(gpu.health is Health.OK for gpu in seen.values())


def test_it_does_not_reinitialise_at_each_sweep(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].fails(LOST)
    for _ in range(5):
        sweep(probe)
    assert nvml.inits == 1


def test_a_gpu_that_cannot_be_opened_is_reported(nvml: FakeNvml) -> None:
    nvml.gpus[1].fails(LOST)
    seen = sweep(NvmlProbe())
    assert [gpu.uuid for gpu in seen.gpus] == ["GPU-a", "GPU-c"]
    assert (seen.unnamed, "off the bus" in (seen.problem or "")) == (1, True)


def test_it_looks_for_a_gpu_that_is_missing_until_it_is_back(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    sweep(probe)
    gone = nvml.gpus.pop()
    no_pause(probe)
    assert len(sweep(probe).gpus) == 2
    nvml.counted = 2
    nvml.gpus.append(gone)
    no_pause(probe)
    assert len(sweep(probe).gpus) == 3


def test_it_hears_from_the_kernel_of_a_gpu_that_is_added(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvml_module, "KERNEL_LIST", tmp_path)
    probe = NvmlProbe()
    sweep(probe)
    nvml.counted = 3
    nvml.gpus.append(FakeGpu("GPU-d"))
    (tmp_path / "0000:19:00.0").mkdir()
    no_pause(probe)
    assert len(sweep(probe).gpus) == 4


def test_it_sees_a_gpu_that_is_added(nvml: FakeNvml, probe: NvmlProbe) -> None:
    sweep(probe)
    nvml.gpus.append(FakeGpu("GPU-d"))
    no_pause(probe)
    assert len(sweep(probe).gpus) == 4


def test_a_gpu_that_only_answers_with_faults_is_failing(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].fails(pynvml.NVML_ERROR_UNKNOWN)
    gpu = sweep(probe).gpus[0]
    assert gpu.health is Health.FAILING
    assert "Unknown Error" in (gpu.problem or "")


def test_one_fault_among_answers_is_only_an_unknown_value(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].errors = {"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN}
    gpu = sweep(probe).gpus[0]
    assert (gpu.health, gpu.power_w) == (Health.OK, None)


def test_a_gpu_that_wants_a_reset_is_failing_though_it_answers(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[0].errors = {"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_RESET_REQUIRED}
    gpu = sweep(probe).gpus[0]
    assert (gpu.health, gpu.temperature_c) == (Health.FAILING, 61.0)
    assert "reset" in (gpu.problem or "")


def test_a_driver_that_is_newer_than_its_module_is_said_so(nvml: FakeNvml) -> None:
    nvml.errors = {"nvmlInit": MISMATCH}
    seen = sweep(NvmlProbe())
    assert seen.gpus == ()
    assert "old kernel module" in (seen.problem or "")
    assert "Restart" in (seen.remedy or "")


def test_it_comes_back_by_itself_after_the_library_failed(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.errors = {"*": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    assert sweep(probe).problem
    nvml.errors = {}
    assert len(sweep(probe).gpus) == 3


def test_without_permission_it_says_what_to_do(nvml: FakeNvml) -> None:
    nvml.errors = {"nvmlInit": pynvml.NVML_ERROR_NO_PERMISSION}
    assert "/dev/nvidia" in (sweep(NvmlProbe()).remedy or "")


def test_it_merges_the_three_lists_of_processes(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].compute = [(11, GIB), (12, None)]
    nvml.gpus[0].graphics = [(11, GIB), (13, 5)]
    nvml.gpus[0].mps = [(14, 7)]
    nvml.gpus[1].compute = [(11, 2 * GIB)]
    seen = {(p.gpu_uuid, p.pid): (p.memory_bytes, p.kinds) for p in sweep(probe).processes}
    assert seen == {
        ("GPU-a", 11): (GIB, "CG"),
        ("GPU-a", 12): (None, "C"),
        ("GPU-a", 13): (5, "G"),
        ("GPU-a", 14): (7, "M"),
        ("GPU-b", 11): (2 * GIB, "C"),
    }


def test_its_processes_have_no_utilisation_without_a_measurement(
    nvml: FakeNvml, probe: NvmlProbe
) -> None:
    nvml.gpus[0].compute = [(11, GIB)]
    assert sweep(probe).processes[0].sm_pct is None


@pytest.mark.parametrize("code", [UNSUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_list_that_is_refused_leaves_the_others(
    nvml: FakeNvml, probe: NvmlProbe, code: int
) -> None:
    nvml.gpus[0].compute = [(11, GIB)]
    nvml.gpus[0].errors = {"nvmlDeviceGetMPSComputeRunningProcesses_v3": code}
    seen = sweep(probe)
    assert [p.pid for p in seen.processes] == [11]
    assert seen.gpus[0].health is Health.OK


def test_it_uses_an_older_driver_s_process_list(nvml: FakeNvml, probe: NvmlProbe) -> None:
    nvml.gpus[0].compute = [(11, GIB)]
    newest = "nvmlDeviceGetComputeRunningProcesses_v3"
    nvml.errors = {newest: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    assert [p.pid for p in sweep(probe).processes] == [11]
    nvml.calls.clear()
    sweep(probe)
    assert newest not in nvml.calls


def test_a_list_that_grew_while_it_was_read_is_read_again(
    nvml: FakeNvml, probe: NvmlProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.gpus[0].compute = [(11, GIB)]
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    real, tries = getattr(pynvml, name), iter([7, 7])

    def grows(handle: object) -> object:
        if code := next(tries, None):
            raise pynvml.NVMLError(code)
        return real(handle)

    monkeypatch.setattr(pynvml, name, grows)
    assert [p.pid for p in sweep(probe).processes] == [11]


def test_it_looks_static_facts_up_once(nvml: FakeNvml, probe: NvmlProbe) -> None:
    for _ in range(3):
        sweep(probe)
    assert nvml.calls.count("nvmlDeviceGetName") == 3
    assert nvml.inits == 1


def test_it_closes_what_it_opened(nvml: FakeNvml, probe: NvmlProbe) -> None:
    probe.close()
    probe.close()
    assert not nvml.is_open


def test_it_says_which_versions_are_there(nvml: FakeNvml) -> None:
    sweep, versions = detect(NOW)
    assert versions == ["driver 550.90.07", "CUDA 12.4"]
    assert len(sweep.gpus) == 3
    assert not nvml.is_open


class Settings:
    probe: str | None = None
    simulated_gpus = 2
    simulated_seed = 1
    profile = "server"
    simulated_processes = 0


def test_it_chooses_the_probe_that_the_settings_name() -> None:
    settings = Settings()
    settings.probe = "simulated"
    chosen = probe_from(settings)
    assert isinstance(chosen, SimulatedProbe)
    assert len(chosen.read(NOW, ()).gpus) == 2
    settings.probe = "none"
    assert "set to" in (probe_from(settings).read(NOW, ()).problem or "")


def test_without_a_driver_it_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "LIBRARY", "libno-such-driver.so.1")
    chosen = probe_from(Settings())
    assert isinstance(chosen, NoProbe)
    seen = chosen.read(NOW, ())
    assert "No NVIDIA driver was found" in (seen.problem or "")
    assert "Install" in (seen.remedy or "")


def test_the_nvml_probe_is_the_default_where_there_is_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml_module, "is_installed", lambda: True)
    assert isinstance(probe_from(Settings()), NvmlProbe)


@pytest.mark.parametrize(("profile", "interval_s"), [("server", 2.0), ("desktop", 1.0)])
def test_on_a_desktop_processes_are_listed_each_second(
    monkeypatch: pytest.MonkeyPatch, profile: str, interval_s: float
) -> None:
    monkeypatch.setattr(nvml_module, "is_installed", lambda: True)
    settings = Settings()
    settings.profile = profile
    chosen = probe_from(settings)
    assert isinstance(chosen, NvmlProbe)
    assert chosen._tier.interval_s == interval_s
