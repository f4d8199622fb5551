from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.readings import Limits
from monitor.gpus.policy.capability import clamped, cpu_places, hidden, quantity, visible
from monitor.gpus.sampling.probes.host import HostProbe, LimitsProbe
from tests.builders import GIB, NOW, gpu, gpu_uuid

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(
    root: Path,
    environ: dict[str, str] | None = None,
    cpus: float | None = None,
    memory_gib: float | None = None,
) -> Limits:
    probe = LimitsProbe(cpus, memory_gib, root=root, environ=environ or {})
    return probe.read(64, 512 * GIB)


def test_without_any_limit_the_machine_is_the_limit(root: Path) -> None:
    found = read(root)
    assert (found.cpus, found.cpus_origin) == (64, "machine")
    assert (found.memory_bytes, found.memory_origin) == (512 * GIB, "machine")
    assert found.visible_gpus is None


def test_it_reads_a_container_of_cgroup_v2(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{5 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {2 * GIB}\n")
    write(root, "sys/fs/cgroup/cpu.max", "250000 100000\n")
    found = read(root)
    assert (found.cpus, found.cpus_origin) == (2.5, "cgroup v2 cpu.max")
    assert (found.memory_bytes, found.memory_origin) == (8 * GIB, "cgroup v2 memory.max")
    assert found.memory_used_bytes == 3 * GIB


def test_a_limit_further_up_holds_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user.slice/jobs.slice/one.scope\n")
    base = "sys/fs/cgroup/user.slice"
    write(root, f"{base}/memory.max", f"{4 * GIB}")
    write(root, f"{base}/jobs.slice/memory.max", f"{16 * GIB}")
    write(root, f"{base}/jobs.slice/one.scope/memory.max", "max")
    write(root, f"{base}/jobs.slice/one.scope/cpu.max", "max 100000")
    found = read(root)
    assert found.memory_bytes == 4 * GIB
    assert found.cpus_origin == "machine"


def test_it_reads_cgroup_v1(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    base = "sys/fs/cgroup"
    write(root, f"{base}/memory/docker/abc/memory.limit_in_bytes", f"{6 * GIB}")
    write(root, f"{base}/memory/docker/abc/memory.usage_in_bytes", f"{GIB}")
    write(root, f"{base}/memory/memory.limit_in_bytes", UNLIMITED_V1)
    write(root, f"{base}/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000")
    write(root, f"{base}/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    found = read(root)
    assert (found.cpus, found.cpus_origin) == (1.5, "cgroup v1 cpu.cfs_quota_us")
    assert (found.memory_bytes, found.memory_used_bytes) == (6 * GIB, GIB)


def test_in_a_container_of_v1_only_the_top_is_mounted(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/abc\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}")
    assert read(root).memory_bytes == 2 * GIB


def test_the_numbers_that_mean_no_limit_are_none(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1)
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    found = read(root)
    assert (found.cpus_origin, found.memory_origin) == ("machine", "machine")


def test_it_reads_a_pod_s_files(root: Path) -> None:
    write(root, "etc/podinfo/cpu_limit", "3")
    write(root, "etc/podinfo/cpu_request", "500m")
    write(root, "etc/podinfo/mem_limit", "2Gi")
    write(root, "etc/podinfo/mem_request", "1Gi")
    found = read(root)
    assert (found.cpus, found.cpus_origin, found.cpus_requested) == (3, "pod limit", 0.5)
    assert (found.memory_bytes, found.memory_origin) == (2 * GIB, "pod limit")
    assert found.memory_requested_bytes == GIB


@pytest.mark.parametrize("prefix", ["POD_", "MY_", ""])
def test_it_reads_a_pod_s_variables(root: Path, prefix: str) -> None:
    environ = {f"{prefix}CPU_LIMIT": "2", f"{prefix}MEMORY_LIMIT": str(4 * GIB)}
    found = read(root, POD | environ)
    assert (found.cpus, found.memory_bytes) == (2, 4 * GIB)


def test_such_variables_mean_nothing_outside_a_pod(root: Path) -> None:
    assert read(root, {"CPU_LIMIT": "2"}).cpus == 64


def test_the_least_of_all_wins_and_is_named(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", str(8 * GIB))
    write(root, "sys/fs/cgroup/cpu.max", "400000 100000")
    write(root, "etc/podinfo/mem_limit", "6Gi")
    found = read(root, cpus=2, memory_gib=16)
    assert (found.cpus, found.cpus_origin) == (2, "setting cpus")
    assert (found.memory_bytes, found.memory_origin) == (6 * GIB, "pod limit")
    assert read(root, memory_gib=1).memory_origin == "setting memory_gib"


def test_a_setting_above_the_machine_changes_nothing(root: Path) -> None:
    found = read(root, cpus=1000, memory_gib=9999)
    assert (found.cpus_origin, found.memory_origin) == ("machine", "machine")


def test_what_is_no_number_is_left_aside(root: Path) -> None:
    write(root, "etc/podinfo/mem_limit", "plenty")
    write(root, "sys/fs/cgroup/cpu.max", "")
    write(root, "sys/fs/cgroup/memory.max", "nonsense")
    found = read(root)
    assert (found.cpus_origin, found.memory_origin) == ("machine", "machine")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2), ("500m", 0.5), ("1.5", 1.5), ("1Gi", GIB), ("1G", 1e9), ("1500m", 1.5),
        ("1e9", 1e9), ("512Ki", 524288), ("", None), ("-1", None), ("2 Gi", None), ("Gi", None),
    ],
)  # fmt: skip
def test_it_reads_quantities_as_kubernetes_writes_them(text: str, value: float | None) -> None:
    assert quantity(text) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, None),
        ("all", None),
        ("void", None),
        ("", None),
        ("none", ()),
        ("0,2", ("0", "2")),
        ("GPU-aaa, GPU-bbb", ("GPU-aaa", "GPU-bbb")),
    ],
)
def test_it_reads_which_gpus_are_visible(value: str | None, names: tuple[str, ...] | None) -> None:
    assert visible(value) == names


def test_gpus_that_are_not_named_are_not_ours() -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    assert hidden(gpus, Limits()) == frozenset()
    assert hidden(gpus, Limits(visible_gpus=("1",))) == {gpu_uuid(0), gpu_uuid(2)}
    assert hidden(gpus, Limits(visible_gpus=(gpu_uuid(0), gpu_uuid(2)))) == {gpu_uuid(1)}
    assert len(hidden(gpus, Limits(visible_gpus=()))) == 3


def test_a_runtime_that_hid_them_has_numbered_the_others_anew() -> None:
    assert hidden([gpu(0), gpu(1)], Limits(visible_gpus=("4", "5"))) == frozenset()


@given(wanted=st.integers(1, 500), cpus=st.none() | st.floats(0.01, 512))
def test_there_are_never_more_places_than_cpus(wanted: int, cpus: float | None) -> None:
    places = cpu_places(wanted, Limits(cpus=cpus))
    assert 1 <= places <= wanted
    assert cpus is None or places <= max(1, cpus)


def test_the_request_of_a_pod_bounds_the_places_for_jobs() -> None:
    assert cpu_places(8, Limits(cpus=8.0, cpus_requested=2.5)) == 2
    assert cpu_places(8, Limits(cpus_requested=0.5)) == 1
    assert cpu_places(8, Limits()) == 8


sizes = st.none() | st.integers(0, 2**45)


@given(total=sizes, free=sizes, bound=sizes, used=sizes)
def test_memory_never_exceeds_the_limit(
    total: int | None, free: int | None, bound: int | None, used: int | None
) -> None:
    limits = Limits(memory_bytes=bound, memory_used_bytes=used)
    seen_total, seen_free = clamped(total, free, limits)
    if bound is not None:
        assert seen_total is not None
        assert seen_total <= bound
        assert seen_free is None or seen_free <= bound
    assert (seen_free is None) is (free is None)


def test_the_host_shows_what_may_be_used_of_it(tmp_path: Path) -> None:
    probe = HostProbe("box", limits=LimitsProbe(cpus=1, memory_gib=0.5, root=tmp_path, environ={}))
    seen = probe.read(NOW)
    assert seen.memory_total_bytes == GIB // 2
    assert seen.memory_available_bytes is not None
    assert seen.memory_available_bytes <= GIB // 2
    assert (seen.limits.cpus, seen.limits.cpus_origin) == (1, "setting cpus")
    assert seen.limits.machine_memory_bytes is not None
    assert seen.limits.machine_memory_bytes > GIB // 2
