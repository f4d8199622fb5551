"""One GPU of eight whose calls do what no driver should do: the other seven stay as they are."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from monitor.facts.readings import GpuReading, GpuSweep, Health
from monitor.gpus.sampling.policy import bounded_sweep
from monitor.gpus.sampling.probes.nvml import NvmlProbe, detect
from monitor.gpus.sampling.probes.nvml_calls import READERS
from tests.monitor.driver_samples import steady
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeInstance, FakeNvml, Hang
from tests.monitor.made_readings import NOW

COUNT = 8
BAD = 3
PID = os.getpid()
OLDER = {
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetAccountingPids",
    "nvmlDeviceGetAccountingStats_v2",
}
OF_A_GPU = [
    *(n for n in READERS if n.startswith("nvmlDevice") and n != "nvmlDeviceGetCount"),
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetMigDeviceHandleByIndex",
]
OF_MIG = {
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
}
# Calls that are made of every GPU; the others only of older or differently configured ones.
ALWAYS = [n for n in OF_A_GPU if n not in OLDER | OF_MIG]
NAME = b"\xf8\x9c\xff"
ODD: dict[str, Any] = {
    "a text that is not UTF-8": UnicodeDecodeError("utf-8", NAME, 0, 1, "invalid start byte"),
    "a struct error": struct.error("unpack requires a buffer of 8 bytes"),
    "garbage bytes": NAME,
    "nothing": None,
    "minus one": -1,
    "2^64 - 1": 2**64 - 1,
}


def eight() -> FakeNvml:
    gpus = (
        FakeGpu(f"GPU-{n}", compute=[(PID, GIB)], work={PID: steady(0.5)}) for n in range(COUNT)
    )
    return FakeNvml(*gpus)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return eight().install(monkeypatch)


@pytest.fixture(scope="module")
def healthy() -> tuple[GpuReading, ...]:
    """The readings of the eight GPUs without a fault."""
    with pytest.MonkeyPatch.context() as patched:
        eight().install(patched)
        return swept(NvmlProbe()).gpus


def swept(probe: NvmlProbe) -> GpuSweep:
    return bounded_sweep(probe.read(NOW, ()))


def others(gpus: Iterable[GpuReading], bad: int = BAD) -> list[GpuReading]:
    return [gpu for gpu in gpus if gpu.uuid != f"GPU-{bad}"]


def make_odd(gpu: FakeGpu, function: str, odd: Any) -> None:
    """Let the function do this on the GPU, and be called there at all.

    Some calls are made of older GPUs, of accounting or of MIG only.
    """
    gpu.odd = {function: odd}
    missing = pynvml.NVML_ERROR_NOT_SUPPORTED
    if function.endswith("_v2") and "Running" in function:
        gpu.errors[function[:-1] + "3"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    if "Throttle" in function:
        gpu.errors["nvmlDeviceGetCurrentClocksEventReasons"] = missing
    if function == "nvmlDeviceGetProcessUtilization":
        gpu.errors["nvmlDeviceGetProcessesUtilizationInfo"] = missing
    if "Retired" in function:
        gpu.rows = None
    if "Accounting" in function:
        gpu.accounting, gpu.lives = True, {PID: (0.0, None)}
    if function in OF_MIG:
        gpu.instances = [FakeInstance("MIG-1", 1, odd=gpu.odd)]


@pytest.mark.parametrize(("turn", "function"), list(enumerate(OF_A_GPU)), ids=OF_A_GPU)
def test_whatever_a_call_of_one_gpu_does_the_others_are_measured(
    healthy: tuple[GpuReading, ...], turn: int, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for also, (name, odd) in enumerate(ODD.items()):
        bad = (turn + also) % COUNT
        nvml = eight().install(monkeypatch)
        make_odd(nvml.gpus[bad], function, odd)
        probe = NvmlProbe()
        for _ in range(2):
            sweep = swept(probe)
            assert others(sweep.gpus, bad) == others(healthy, bad), name
            rest = {gpu.uuid for gpu in others(healthy, bad)}
            assert {p.gpu_uuid for p in sweep.processes} >= rest, name
            assert {h.gpu_uuid for h in sweep.health} >= rest, name
        assert function in nvml.odd_calls
        probe.close()


@pytest.mark.parametrize("function", [n for n in ALWAYS if n != "nvmlDeviceRegisterEvents"])
def test_the_message_names_the_gpu_and_the_call(nvml: FakeNvml, function: str) -> None:
    nvml.gpus[BAD].odd = {function: KeyError(7)}

    sweep = swept(NvmlProbe())

    bad = next((gpu for gpu in sweep.gpus if gpu.index == BAD), None)
    text = " ".join(bad.failed_calls or ()) if bad else sweep.problem or ""
    assert function in text
    assert bad is not None or f"GPU {BAD}" in text


@pytest.mark.parametrize("function", ALWAYS)
def test_a_gpu_with_one_odd_call_that_has_a_name_stays_in_use(
    nvml: FakeNvml, function: str
) -> None:
    nvml.gpus[BAD].odd = {function: KeyError(7)}
    named = function not in {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    assert all(gpu.health is Health.OK for gpu in swept(NvmlProbe()).gpus)
    assert len(swept(NvmlProbe()).gpus) == (8 if named else 7)


def test_a_name_that_is_not_utf_8_is_shown_as_far_as_it_can_be_read(nvml: FakeNvml) -> None:
    nvml.gpus[BAD].name = b"NVIDIA \xf8\x9c\xff 4090"
    assert swept(NvmlProbe()).gpus[BAD].name == "NVIDIA ��� 4090"


def test_the_strict_decoder_of_the_binding_is_not_used(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynvml wraps functions that return texts with one that decodes strictly."""
    plain = pynvml.nvmlDeviceGetName
    decorated = pynvml.convertStrBytes(plain)
    nvml.gpus[BAD].name = NAME
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", decorated)
    with pytest.raises(UnicodeDecodeError):
        decorated(pynvml.nvmlDeviceGetHandleByIndex(BAD))
    assert swept(NvmlProbe()).gpus[BAD].name == "���"


def test_a_bus_id_that_is_not_utf_8_hides_nothing(nvml: FakeNvml) -> None:
    info = pynvml.nvmlPciInfo_t()
    ctypes.memmove(ctypes.addressof(info), NAME, 3)
    fields = {name: getattr(type(info), name) for name, *_ in info._fields_}
    ctypes.memmove(ctypes.addressof(info) + fields["busId"].offset, NAME, 3)
    nvml.gpus[BAD].odd = {"nvmlDeviceGetPciInfo": info}
    gpu = swept(NvmlProbe()).gpus[BAD]
    assert (gpu.pci_id, gpu.failed_calls) == ("���", None)


@pytest.mark.parametrize("odd", [2**32 - 1, -1, NAME, KeyError(7)])
def test_an_odd_number_of_gpus_ends_no_process(nvml: FakeNvml, odd: Any) -> None:
    nvml.odd = {"nvmlDeviceGetCount": odd}
    sweep = swept(NvmlProbe())
    assert sweep.gpus == ()
    assert "nvmlDeviceGetCount" in (sweep.problem or "")


@pytest.mark.parametrize(
    "function", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion"]
)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_versions_hide_no_gpu(nvml: FakeNvml, function: str, odd: Any) -> None:
    nvml.odd = {function: odd}
    sweep, versions = detect(NOW)
    assert len(sweep.gpus) == 8
    assert len(versions) in {1, 2}


@pytest.fixture
def hang() -> Hang:
    return Hang()


@pytest.mark.parametrize(("turn", "function"), list(enumerate(OF_A_GPU)), ids=OF_A_GPU)
def test_a_check_leaves_out_a_gpu_whose_call_hangs(
    healthy: tuple[GpuReading, ...], nvml: FakeNvml, hang: Hang, turn: int, function: str
) -> None:
    number = turn % COUNT
    make_odd(nvml.gpus[number], function, hang)

    sweep, versions = detect(NOW, hang.patience_s)

    assert others(sweep.gpus, number) == others(healthy, number)
    assert versions == ["driver 550.90.07", "CUDA 12.4"]
    assert nvml.odd_calls == [function]
    bad = next((gpu for gpu in sweep.gpus if gpu.index == number), None)
    assert bad is None or bad.health is Health.FAILING
    assert function in ((bad.problem if bad else sweep.problem) or "")
    assert bad is not None or f"GPU {number}" in (sweep.problem or "")


@pytest.mark.parametrize("number", range(COUNT))
def test_any_of_the_gpus_may_hang(
    healthy: tuple[GpuReading, ...], nvml: FakeNvml, hang: Hang, number: int
) -> None:
    nvml.gpus[number].odd = {"nvmlDeviceGetPowerUsage": hang}
    sweep, _ = detect(NOW, hang.patience_s)
    assert others(sweep.gpus, number) == others(healthy, number)
    assert [gpu.index for gpu in sweep.gpus if gpu.health is not Health.OK] == [number]


def test_a_check_ends_when_a_version_hangs(nvml: FakeNvml, hang: Hang) -> None:
    nvml.odd = {"nvmlSystemGetDriverVersion": hang}
    sweep, versions = detect(NOW, hang.patience_s)
    assert (len(sweep.gpus), versions) == (8, [])


def test_a_check_ends_when_the_driver_hangs(nvml: FakeNvml, hang: Hang) -> None:
    nvml.odd = {"nvmlInit": hang}
    sweep, _ = detect(NOW, hang.patience_s)
    assert sweep.gpus == ()
    assert "nvmlInit" in (sweep.problem or "")


def test_a_gpu_that_is_left_out_is_not_called_and_is_asked_again_later(nvml: FakeNvml) -> None:
    probe = NvmlProbe()
    healthy = swept(probe).gpus
    probe.leave_out({f"GPU-{BAD}": "nvmlDeviceGetPowerUsage"})
    nvml.gpus[BAD].fails(pynvml.NVML_ERROR_UNKNOWN)
    nvml.gpus[BAD].errors = {
        name: pynvml.NVML_ERROR_UNKNOWN
        for name in ALWAYS
        if "UUID" not in name and "Handle" not in name
    }

    sweep = swept(probe)
    assert "nvmlDeviceGetPowerUsage did not come back" in (sweep.gpus[BAD].problem or "")
    assert sweep.gpus[BAD].health is Health.FAILING
    assert sweep.query_errors == 0

    nvml.gpus[BAD].works()
    probe.leave_out({})
    assert swept(probe).gpus == tuple(replace(gpu, failed_calls=None) for gpu in healthy)
