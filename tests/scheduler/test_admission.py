from __future__ import annotations

from monitor.readings import GpuReading, Health
from scheduler.jobs import Requirement
from scheduler.policy import admission
from tests.builders import GIB, gpu

TWO = [gpu(0, memory_total_bytes=24 * GIB), gpu(1)]


def _texts(requirement: Requirement, gpus: list[GpuReading]) -> list[str]:
    return [refusal.text for refusal in admission.check(requirement, gpus)]


def test_it_admits_what_an_idle_machine_could_give() -> None:
    assert _texts(Requirement(gpus=1, memory_bytes=80 * GIB), TWO) == []


def test_it_refuses_more_memory_than_any_gpu_has() -> None:
    refusals = admission.check(Requirement(memory_bytes=200 * GIB), TWO)

    assert [(r.field, r.text) for r in refusals] == [
        (
            "gpu_memory",
            "You ask for 200 GiB of GPU memory; the largest GPU here has 80 GiB.",
        )
    ]


def test_it_refuses_more_memory_than_enough_gpus_have() -> None:
    assert _texts(Requirement(gpus=2, memory_bytes=40 * GIB), TWO) == [
        "You ask for 40 GiB of GPU memory on each GPU; only 1 of the GPUs here have that much."
    ]


def test_it_refuses_more_gpus_than_there_are() -> None:
    assert _texts(Requirement(gpus=3), TWO) == ["You ask for 3 GPUs; this machine has 2 GPUs."]


def test_it_admits_when_a_gpu_does_not_say_its_size() -> None:
    assert (
        _texts(Requirement(memory_bytes=200 * GIB), [*TWO, gpu(2, memory_total_bytes=None)]) == []
    )
    assert _texts(Requirement(memory_bytes=200 * GIB), [*TWO, gpu(2, health=Health.LOST)]) == []


def test_it_admits_when_no_gpu_can_be_read() -> None:
    assert _texts(Requirement(gpus=8, memory_bytes=200 * GIB), []) == []


def test_it_refuses_gpu_wishes_without_a_gpu() -> None:
    refusals = admission.check(Requirement(gpus=0, memory_bytes=GIB, exclusive=True), TWO)

    assert [r.field for r in refusals] == ["gpu_memory", "exclusive"]


def test_it_refuses_negative_numbers() -> None:
    assert [r.field for r in admission.check(Requirement(gpus=-1), TWO)] == ["gpus"]
    assert [r.field for r in admission.check(Requirement(memory_bytes=0), TWO)] == ["gpu_memory"]


def test_it_refuses_gpu_jobs_where_there_is_no_gpu() -> None:
    refusals = admission.refuse_without_gpus(Requirement(gpus=2), "there is no NVIDIA driver.")

    assert [r.text for r in refusals] == [
        "You ask for 2 GPUs; this machine has none: there is no NVIDIA driver."
    ]
    assert admission.refuse_without_gpus(Requirement(gpus=0), "no driver") == []
