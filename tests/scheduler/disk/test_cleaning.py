"""Clean-ups of real folders: what is deleted, what is spared, and what is written about it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.cli import verbs
from monitor.journal.rows import counters
from monitor.models import AuditEntry
from monitor.thresholds import rows as thresholds
from scheduler.disk import probes, steps
from scheduler.disk.actions import Cleaner
from scheduler.disk.policy import CleanResult, DiskPolicy, DiskSpace, WatchedFolder, level
from scheduler.models import CleaningRun
from scheduler.runner import files as copying
from tests import jobs_made
from tests.builders import NOW
from tests.cli_bridge import connect_as

pytestmark = pytest.mark.django_db
DAY = 86_400
MIB = 1024**2


def write(path: Path, days: float = 30.0, content: bytes = b"x" * 4096) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    at = NOW.timestamp() - days * DAY
    os.utime(path, (at, at))
    return path


class Box:
    """A host whose file system is full, and the folder to clean."""

    def __init__(self, data: Path, folder: Path, target: Path) -> None:
        self.data, self.folder, self.target = data, folder, target
        self.used_pct = 90.0
        self.device = probes.device_of(str(data)) or ""
        self.copy: Callable[[int, Path], None] = copying.copy

    def read(self, path: str) -> DiskSpace:
        used = round(self.used_pct * MIB)
        return DiskSpace(device=self.device, used_bytes=used, available_bytes=100 * MIB - used)

    def clean(self, path: str = "", *, dry_run: bool = False) -> CleaningRun:
        watched = WatchedFolder(str(self.data), "data")
        reading = self.read("")
        stage = level(reading, DiskPolicy(), steps.DiskLevel.NORMAL)
        steps.store("gpubox", watched, reading, stage, "", NOW)
        steps.clean("gpubox", path, dry_run=dry_run, by="root", now=NOW)
        cleaner = Cleaner("gpubox", self.data, copy=self.copy, read=self.read)
        run = cleaner.step(NOW)
        assert run is not None
        return run

    def policy(self, **values: Any) -> None:
        thresholds.change("cleaning", values, by="root", now=NOW)


@pytest.fixture
def target() -> Iterator[Path]:
    """A folder on another file system."""
    folder = Path(f"/dev/shm/gpucoord-test-{os.getpid()}-{time.monotonic_ns()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("/dev/shm is not there")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def box(data: Path, tmp_path: Path, target: Path) -> Box:
    folder = tmp_path / "files"
    folder.mkdir()
    box = Box(data, folder, target)
    if probes.device_of(str(target)) == box.device:
        pytest.skip("/dev/shm is no file system of its own")
    return box


def results(run: CleaningRun) -> dict[str, str]:
    return {Path(line["path"]).name: line["result"] for line in run.listed}


def plain_copy(handle: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(os.pread(handle, 10**8, 0))


def test_a_preview_deletes_nothing_and_lists_what_would_be(box: Box) -> None:
    log = write(box.data / "jobs" / "1" / "1" / "output.log")
    run = box.clean(dry_run=True)

    assert log.exists()
    assert (run.state, run.candidates, results(run)) == (
        "done", 1, {"output.log": "would be deleted"}
    )  # fmt: skip
    assert not AuditEntry.objects.filter(action="FILE_CLEANED").exists()


def test_each_deleted_file_has_one_entry_in_the_audit_and_counts(box: Box) -> None:
    for number in (1, 2):
        write(box.data / "jobs" / str(number) / "1" / "output.log")
    run = box.clean()

    assert not list(box.data.rglob("*.log"))
    texts = AuditEntry.objects.filter(action="FILE_CLEANED").values_list("text", flat=True)
    assert sorted(texts) == [f"Deleted {box.data}/jobs/{n}/1/output.log (old log)." for n in (1, 2)]
    assert run.freed_bytes == 8192
    assert [row.value for row in counters.of(steps.CLEANED_BYTES)] == [8192]


def test_files_whose_names_are_no_text_go_like_others(box: Box) -> None:
    folder = box.data / "jobs" / "1" / "1"
    odd = [write(folder / name) for name in ("a\udcff.log", "b\x1b[31m\u202e.log", "c\n.log")]
    run = box.clean()

    assert not any(path.exists() for path in odd)
    assert sorted(results(run).items()) == [
        ("a\\udcff.log", "deleted"),
        ("b\\x1b[31m\\u202e.log", "deleted"),
        ("c\\x0a.log", "deleted"),
    ]
    texts = AuditEntry.objects.filter(action="FILE_CLEANED").values_list("text", flat=True)
    assert all(text.isprintable() for text in texts)
    assert len(texts) == len(odd)


def test_a_copy_of_a_file_whose_name_is_no_text_is_proved_too(box: Box) -> None:
    box.policy(data_folders=[str(box.folder)], sync_target=str(box.target))
    odd = write(box.folder / "a\udcff.bin")
    box.copy = plain_copy
    run = box.clean()

    assert (odd.exists(), list(results(run).values())) == (False, ["deleted"])


def test_it_stops_when_the_use_is_below_the_goal(box: Box) -> None:
    old = write(box.data / "jobs" / "1" / "1" / "output.log", days=40)
    new = write(box.data / "jobs" / "2" / "1" / "output.log", days=20)
    delete = probes.delete

    def deletes(*args: Any) -> CleanResult:
        box.used_pct = 50.0
        return delete(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "delete", deletes)
        box.clean()

    assert (old.exists(), new.exists()) == (False, True)


def test_logs_of_jobs_that_have_not_ended_stay(box: Box, alice: User) -> None:
    waiting, ended = jobs_made.waiting(alice), jobs_made.finished(alice)
    kept = write(box.data / "jobs" / str(waiting.pk) / "1" / "output.log")
    gone = write(box.data / "jobs" / str(ended.pk) / "1" / "output.log")
    box.clean()

    assert (kept.exists(), gone.exists()) == (True, False)


def test_empty_databases_go_and_used_ones_stay(box: Box) -> None:
    box.policy(database_folders=[str(box.folder)])
    write(box.folder / "nothing.db", content=b"")
    for name in ("empty", "used"):
        path = box.folder / f"{name}.sqlite3"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE a (b)")
            if name == "empty":
                connection.execute("DROP TABLE a")
        connection.execute("VACUUM")
        connection.close()
        write(path, content=path.read_bytes())
    run = box.clean()

    assert results(run) == {"nothing.db": "deleted", "empty.sqlite3": "deleted"}
    assert [path.name for path in box.folder.iterdir()] == ["used.sqlite3"]


def test_data_goes_only_after_its_copy_is_verified(box: Box) -> None:
    box.policy(data_folders=[str(box.folder)], sync_target=str(box.target))
    box.copy = plain_copy
    write(box.folder / "deep" / "a.bin", content=b"train" * 100)
    run = box.clean()

    assert results(run) == {"a.bin": "deleted"}
    (copy,) = [path for path in box.target.rglob("*") if path.is_file()]
    assert copy == box.target / "gpubox" / str(box.folder / "deep/a.bin").lstrip("/")
    assert copy.read_bytes() == b"train" * 100


def test_a_listed_folder_never_leads_to_files_of_gpucoord(box: Box, tmp_path: Path) -> None:
    key = write(box.data / "secret_key")
    running = jobs_made.running(User.objects.create(username="alice"))
    saved = write(box.data / "jobs" / str(running.pk) / "checkpoint" / "a.pt")
    other = write(tmp_path / "beside")
    box.copy = plain_copy
    above = os.path.commonpath([box.data, tmp_path])
    box.policy(data_folders=[str(above), str(box.data)], sync_target=str(box.target))

    run = box.clean()

    assert (key.exists(), saved.exists(), other.exists()) == (True, True, False), run.problems


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another account is made by root")
def test_a_copy_does_not_run_with_the_rights_of_gpucoord(tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    program, copy = write(tmp_path / "a" / "program"), tmp_path / "b"
    os.chown(program, 1234, 1234)
    program.chmod(0o6755)
    handle = os.open(program, os.O_RDONLY)
    try:
        copying.copy(handle, copy)
    finally:
        os.close(handle)

    assert (copy.stat().st_uid, copy.stat().st_mode & 0o7777) == (0, 0o755)


def test_rsync_itself_copies_a_file_by_its_handle(tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    source, copy = write(tmp_path / "a b", content=b"train" * 1000), tmp_path / "x" / "-c"
    handle = os.open(source, os.O_RDONLY)
    try:
        copying.make_folders(tmp_path, copy.parent)
        copying.copy(handle, copy)
        assert probes.is_copy(handle, copy)
    finally:
        os.close(handle)
    assert round(copy.stat().st_mtime) == round(source.stat().st_mtime)


def failing(handle: int, target: Path) -> None:
    raise copying.CopyFailed("rsync ended with 11: No space left on device")


def lying(handle: int, target: Path) -> None:
    """It says that it has copied, as a program that was replaced might."""


def half(handle: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(os.pread(handle, 2, 0))


def wrong(handle: int, target: Path) -> None:
    plain_copy(handle, target)
    target.write_bytes(bytes(len(target.read_bytes())))


def link_to_source(handle: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(os.readlink(f"/proc/self/fd/{handle}"))


@pytest.mark.parametrize("copy", [failing, lying, half, wrong, link_to_source])
def test_without_a_good_copy_nothing_is_deleted(
    copy: Callable[[int, Path], None], box: Box
) -> None:
    box.policy(data_folders=[str(box.folder)], sync_target=str(box.target))
    box.copy = copy
    source = write(box.folder / "a.bin")
    run = box.clean()

    assert source.exists()
    assert results(run) == {"a.bin": "not copied"}
    assert str(source) in run.problems[0]
    assert not AuditEntry.objects.filter(action="FILE_CLEANED").exists()


@pytest.mark.parametrize("how", ["link", "writable", "folder of another account"])
def test_no_account_can_lead_a_copy_elsewhere(how: str, box: Box, tmp_path: Path) -> None:
    box.policy(data_folders=[str(box.folder)], sync_target=str(box.target))
    box.copy = plain_copy
    source, elsewhere, planted = write(box.folder / "a.bin"), tmp_path / "x", box.target / "gpubox"
    elsewhere.mkdir()
    if how == "link":
        planted.symlink_to(elsewhere)
    elif how == "writable":
        box.target.chmod(0o777)
    elif os.geteuid() == 0:
        planted.mkdir()
        os.chown(planted, 65534, 65534)
    else:
        pytest.skip("only root makes files of another account")

    run = box.clean()

    assert source.exists()
    assert results(run) == {"a.bin": "not copied"}
    assert "ccount can" in run.problems[0]
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("where", ["nowhere", "", "same"])
def test_without_a_usable_target_data_and_checkpoints_stay(where: str, box: Box) -> None:
    same = str(box.folder.parent)
    target = {"nowhere": str(box.target / "none"), "": "", "same": same}[where]
    box.policy(data_folders=[str(box.folder)], sync_target=target)
    source = write(box.folder / "a.bin")
    run = box.clean()

    assert source.exists()
    assert run.problems[0].startswith("Checkpoints and data stay: ")


def test_an_open_file_is_spared(box: Box) -> None:
    box.policy(log_folders=[str(box.folder)])
    log = write(box.folder / "a.log")
    with log.open("rb") as opened:
        reader = subprocess.Popen(["sleep", "60"], stdin=opened)
    try:
        assert results(box.clean()) == {"a.log": "open"}
    finally:
        reader.kill()
        reader.wait()
    assert log.exists()


def test_without_leases_open_files_are_found_in_proc(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(box.folder / "a.log")
    with log.open("rb") as reader:
        status = os.fstat(reader.fileno())
        child = subprocess.Popen(["sleep", "60"], stdin=reader)
        try:
            assert probes._is_open_anywhere(status)
        finally:
            child.kill()
            child.wait()
    assert not probes._is_open_anywhere(status)


@pytest.mark.parametrize("change", ["content", "replaced", "link", "gone"])
def test_a_file_that_changes_while_it_is_copied_is_spared(change: str, box: Box) -> None:
    box.policy(data_folders=[str(box.folder)], sync_target=str(box.target))
    source, precious = write(box.folder / "a.bin"), write(box.data / "precious", content=b"p")

    def copy(handle: int, target: Path) -> None:
        plain_copy(handle, target)
        if change == "content":
            source.write_bytes(b"new")
            return
        source.unlink()
        if change == "replaced":
            source.write_bytes(b"y" * 4096)
        elif change == "link":
            source.symlink_to(precious)

    box.copy = copy
    run = box.clean()

    assert set(results(run).values()) <= {"changed", "not copied"}
    assert precious.exists()
    assert change == "gone" or source.is_symlink() or source.exists()


def test_planted_links_lead_nowhere(box: Box, tmp_path: Path) -> None:
    box.policy(log_folders=[str(box.folder)])
    outside = write(tmp_path / "outside" / "precious.log")
    (box.folder / "folder").symlink_to(outside.parent)
    (box.folder / "file.log").symlink_to(outside)
    os.link(outside, box.folder / "hard.log")
    run = box.clean()

    assert outside.exists()
    assert run.candidates == 0


def test_a_folder_that_becomes_a_link_before_the_deletion_is_spared(
    box: Box, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside" / "a.log")
    write(box.folder / "sub" / "a.log")
    (found,) = probes.walk(str(box.folder), time.monotonic() + 60)
    (box.folder / "sub").rename(tmp_path / "moved")
    (box.folder / "sub").symlink_to(outside.parent)

    assert probes.delete(found, lambda _: True, lambda unlink: unlink()) is CleanResult.CHANGED
    assert outside.exists()


def test_a_listed_folder_behind_a_link_is_refused_with_the_reason(box: Box, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(box.folder)
    box.policy(log_folders=[str(tmp_path / "link")])
    log = write(box.folder / "a.log")
    run = box.clean()

    assert log.exists()
    assert run.problems == [
        f"{tmp_path}/link can't be cleaned: link is a link or no folder; list the real path."
    ]


def test_a_killed_clean_up_goes_on(box: Box) -> None:
    log = write(box.data / "jobs" / "1" / "1" / "output.log")
    box.clean(dry_run=True)
    run = steps.clean("gpubox", "", dry_run=False, by="root", now=NOW)
    assert steps.take("gpubox", NOW) is not None
    assert steps.take("gpubox", NOW) is None

    cleaner = Cleaner("gpubox", box.data, copy=box.copy, read=box.read)
    done = cleaner.step(NOW + 2 * steps.DEAD_AFTER)
    assert done is not None
    assert (done.pk, done.state, log.exists()) == (run.pk, "done", False)


def test_a_clean_up_goes_on_where_its_time_was_over(box: Box) -> None:
    for number in (1, 2):
        write(box.data / "jobs" / str(number) / "1" / "output.log")
    box.clean(dry_run=True)
    steps.clean("gpubox", "", dry_run=False, by="root", now=NOW)

    def clock() -> float:
        """An hour passes with the first deletion."""
        is_deleted = len(list(box.data.rglob("*.log"))) < 2
        return time.monotonic() + (3600 if is_deleted else 0)

    short = Cleaner("gpubox", box.data, copy=box.copy, read=box.read, clock=clock)
    run = short.step(NOW)
    assert run is not None
    assert (run.state, len(list(box.data.rglob("*.log")))) == ("waiting", 1)

    long = Cleaner("gpubox", box.data, copy=box.copy, read=box.read)
    assert long.step(NOW) is not None
    assert list(box.data.rglob("*.log")) == []


def test_one_clean_up_of_a_host_at_a_time(
    box: Box, root: User, as_user: Callable[[User], Client]
) -> None:
    client = as_user(root)
    body = {"dry_run": True}
    first = client.post("/api/disks/clean/", body, "application/json")
    again = client.post("/api/disks/clean/", body, "application/json")
    unknown = client.post("/api/disks/clean/", {"path": "/etc"}, "application/json")

    assert (first.status_code, again.status_code, unknown.status_code) == (201, 409, 422)
    assert "is under way" in again.json()["detail"]
    assert client.get(f"/disks/clean/{first.json()['id']}/").status_code == 200


def test_only_operators_see_and_start_clean_ups(
    box: Box, alice: User, as_user: Callable[[User], Client]
) -> None:
    run = box.clean(dry_run=True)
    client = as_user(alice)

    assert client.get(f"/disks/clean/{run.pk}/").status_code == 403
    assert client.post("/disks/clean/", {"do": "clean"}).status_code == 403
    assert "Preview clean-up" not in client.get("/disks/").content.decode()


def test_the_page_leads_from_the_preview_to_the_clean_up(
    box: Box, root: User, as_user: Callable[[User], Client]
) -> None:
    write(box.data / "jobs" / "1" / "1" / "output.log")
    run, client = box.clean(dry_run=True), as_user(root)
    html = client.get(f"/disks/clean/{run.pk}/").content.decode()
    answer = client.post("/disks/clean/", {"host": "gpubox", "path": "", "do": "clean"})

    assert "Clean up gpubox" in html
    new = CleaningRun.objects.order_by("-pk")[0]
    assert (answer["Location"], new.dry_run) == (f"/disks/clean/{new.pk}/", False)


def test_the_command_line_previews_a_clean_up_and_then_makes_it(
    box: Box,
    root: User,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = write(box.data / "jobs" / "1" / "1" / "output.log")
    # The folder is watched from now on.
    box.clean(dry_run=True)
    connect_as(root, monkeypatch)
    cleaner = Cleaner("gpubox", box.data, copy=box.copy, read=box.read)
    monkeypatch.setattr(verbs, "pause", lambda _: cleaner.step(NOW))

    assert verbs.clean(["--dry-run", "--host", "gpubox"]) == 0
    assert f"would be deleted: {log}" in capsys.readouterr().out
    assert log.exists()

    assert verbs.clean(["--path", str(box.data), "--host", "gpubox"]) == 0
    assert f"deleted: {log}" in capsys.readouterr().out
    assert not log.exists()


def test_a_small_full_file_system_is_cleaned_below_the_goal(data: Path, tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        for number in range(30):
            write(mount / "log" / f"{number}.log", 60 - number, b"x" * 100_000)
        thresholds.change("disk", {"paths": [str(mount)]}, by="root", now=NOW)
        thresholds.change("cleaning", {"log_folders": [str(mount / "log")]}, by="root", now=NOW)
        full = probes.read(str(mount)).used_pct or 0
        reading = probes.read(str(mount))
        watched = WatchedFolder(str(mount), "added")
        steps.store("gpubox", watched, reading, steps.DiskLevel.BLOCKED, "", NOW)
        steps.clean("gpubox", str(mount), dry_run=False, by="root", now=NOW)
        Cleaner("gpubox", data).step(NOW)

        left = sorted(int(path.stem) for path in (mount / "log").iterdir())
        used = probes.read(str(mount)).used_pct or 0
        assert full > 70 > 60 > used > 50
        assert left == list(range(30 - len(left), 30))
    finally:
        subprocess.run(["umount", str(mount)], check=True)
