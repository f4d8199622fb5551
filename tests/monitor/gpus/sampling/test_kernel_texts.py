"""Readers of files of the kernel, with texts as real kernels write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucoord_site.service.startup_checks import mount_of
from monitor.gpus.sampling.probes.host import HostProbe, LimitsProbe
from monitor.owners.policy import UidRange, uid_map_of
from monitor.owners.probes.credentials import words_of
from monitor.owners.probes.listeners import listening_uids
from scheduler.disk.probes import mount_table
from scheduler.runner import process_tree
from scheduler.runner.confine.cgroups import hierarchies, own_cgroups
from scheduler.runner.confine.confinement import private_pages, used_bytes
from scheduler.runner.confine.locks import flocks
from scheduler.runner.process_tree import ProcessInfo
from tests import kernel_texts
from tests.builders import GIB, NOW

RSS, SHMEM = 74149888, 8388608
MEMORY = "sys/fs/cgroup/memory"
SERVICE = "sys/fs/cgroup/cpu,cpuacct/system.slice/gpucoord.service"


def _tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (kernel_texts.MEMORY_STAT_V1, RSS + SHMEM),
        (kernel_texts.MEMORY_STAT_V1_OLD, RSS),
        (kernel_texts.MEMORY_STAT_V2, RSS + SHMEM),
    ],
    ids=["v1", "v1 of Linux 3.10", "v2"],
)
def test_the_memory_of_a_job_is_read_of_both_versions(tmp_path: Path, text: str, used: int) -> None:
    (tmp_path / "unified").mkdir()
    _tree(tmp_path, {"memory/memory.stat": text})

    assert used_bytes([tmp_path / "memory"], lambda: []) == used
    # Side by side: the folder of version 2 has no controller of memory then.
    assert used_bytes([tmp_path / "unified", tmp_path / "memory"], lambda: []) == used


@pytest.mark.parametrize(
    ("files", "limit", "used"),
    [
        (
            {
                f"{MEMORY}/memory.limit_in_bytes": f"{4 * GIB}\n",
                f"{MEMORY}/memory.usage_in_bytes": f"{RSS + SHMEM}\n",
                f"{MEMORY}/memory.stat": kernel_texts.MEMORY_STAT_V1,
                "proc/self/cgroup": kernel_texts.CGROUP_HYBRID,
            },
            4 * GIB,
            RSS + SHMEM,
        ),
        (
            {
                f"{MEMORY}/memory.limit_in_bytes": "9223372036854771712\n",
                "proc/self/cgroup": kernel_texts.CGROUP_HYBRID,
            },
            64 * GIB,
            None,
        ),
        (
            {
                "sys/fs/cgroup/user.slice/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/user.slice/memory.current": f"{RSS + SHMEM}\n",
                "sys/fs/cgroup/user.slice/memory.stat": kernel_texts.MEMORY_STAT_V2,
                "proc/self/cgroup": kernel_texts.CGROUP_V2,
            },
            4 * GIB,
            RSS + SHMEM,
        ),
        (
            {
                "sys/fs/cgroup/user.slice/memory.max": "max\n",
                "proc/self/cgroup": kernel_texts.CGROUP_V2,
            },
            64 * GIB,
            None,
        ),
    ],
    ids=["v1", "v1 without a limit", "v2", "v2 without a limit"],
)
def test_the_memory_limit_of_the_service_is_read_of_both_versions(
    tmp_path: Path, files: Mapping[str, str], limit: int, used: int | None
) -> None:
    limits = LimitsProbe(root=_tree(tmp_path, files), environ={}).read(8, 64 * GIB)

    assert (limits.memory_bytes, limits.memory_used_bytes) == (limit, used)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        (
            {
                f"{SERVICE}/cpu.cfs_quota_us": "150000\n",
                f"{SERVICE}/cpu.cfs_period_us": "100000\n",
                "proc/self/cgroup": kernel_texts.CGROUP_V1,
            },
            1.5,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "proc/self/cgroup": kernel_texts.CGROUP_HYBRID,
            },
            8,
        ),
        (
            {
                "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
                "proc/self/cgroup": kernel_texts.CGROUP_V2,
            },
            1.5,
        ),
        (
            {
                "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
                "proc/self/cgroup": kernel_texts.CGROUP_V2,
            },
            8,
        ),
    ],
    ids=["v1", "v1 without a limit", "v2", "v2 without a limit"],
)
def test_the_cpu_limit_of_the_service_is_read_of_both_versions(
    tmp_path: Path, files: Mapping[str, str], cpus: float
) -> None:
    assert LimitsProbe(root=_tree(tmp_path, files), environ={}).read(8, 64 * GIB).cpus == cpus


def test_the_hierarchies_of_cgroups_are_found() -> None:
    hybrid = hierarchies(kernel_texts.MOUNTS_HYBRID)

    assert (hybrid["memory"], hybrid[""]) == (
        "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified",
    )  # fmt: skip
    assert hierarchies(kernel_texts.MOUNTS_V1) == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory",
        "freezer": "/sys/fs/cgroup/freezer",
    }
    assert hierarchies(kernel_texts.MOUNTS_V2) == {"": "/sys/fs/cgroup"}


def test_the_cgroups_of_a_process_are_read() -> None:
    assert own_cgroups(kernel_texts.CGROUP_HYBRID)["memory"] == "/gpucoord/1-job-7-1"
    assert own_cgroups(kernel_texts.CGROUP_HYBRID)[""] == "/gpucoord/1-job-7-1"
    assert own_cgroups(kernel_texts.CGROUP_V1)["cpu"] == "/system.slice/gpucoord.service"
    assert own_cgroups(kernel_texts.CGROUP_V1)["memory"] == "/system.slice/a:b.service"
    assert own_cgroups(kernel_texts.CGROUP_V2) == {"": kernel_texts.CGROUP_V2.strip()[3:]}


def test_a_process_is_read_whatever_its_name() -> None:
    assert process_tree.parsed(4242, kernel_texts.STAT_ODD_NAME) == ProcessInfo(
        4242, 4200, 4242, 4200, 98765
    )


def test_a_name_of_a_program_is_no_field_of_its_status() -> None:
    assert words_of(kernel_texts.STATUS, "Uid") == ["1000"] * 4
    assert words_of(kernel_texts.STATUS, "NSpid") == ["32316", "7"]
    assert words_of(kernel_texts.STATUS, "CapEff") == []


def test_the_outside_ranges_of_accounts_are_read() -> None:
    assert uid_map_of(kernel_texts.UID_MAP_HOST) == (UidRange(0, 4294967295),)
    assert uid_map_of(kernel_texts.UID_MAP_ROOTLESS) == (UidRange(1000, 1), UidRange(100000, 65536))


def test_shared_pages_do_not_count_as_memory_of_a_process() -> None:
    assert private_pages(kernel_texts.STATM) == 28


def test_only_sockets_that_listen_name_the_account_of_a_port() -> None:
    assert listening_uids(kernel_texts.NET_TCP, 8080) == {1000}
    assert listening_uids(kernel_texts.NET_TCP, 2024) == {0}
    assert listening_uids(kernel_texts.NET_TCP, 40000) == set()


def test_held_flocks_are_read_without_waiting_ones_and_other_locks() -> None:
    assert list(flocks(kernel_texts.LOCKS)) == [
        (77, (0xFE, 0), 300, True), (78, (0, 0x1B), 302, False),
    ]  # fmt: skip


def test_mounts_are_read_with_spaces_and_optional_fields() -> None:
    table = mount_table(kernel_texts.MOUNTINFO)

    assert table["/dev/shm"] == ("0:27", "tmpfs")
    assert table["/mnt/a - b"] == ("0:55", "nfs4")
    mount = mount_of(Path("/mnt/a - b/x"), kernel_texts.MOUNTINFO)
    assert mount is not None
    assert (mount.kind, mount.source) == ("nfs4", "server:/a - b")


def test_physical_disks_are_counted_whatever_their_names(tmp_path: Path) -> None:
    for name in ("nvme0n1", "cciss!c0d0"):
        (tmp_path / "sys/block" / name / "device").mkdir(parents=True)
    root = _tree(tmp_path, {"proc/diskstats": kernel_texts.DISKSTATS})

    counters = HostProbe("box", root=root).read(NOW).counters

    assert (counters.disk_read_bytes, counters.disk_written_bytes) == (2100 * 512, 4300 * 512)


def test_pressure_is_read_with_and_without_full(tmp_path: Path) -> None:
    texts = {
        "proc/pressure/memory": kernel_texts.PRESSURE,
        "proc/pressure/cpu": kernel_texts.PRESSURE_CPU_OLD,
    }
    pressure = HostProbe("box", root=_tree(tmp_path, texts)).read(NOW).pressure

    assert (pressure.memory_some_pct, pressure.memory_full_pct) == (12.5, 3.25)
    assert (pressure.cpu_some_pct, pressure.io_some_pct) == (1.5, None)
