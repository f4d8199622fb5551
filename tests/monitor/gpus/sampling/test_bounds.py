"""Values that no database column can hold affect one GPU only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.facts.gpus import BOUNDS, HealthReading, Xid
from monitor.facts.readings import (
    GPU_FIELDS,
    DiskReading,
    EndedProcess,
    GpuProcess,
    GpuReading,
    GpuSweep,
    HostCounters,
    HostReading,
    Pressure,
    UseSource,
)
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.policy import JumpFilter, bounded_host, bounded_sweep
from monitor.models import Gpu, Sample
from tests.builders import NOW, gpu, gpu_uuid
from tests.monitor.gpus.sampling.test_sampler import ScriptedProbe, at, sampler

INTEGERS = {"index", "cores", "instance", "performance_state"}
ODD: list[dict[str, Any]] = [
    {"power_w": float("inf")},
    {"utilization_pct": float("nan")},
    {"temperature_c": -1e300},
    {"memory_used_bytes": 2**64 - 1},
    {"memory_total_bytes": -1},
    {"sm_clock_mhz": 2**40},
    {"energy_mj": 10**30},
    {"temperature_c": 4294967295.0},
    {"temperature_c": 255.0},
    {"temperature_c": -256.0},
    {"power_w": 4294967.295},
    {"power_w": -0.001},
    {"power_limit_w": 0.0},
    {"utilization_pct": 808.0},
    {"memory_utilization_pct": -1.0},
    {"memory_clock_mhz": 2**32 - 1},
    {"performance_state": 32},
    {"max_sm_clock_mhz": 0},
    {"cores": -1},
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


GPU_BOUNDS = {field.name: field.bounds for field in GPU_FIELDS} | {
    name: BOUNDS[name] for name in set(BOUNDS) & set(GpuReading.__annotations__)
}


@pytest.mark.parametrize("name", sorted(GPU_BOUNDS))
def test_each_bounded_value_of_a_gpu_is_kept_up_to_its_bounds(name: str) -> None:
    """The others of its values are left out, since they may contradict it."""
    low, high = GPU_BOUNDS[name]
    kind = int if name.endswith(("bytes", "mhz", "mj", "state")) or name in INTEGERS else float
    for value, is_kept in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        reading = GpuReading(**{"uuid": "GPU-a", "index": 0, name: kind(value)})
        kept = bounded_sweep(GpuSweep(gpus=(reading,))).gpus
        assert (kept == (reading,)) is is_kept


@pytest.mark.parametrize(
    "counts",
    [
        {"ecc_uncorrected": 2**32 - 1},
        {"ecc_corrected": 2**64 - 1},
        {"retired_pages": 2**32 - 1},
        {"remapped_uncorrected": -1},
        {"clock_reasons": 2**32 - 1},
        {"clock_reasons": 2**64 - 1},
    ],
)
def test_impossible_counts_of_faults_are_unknown(counts: dict[str, int]) -> None:
    reading = HealthReading(gpu_uuid=gpu_uuid(0), **counts)  # type: ignore[arg-type]
    assert bounded_sweep(GpuSweep(health=(reading,))).health == (
        HealthReading(gpu_uuid=gpu_uuid(0)),
    )


def test_more_used_than_there_is_is_unknown() -> None:
    odd = gpu(0, memory_used_bytes=81 * 1024**3)
    seen = bounded_sweep(GpuSweep(gpus=(odd,))).gpus[0]
    assert (seen.memory_total_bytes, seen.memory_used_bytes) == (80 * 1024**3, None)


def test_power_far_above_the_limit_is_unknown() -> None:
    seen = bounded_sweep(GpuSweep(gpus=(gpu(0, power_w=2200.0), gpu(1, power_w=1000.0))))
    assert [reading.power_w for reading in seen.gpus] == [None, 1000.0]


joules = st.floats(0, 3000)


@given(st.lists(joules, min_size=2, max_size=20), st.integers(0, 19), st.integers(0, 10**15))
def test_a_counter_that_jumps_or_starts_anew_adds_no_energy(
    watts: list[float], when: int, to: int
) -> None:
    """At each sweep, the energy that two known counts tell is possible."""
    jumps, counter, known = JumpFilter(), 10**9, None
    for second, power in enumerate(watts):
        counter = to if second == when else counter + int(1000 * power)
        reading = gpu(0, energy_mj=counter)
        (seen,) = jumps.confirmed((reading,), NOW + timedelta(seconds=second))
        if seen.energy_mj is not None and known is not None:
            assert 0 <= seen.energy_mj - known <= 1000 * 3000 * 2
        known = seen.energy_mj


def test_a_jump_of_the_temperature_is_unknown_until_it_is_confirmed() -> None:
    jumps = JumpFilter()
    seen = [
        jumps.confirmed((gpu(0, temperature_c=celsius),), NOW + timedelta(seconds=second))
        for second, celsius in enumerate((60.0, 118.0, 118.0, 61.0, 60.0))
    ]
    assert [gpus[0].temperature_c for gpus in seen] == [60.0, None, 118.0, None, 60.0]


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


def test_the_parts_of_a_host_reading_are_bounded() -> None:
    odd = HostReading(
        name="box",
        pressure=Pressure(cpu_some_pct=4e9, io_some_pct=3.0),
        counters=HostCounters(cpu_busy_s=-1.0, disk_read_bytes=2**64 - 1, cpu_total_s=7.0),
        disks=(DiskReading(mount="/", total_bytes=-1, free_bytes=0),),
    )
    assert bounded_host(odd) == HostReading(
        name="box", pressure=Pressure(io_some_pct=3.0), counters=HostCounters(cpu_total_s=7.0)
    )


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
