from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monitor.gpus.sampling.probes import host as host_module
from monitor.gpus.sampling.probes.host import HostProbe, Identities
from tests.monitor.made_readings import NOW


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[HostProbe]:
    probe = HostProbe("box", [tmp_path])
    probe.open()
    yield probe
    probe.close()


def test_it_reads_this_machine(probe: HostProbe) -> None:
    seen = probe.read(NOW)
    assert seen.name == "box"
    assert seen.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert seen.cpu_count == os.cpu_count()
    assert seen.memory_total_bytes == psutil.virtual_memory().total
    assert 0 < (seen.memory_available_bytes or 0) <= (seen.memory_total_bytes or 0)
    assert seen.load_1 is not None
    assert any(disk.mount == "/" for disk in seen.disks)


def test_the_used_part_of_a_disk_is_counted_as_df_does(probe: HostProbe) -> None:
    disk = next(disk for disk in probe.read(NOW).disks if disk.mount == "/")

    used_pct = disk.used_pct

    assert used_pct == pytest.approx(psutil.disk_usage("/").percent, abs=0.5)


def test_its_counters_grow(probe: HostProbe) -> None:
    first = probe.read(NOW).counters
    sum(i * i for i in range(800_000))
    second = probe.read(NOW).counters
    assert (second.cpu_busy_s or 0) > (first.cpu_busy_s or 0) > 0
    assert (second.cpu_total_s or 0) > (first.cpu_total_s or 0) > 0
    assert (second.disk_read_bytes or 0) >= (first.disk_read_bytes or 0)


def test_pressure_is_read_where_the_kernel_keeps_it(probe: HostProbe) -> None:
    has = Path("/proc/pressure/cpu").exists()
    assert (probe.read(NOW).pressure.cpu_some_pct is not None) == has


def test_pressure_is_unknown_where_the_kernel_keeps_none(tmp_path: Path) -> None:
    assert HostProbe("box", root=tmp_path).read(NOW).pressure.cpu_some_pct is None


def test_it_reads_the_shares_of_pressure(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "pressure"
    folder.mkdir(parents=True)
    (folder / "memory").write_text(
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\n"
        "full avg10=3.25 avg60=0.50 avg300=0.05 total=2\n"
    )
    pressure = HostProbe("box", root=tmp_path).read(NOW).pressure
    assert (pressure.memory_some_pct, pressure.memory_full_pct) == (12.5, 3.25)
    assert pressure.io_some_pct is None


def test_it_counts_real_disks_only(tmp_path: Path) -> None:
    (tmp_path / "sys/block/vda/device").mkdir(parents=True)
    (tmp_path / "sys/block/dm-0").mkdir(parents=True)
    stats = tmp_path / "proc/diskstats"
    stats.parent.mkdir()
    line = "{} {} {} 1 0 {} 0 1 0 {} 0 0 0 0\n"
    stats.write_text(line.format(8, 0, "vda", 100, 10) + line.format(253, 0, "dm-0", 100, 10))
    counters = HostProbe("box", root=tmp_path).read(NOW).counters
    assert (counters.disk_read_bytes, counters.disk_written_bytes) == (51200, 5120)


def test_one_part_that_fails_hides_no_other(
    probe: HostProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no meminfo here")

    monkeypatch.setattr(host_module.psutil, "virtual_memory", broken)
    seen = probe.read(NOW)
    assert seen.memory_total_bytes is None
    assert seen.load_1 is not None


def test_it_knows_who_a_process_is(probe: HostProbe) -> None:
    pid = os.getpid()
    who = probe.identities([pid])[pid]
    real = psutil.Process(pid)
    assert abs(who.created_at.timestamp() - real.create_time()) < 1.5
    assert (who.uid, who.user) == (real.uids().real, real.username())
    assert who.command == tuple(real.cmdline())
    assert who.session == os.getsid(pid)
    assert who.lineage[0] == os.getppid()
    assert who.program in (real.name(), Path(real.cmdline()[0]).name)


def test_a_pid_that_is_gone_is_left_out(probe: HostProbe) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert probe.identities([gone.pid, os.getpid()]).keys() == {os.getpid()}


def test_an_orphaned_process_keeps_its_recorded_parents(tmp_path: Path) -> None:
    write_process(tmp_path, 50, parent=40, ticks=900)
    write_process(tmp_path, 40, parent=1, ticks=800)
    write_process(tmp_path, 1, parent=0, ticks=1)
    who = Identities(0.0, tmp_path)
    assert who.of([50])[50].lineage == (40, 1)
    write_process(tmp_path, 50, parent=1, ticks=900)
    assert who.of([50])[50].lineage == (40, 1)


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    write_process(tmp_path, 50, parent=1, ticks=900, command=b"old\0")
    who = Identities(0.0, tmp_path)
    assert who.of([50])[50].command == ("old",)
    write_process(tmp_path, 50, parent=1, ticks=950, command=b"new\0--fast\0")
    again = who.of([50])[50]
    assert (again.command, again.start_ticks) == (("new", "--fast"), 950)


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    write_process(tmp_path, 50, parent=7, ticks=900, name="a) b (c")
    who = Identities(0.0, tmp_path).of([50])[50]
    assert (who.start_ticks, who.program, who.lineage) == (900, "a) b (c", (7,))


def test_the_program_s_name_is_never_an_argument(tmp_path: Path) -> None:
    title = b"a-very-long-name --token secret\0"
    write_process(tmp_path, 50, parent=1, ticks=900, name="a-very-long-nam", command=title)
    assert Identities(0.0, tmp_path).of([50])[50].program == "a-very-long-nam"
    whole = b"/usr/bin/a-very-long-name\0--token\0secret\0"
    write_process(tmp_path, 50, parent=1, ticks=901, name="a-very-long-nam", command=whole)
    assert Identities(0.0, tmp_path).of([50])[50].program == "a-very-long-name"


def test_a_login_names_the_person_behind_sudo_and_a_container_names_no_one(tmp_path: Path) -> None:
    write_process(tmp_path, 301, parent=0, ticks=9, login=54_321)
    write_process(tmp_path, 302, parent=0, ticks=9, login=0xFFFFFFFF)
    inside = f"0::/system.slice/docker-{'ab' * 32}.scope"
    write_process(tmp_path, 303, parent=0, ticks=9, login=54_321, cgroup=inside)
    write_process(tmp_path, 304, parent=0, ticks=9, uid=54_321, pids="304 7")
    found = Identities(0.0, tmp_path).of([301, 302, 303, 304])
    known = [found[pid] for pid in (301, 302, 303, 304)]
    assert [who.user for who in known] == ["uid 54321", "root", None, None]
    assert [who.uid for who in known] == [0, 0, 0, 54_321]
    containers = [who.container for who in known]
    assert containers == [None, None, "docker abababababab", "container"]
    sources = [who.owner_source for who in known]
    assert sources == ["login", "uid", "unknown", "unknown"]


def test_a_process_in_another_user_namespace_is_not_named_by_its_uid(tmp_path: Path) -> None:
    write_process(tmp_path, 305, parent=0, ticks=9, uid=54_321)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "uid_map").write_text("         0          0 4294967295\n")
    (tmp_path / "305" / "uid_map").write_text("         0     100000      65536\n")
    who = Identities(0.0, tmp_path).of([305])[305]
    assert (who.user, who.uid, who.owner_source) == (None, 54_321, "unknown")


def write_process(
    proc: Path,
    pid: int,
    *,
    parent: int,
    ticks: int,
    name: str = "python",
    command: bytes = b"python\0",
    uid: int = 0,
    login: int | None = None,
    cgroup: str = "0::/",
    pids: str = "",
) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    zeros = " ".join(["0"] * 12)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} {zeros} 0 0 0 {ticks} 0")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pids or pid}\n")
    (folder / "cgroup").write_text(f"{cgroup}\n")
    if login is not None:
        (folder / "loginuid").write_text(str(login))
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(command)
