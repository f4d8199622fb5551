"""Values that no database column can hold affect one GPU only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.facts.health import HealthReading, Xid
from monitor.facts.readings import GpuProcess, GpuSweep, HostReading
from monitor.facts.usage import EndedProcess, UseSource
from monitor.models import Gpu, Sample
from monitor.sampling.policy import bounded_host, bounded_sweep
from monitor.snapshot import rows as snapshots
from tests.builders import gpu, gpu_uuid
from tests.monitor.sampling.test_sampler import ScriptedProbe, at, sampler

ODD: list[dict[str, Any]] = [
    {"power_w": float("inf")},
    {"utilization_pct": float("nan")},
    {"temperature_c": -1e300},
    {"memory_used_bytes": 2**64 - 1},
    {"memory_total_bytes": -1},
    {"sm_clock_mhz": 2**40},
    {"energy_mj": 10**30},
]


def test_usable_readings_stay_as_they_are() -> None:
    sweep = GpuSweep(
        gpus=(gpu(0), gpu(1, temperature_c=-5.0)),
        processes=(GpuProcess(gpu_uuid=gpu_uuid(0), pid=7, sm_pct=3.0),),
        health=(HealthReading(gpu_uuid=gpu_uuid(0), ecc_corrected=3, hot=True),),
        xids=(Xid(gpu_uuid(0), 79),),
    )
    assert bounded_sweep(sweep) == sweep


@pytest.mark.parametrize("odd", ODD)
def test_an_unusable_value_is_unknown(odd: dict[str, Any]) -> None:
    sweep = bounded_sweep(GpuSweep(gpus=(gpu(0, **odd), gpu(1))))
    assert sweep.gpus == (gpu(0, **dict.fromkeys(odd)), gpu(1))
    assert sweep.problem is None


def test_texts_are_cleaned_and_shortened() -> None:
    odd = gpu(0, name="H\x00100 \udc80" + "x" * 500, pci_id="y" * 99, compute_capability="9.0" * 9)
    bounded = bounded_sweep(GpuSweep(gpus=(odd,))).gpus[0]
    assert bounded.name is not None
    assert bounded.name.startswith("H100 ?x")
    assert (len(bounded.name), len(bounded.pci_id or "")) == (120, 40)
    assert bounded.compute_capability == "9.09.09."


@pytest.mark.parametrize("odd", [{"uuid": ""}, {"uuid": "G\0"}, {"uuid": "G" * 97}, {"index": -1}])
def test_a_gpu_without_a_usable_uuid_or_index_is_reported_and_left_out(odd: Any) -> None:
    sweep = bounded_sweep(GpuSweep(gpus=(replace(gpu(0), **odd), gpu(1))))
    assert sweep.gpus == (gpu(1),)
    assert sweep.unnamed == 1
    assert sweep.problem == "The driver reports a GPU without a usable UUID and index."


def test_a_uuid_that_comes_twice_counts_once() -> None:
    sweep = bounded_sweep(GpuSweep(gpus=(gpu(0), gpu(1, uuid=gpu_uuid(0)))))
    assert sweep.gpus == (gpu(0),)


def test_items_about_processes_are_bounded_too() -> None:
    uuid = gpu_uuid(0)
    sweep = bounded_sweep(
        GpuSweep(
            processes=(
                GpuProcess(gpu_uuid=uuid, pid=2**40),
                GpuProcess(gpu_uuid=uuid, pid=7, memory_bytes=2**64 - 1, sm_pct=float("inf")),
            ),
            ended=(
                EndedProcess(
                    gpu_uuid=uuid, pid=8, busy_s=float("nan"), source=UseSource.ACCOUNTING
                ),
            ),
        )
    )
    assert sweep.processes == (GpuProcess(gpu_uuid=uuid, pid=7),)
    assert sweep.ended == ()


def test_a_host_reading_is_bounded() -> None:
    odd = HostReading(name="box", load_1=float("inf"), memory_total_bytes=2**70, cpu_count=4)
    assert bounded_host(odd) == HostReading(name="box", cpu_count=4)


@pytest.mark.django_db
@pytest.mark.parametrize("odd", [*ODD, {"name": "a\0b"}, {"uuid": "G" * 200}, {"index": 2**20}])
def test_one_gpu_with_unusable_values_does_not_stop_the_sampler(odd: dict[str, Any]) -> None:
    running = sampler(ScriptedProbe(GpuSweep(gpus=(replace(gpu(0), **odd), gpu(1)))))
    running.step(at(0))
    snapshot = running.step(at(1))
    assert snapshots.newest("box") == snapshot
    assert gpu_uuid(1) in {reading.uuid for reading in snapshot.gpus}
    assert Sample.objects.filter(gpu_id=gpu_uuid(1)).count() == 2
    assert Gpu.objects.filter(uuid=gpu_uuid(1)).exists()
