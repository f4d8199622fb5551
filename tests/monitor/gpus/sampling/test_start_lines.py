from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from monitor.facts.readings import ProcessReading, Snapshot
from monitor.gpus.sampling.policy import start_lines
from tests.builders import NOW, gpu_uuid, snapshot

VERSIONS = ("driver 550.54.15", "CUDA 12.4")


def readable(seconds: float = 0.0) -> Snapshot:
    return replace(snapshot(2), probe="nvml", at=NOW + timedelta(seconds=seconds))


def test_the_first_reading_names_driver_cuda_and_gpus() -> None:
    lines = start_lines(readable(), None, VERSIONS)

    assert [line.text for line in lines] == [
        "NVML initialized: driver 550.54.15, CUDA 12.4, 2 GPUs",
        "GPU process detection active",
    ]


def test_the_second_line_counts_processes_that_are_no_jobs() -> None:
    mine = ProcessReading(gpu_uuid=gpu_uuid(0), pid=7, job_ref="1")
    others = [ProcessReading(gpu_uuid=gpu_uuid(0), pid=pid) for pid in (8, 9)]

    line = start_lines(replace(readable(), processes=(mine, *others)), None, VERSIONS)[1]

    assert line.more == {"gpus": 2, "gpu_device": "0,1", "other_processes": 2}


def test_the_next_slice_of_the_sampler_says_nothing() -> None:
    assert start_lines(readable(1), readable(0), VERSIONS) == []


def test_a_restart_or_the_end_of_a_fault_is_said() -> None:
    broken = replace(readable(0), problem="The driver does not answer.", gpus=())

    assert start_lines(readable(60), readable(0), VERSIONS)
    assert start_lines(readable(1), broken, VERSIONS)


def test_nothing_is_said_while_gpus_cannot_be_read_or_are_simulated() -> None:
    broken = replace(readable(0), problem="The driver does not answer.", gpus=())

    assert start_lines(broken, None, VERSIONS) == []
    assert start_lines(snapshot(2), None, VERSIONS) == []
