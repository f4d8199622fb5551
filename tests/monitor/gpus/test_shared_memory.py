from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.readings import GpuReading, HostReading
from monitor.gpus.policy.capability import has_no_figure, is_stated, with_stated_memory
from tests.builders import GIB, gpu, gpu_uuid, process

LACKING = ("memory_total_bytes", "memory_used_bytes")
HOST = HostReading(name="spark", memory_total_bytes=120 * GIB, memory_available_bytes=110 * GIB)


def spark(**changes: object) -> GpuReading:
    nothing = dict.fromkeys((*LACKING, "memory_reserved_bytes"))
    return gpu(0, **{"name": "NVIDIA GB10", **nothing, "unsupported": LACKING, **changes})


def stated(*sizes: int | None, name: str = "GB10", host: HostReading = HOST) -> GpuReading:
    listed = [process(100 + n, memory_bytes=size) for n, size in enumerate(sizes)]
    return with_stated_memory([spark()], listed, host, {name: 100})[0]


@pytest.mark.parametrize("name", ["GB10", "nvidia gb10", gpu_uuid(0)])
def test_an_operator_states_the_memory_by_model_or_uuid(name: str) -> None:
    reading = stated(3 * GIB, GIB, name=name)
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (100 * GIB, 4 * GIB)
    assert is_stated(reading)
    assert not has_no_figure(reading)


def test_memory_that_the_host_has_taken_is_reserved() -> None:
    host = HostReading(name="spark", memory_available_bytes=30 * GIB)
    assert stated(20 * GIB, host=host).memory_reserved_bytes == 50 * GIB
    assert stated(20 * GIB).memory_reserved_bytes == 0


def test_a_process_of_unknown_memory_makes_the_used_memory_unknown() -> None:
    reading = stated(GIB, None)
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (100 * GIB, None)


def test_a_figure_of_the_driver_comes_first() -> None:
    plain = gpu(0)
    assert with_stated_memory([plain], [], HOST, {"H100": 10}) == (plain,)


def test_a_figure_that_failed_once_is_not_replaced() -> None:
    failed = spark(unsupported=None)
    assert with_stated_memory([failed], [], HOST, {"GB10": 100}) == (failed,)


def test_without_a_setting_it_has_no_figure() -> None:
    (reading,) = with_stated_memory([spark()], [], HOST, {})
    assert has_no_figure(reading)


@given(st.lists(st.integers(0, 200 * GIB), max_size=5), st.none() | st.integers(0, 200 * GIB))
def test_used_and_reserved_never_exceed_the_total(sizes: list[int], available: int | None) -> None:
    host = HostReading(name="spark", memory_available_bytes=available)
    reading = stated(*sizes, host=host)
    used, reserved = reading.memory_used_bytes or 0, reading.memory_reserved_bytes or 0
    assert 0 <= used + reserved <= 100 * GIB
