from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.gpus.sampling.policy import ListedProcess, merged_processes

TOTAL = 1000
lines = st.lists(
    st.builds(
        ListedProcess,
        kind=st.sampled_from("CGM"),
        pid=st.integers(-1, 6),
        memory_bytes=st.none() | st.integers(-10, TOTAL + 10),
        instance=st.none() | st.integers(0, 2),
    )
)


@given(lines)
def test_every_real_pid_stands_once(listed: list[ListedProcess]) -> None:
    pids = [p.pid for p in merged_processes("GPU-1", listed, TOTAL)]
    assert pids == sorted({line.pid for line in listed if line.pid > 0})


@given(lines)
def test_memory_is_never_doubled_by_a_second_list(listed: list[ListedProcess]) -> None:
    again = [ListedProcess("G", line.pid, line.memory_bytes, line.instance) for line in listed]
    once = {p.pid: p.memory_bytes for p in merged_processes("GPU-1", listed, TOTAL)}
    twice = {p.pid: p.memory_bytes for p in merged_processes("GPU-1", listed + again, TOTAL)}
    assert once == twice


@given(lines)
def test_unknown_memory_never_becomes_zero(listed: list[ListedProcess]) -> None:
    for process in merged_processes("GPU-1", listed, TOTAL):
        said = [
            line.memory_bytes
            for line in listed
            if line.pid == process.pid
            and line.memory_bytes is not None
            and 0 <= line.memory_bytes <= TOTAL
        ]
        assert (process.memory_bytes is None) == (not said)


def test_a_value_in_one_list_wins_over_unknown_in_another() -> None:
    (process,) = merged_processes(
        "GPU-1", [ListedProcess("C", 7), ListedProcess("G", 7, 30)], TOTAL
    )
    assert (process.memory_bytes, process.kinds) == (30, "CG")


def test_memory_in_two_mig_instances_adds_up() -> None:
    (process,) = merged_processes(
        "GPU-1", [ListedProcess("C", 7, 30, 1), ListedProcess("C", 7, 20, 2)], TOTAL
    )
    assert process.memory_bytes == 50


def test_more_memory_than_the_gpu_has_is_not_believed() -> None:
    (process,) = merged_processes("GPU-1", [ListedProcess("C", 7, TOTAL + 1)], TOTAL)
    assert process.memory_bytes is None
