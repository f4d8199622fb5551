from __future__ import annotations

from monitor.facts.readings import GpuReading, Health, Snapshot
from scheduler.facts.jobs import Requirement
from scheduler.queue.planner import admission
from tests.builders import GIB, gpu, snapshot

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
        " Request 0 GPUs for a job that needs none (command line: --gpus 0)."
    ]
    assert admission.refuse_without_gpus(Requirement(gpus=0), "no driver") == []


MIXED = [
    gpu(0, name="NVIDIA A100-SXM4-40GB", compute_capability="8.0", memory_total_bytes=40 * GIB),
    gpu(1),
    gpu(2),
]


def _refused(requirement: Requirement, gpus: list[GpuReading]) -> list[tuple[str, str]]:
    return [(r.field, r.text) for r in admission.check(requirement, gpus)]


def test_it_admits_the_kinds_of_gpu_that_there_are() -> None:
    for kind in ("h100", "H100 80GB", "nvidia", "H100*", "*a100*", "A100-SXM4-??GB"):
        assert _refused(Requirement(model=kind), MIXED) == []
    assert _refused(Requirement(gpus=2, capability=(9, 0), power=2000), MIXED) == []


def test_it_refuses_a_model_that_is_not_here() -> None:
    assert _refused(Requirement(model="B200"), MIXED) == [
        (
            "model",
            "You ask for a GPU of model B200; "
            "here there is NVIDIA A100-SXM4-40GB, NVIDIA H100 80GB HBM3.",
        )
    ]
    assert _refused(Requirement(model="H10"), MIXED) != []


def test_it_refuses_more_of_a_model_than_there_are() -> None:
    assert _refused(Requirement(gpus=2, model="A100"), MIXED) == [
        ("model", "You ask for 2 GPUs of model A100; this machine has 1.")
    ]


def test_it_refuses_a_capability_and_a_rank_that_no_gpu_has() -> None:
    assert _refused(Requirement(capability=(10, 0), power=9000), MIXED) == [
        ("capability", "You ask for a GPU of compute capability 10.0; here the highest is 9.0."),
        ("power", "You ask for a GPU of power rank 9000; here the highest is 2000."),
    ]


def test_it_counts_the_ranks_of_the_settings() -> None:
    assert admission.check(Requirement(power=9000), MIXED, {"A100": 9000}) == []


def test_it_refuses_a_gpu_that_is_not_here_and_several_of_a_single_one() -> None:
    here = MIXED[0].uuid

    assert _refused(Requirement(gpu_uuid=here), MIXED) == []
    assert _refused(Requirement(gpu_uuid="GPU-9"), MIXED)[0] == (
        "on_gpu",
        "You ask for a GPU named GPU-9; it is not here.",
    )
    assert _refused(Requirement(gpus=2, gpu_uuid=here), MIXED)[0][1].endswith("is a single one.")


def test_it_refuses_what_no_gpu_is_at_the_same_time() -> None:
    assert _refused(Requirement(model="A100", capability=(9, 0)), MIXED) == [
        (
            "model",
            "You ask for a GPU of model A100, of compute capability 9.0; "
            "no GPU here is all of that.",
        )
    ]
    assert _refused(Requirement(gpus=2, model="A100", memory_bytes=40 * GIB), MIXED) != []


def test_it_admits_what_a_gpu_that_does_not_say_may_be() -> None:
    silent = gpu(3, name=None, compute_capability=None, memory_total_bytes=None)

    assert _refused(Requirement(model="B200", capability=(12, 0)), [*MIXED, silent]) == []


def hosts_refuse(requirement: Requirement, *hosts: Snapshot) -> list[str]:
    return [refusal.text for refusal in admission.refuse(requirement, hosts)]


def test_of_several_hosts_one_must_do() -> None:
    requirement = Requirement(gpus=4)

    assert hosts_refuse(requirement, snapshot(2), snapshot(4)) == []
    assert "has 3 GPUs" in hosts_refuse(requirement, snapshot(2), snapshot(3))[0]


def test_it_refuses_gpus_where_there_are_none_with_the_reason() -> None:
    none = snapshot(0, probe="none", problem="No NVIDIA driver is installed.")

    assert "No NVIDIA driver is installed." in hosts_refuse(Requirement(), none)[0]
    assert hosts_refuse(Requirement(gpus=0), none) == []


def test_it_takes_the_job_while_the_gpus_can_not_be_read() -> None:
    assert hosts_refuse(Requirement(gpus=4), snapshot(0, probe="nvml", problem="driver down")) == []
    assert hosts_refuse(Requirement(gpus=4)) == []


def test_the_largest_gpu_of_all_hosts_is_named() -> None:
    many = snapshot([gpu(index, memory_total_bytes=24 * GIB) for index in range(8)])
    none = snapshot(0, probe="none", problem="No NVIDIA driver is installed.")

    assert hosts_refuse(Requirement(memory_bytes=200 * GIB), many, snapshot(1), none) == [
        "You ask for 200 GiB of GPU memory; the largest GPU here has 80 GiB."
    ]
