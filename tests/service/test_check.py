from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucoord_site.cli import check, check_machine
from gpucoord_site.cli.check import answering, gpus, kernel_module
from gpucoord_site.cli.check_machine import Finding, Level, as_json, as_text, fail, ok, warn, worst
from gpucoord_site.config.settings import load_config
from monitor.facts.readings import FileSystemSpace, GpuSweep, Health
from monitor.runtime.probes import disk_space
from scheduler.runner.confine import cgroups, locks
from tests.builders import GIB, gpu


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("GPUCOORD_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUCOORD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GPUCOORD_PROBE", "none")
    monkeypatch.setenv("GPUCOORD_PORT", "0")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def _found(topic: str) -> list[Finding]:
    return [f for f in check.look() if f.topic == topic]


def test_a_fresh_machine_has_nothing_to_mend() -> None:
    assert [f for f in check.look() if f.level is Level.FAIL] == []


def test_it_changes_nothing(tmp_path: Path) -> None:
    check.check([])

    assert list(tmp_path.iterdir()) == []


def test_the_disk_has_the_same_figures_as_on_the_page_of_disks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = FileSystemSpace(used_bytes=25 * GIB, available_bytes=75 * GIB)
    monkeypatch.setattr(disk_space, "read", lambda _: space)

    (finding,) = _found("disk")

    assert finding.text.startswith("25 % used, 75.0 of 100.0 GiB free")


@pytest.mark.parametrize(
    ("free_gib", "level", "words"),
    [
        (580, Level.OK, "no job waits for disk space"),
        (90, Level.WARN, "will soon wait"),
        (40, Level.WARN, "starts above 70 % with less than 50 GiB left"),
    ],
)
def test_it_says_when_the_guard_of_disks_keeps_jobs_or_soon_will(
    free_gib: int, level: Level, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = FileSystemSpace(used_bytes=(2000 - free_gib) * GIB, available_bytes=free_gib * GIB)
    monkeypatch.setattr(disk_space, "read", lambda _: space)

    (finding,) = _found("disk guard")

    assert finding.level is level
    assert words in finding.text


@pytest.mark.parametrize(("uid", "run_as"), [(1000, "auto"), (0, "service"), (0, "nobody")])
def test_it_warns_when_jobs_are_not_separated(
    uid: int, run_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setenv("GPUCOORD_RUN_AS", run_as)

    (finding,) = _found("accounts")
    assert (finding.level, bool(finding.todo)) == (Level.WARN, True)


def test_its_exit_code_says_whether_something_must_be_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check.check([]) == 0

    monkeypatch.setenv("GPUCOORD_PORT", "many")

    assert check.check([]) == 1


def test_settings_that_cannot_be_used_are_each_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PORT", "many")
    monkeypatch.setenv("GPUCOORD_PROT", "1")

    assert [f.level for f in check.look()] == [Level.FAIL, Level.FAIL]


def test_changed_settings_are_named_with_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpucoord.toml").write_text('node = "box"\n')
    monkeypatch.setenv("GPUCOORD_ADMIN_PASSWORD", "hush")

    words = check.settings_in_words(load_config())

    assert f"node = box (node in {tmp_path / 'gpucoord.toml'})" in words
    assert "admin_password = *** (GPUCOORD_ADMIN_PASSWORD)" in words
    assert "hush" not in words


def test_json_is_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    check.check(["--json"])

    report = json.loads(capsys.readouterr().out)

    assert report["status"] in {"ok", "warn"}
    assert {"topic", "level", "text", "todo"} == set(report["findings"][0])


def test_a_port_of_another_program_is_a_fault(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    monkeypatch.setenv("GPUCOORD_PORT", str(taken))
    monkeypatch.setattr(check_machine, "_is_gpucoord", lambda config: False)

    [found] = _found("port")

    assert found.level is Level.FAIL
    assert "taken by another program" in found.text


def test_a_port_of_gpucoord_itself_is_fine(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    monkeypatch.setenv("GPUCOORD_PORT", str(taken))
    monkeypatch.setattr(check_machine, "_is_gpucoord", lambda config: True)

    assert _found("port") == [ok("port", f"gpucoord is running on 127.0.0.1:{taken}")]


def test_an_open_address_without_https_is_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_HOST", "0.0.0.0")

    [found] = _found("port")

    assert found.level is Level.WARN
    assert "unencrypted" in found.text


def test_a_data_folder_below_a_file_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUCOORD_DATA", str(tmp_path / "file" / "data"))

    [found] = _found("data")

    assert found.level is Level.FAIL
    assert found.todo.startswith("set GPUCOORD_DATA")


def test_a_data_folder_that_all_can_read_is_worth_a_word(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)

    assert [f.level for f in _found("data")] == [Level.WARN]


def test_a_folder_of_checkpoints_that_others_can_write_to_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("GPUCOORD_CHECKPOINTS", str(folder))

    assert [(f.level, f.todo) for f in _found("checkpoints")] == [
        (Level.WARN, f"chmod go-w {folder}")
    ]


def test_a_postgresql_that_does_not_answer_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:hush@127.0.0.1:{port}/gpus")

    [found] = _found("database")

    assert found.level is Level.FAIL
    assert "Connection refused" in found.text
    assert "hush" not in found.text


def test_simulated_figures_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PROBE", "simulated")

    [found] = gpus(load_config())

    assert found.level is Level.WARN
    assert "made up" in found.text


def test_gpus_are_counted_by_kind_and_the_ill_ones_named() -> None:
    ill = gpu(2, health=Health.LOST, problem="fell off the bus")

    count, problem = answering(GpuSweep(gpus=(gpu(0), gpu(1), ill)))

    assert count.text == "3 × NVIDIA H100 80GB HBM3 (80 GiB)"
    assert problem.text == "GPU 2 is lost: fell off the bus"


def test_the_driver_version_is_read_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 2024\n")

    assert kernel_module(file) == "550.54.15"
    assert kernel_module(tmp_path / "none") is None


def test_a_report_says_what_to_do() -> None:
    text = "\n".join(as_text("title", [ok("a", "fine"), fail("b", "broken", "mend it")]))

    assert "fail  b  broken" in text
    assert "→ mend it" in text
    assert text.endswith("1 ok, 0 to know, 1 to mend")


def test_the_worst_finding_counts() -> None:
    assert worst([ok("a", ""), warn("b", "")]) is Level.WARN
    assert worst([]) is Level.OK
    assert '"status": "warn"' in as_json("title", [warn("b", "")])


def test_limits_are_named_with_what_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_CPUS", "1")
    monkeypatch.setenv("GPUCOORD_MEMORY_GIB", "0.5")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1")
    texts = [finding.text for finding in _found("limits")]
    assert "(setting cpus)" in texts[0]
    assert "0.5 of" in texts[0]
    assert "1 job without a GPU at once" in texts[0]
    assert texts[1] == "GPUs: 0, 1 (NVIDIA_VISIBLE_DEVICES)"


def test_more_places_than_cpus_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_CPUS", "1")
    monkeypatch.setenv("GPUCOORD_CPU_JOBS", "60")
    (finding,) = [one for one in _found("limits") if "cpu_jobs" in one.text]

    assert finding.level is Level.WARN
    assert finding.text == "cpu_jobs is 60, but only 1 job without a GPU runs at once: one per CPU"


def test_it_says_what_the_machine_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PROFILE", "desktop")

    (finding,) = _found("profile")

    assert finding.text.startswith("desktop: a workstation")


def test_it_tries_what_keeps_jobs_within_bounds_and_leaves_nothing_behind() -> None:
    (cgroup,) = _found("cgroup")
    place = cgroups.find_parent()

    assert (cgroup.level is Level.OK) is bool(place.kind)
    assert {f.topic for f in check.look()} >= {"hiding", "share cap", "mps", "nice", "locks"}


def test_it_names_who_holds_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCOORD_LOCK_FOLDER", str(tmp_path))
    taken = locks.lock_gpus(tmp_path, [3], alone=True)
    assert isinstance(taken, locks.HeldLocks)

    said = [finding.text for finding in _found("locks")]
    taken.release()
    assert f"{tmp_path}/gpu3.lock is held by" in said[-1]


def test_a_lock_file_that_is_a_link_must_be_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUCOORD_LOCK_FOLDER", str(tmp_path))
    (tmp_path / "gpu0.lock").symlink_to("/etc/passwd")

    (finding,) = _found("locks")
    assert finding.level is Level.FAIL
    assert "is a link" in finding.text


def test_a_lock_folder_that_can_not_be_made_must_be_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUCOORD_LOCK_FOLDER", str(tmp_path / "no" / "where"))

    (finding,) = _found("locks")

    assert finding.level is Level.FAIL
    assert "is not there and can't be made" in finding.text


def test_a_program_that_other_accounts_can_not_run_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").touch(mode=0o755)

    # Folders of pytest itself are closed.
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    assert check_machine.closed_part(closed / "python") == closed
    closed.chmod(0o711)
    assert check_machine.closed_part(closed / "python") is None
    (closed / "python").chmod(0o750)
    assert check_machine.closed_part(closed / "python") == closed / "python"
