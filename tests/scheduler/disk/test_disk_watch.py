"""The controller's part, the blocker of waiting jobs, REST, the page and metrics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.models import Event
from monitor.pages.metrics import Families
from monitor.thresholds import rows as thresholds
from scheduler import metrics
from scheduler.disk import probes as probe
from scheduler.disk import steps
from scheduler.disk.policy import DiskSpace
from scheduler.disk.steps import DiskWatch, FullDisks
from scheduler.dispatch.inputs import PlanInputs
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.plans import PlanPolicy
from scheduler.limits.throttle import pages
from scheduler.models import CleaningRun, WatchedDisk
from tests import jobs_made
from tests.builders import NOW
from tests.scheduler.disk.test_disk_policy import space

pytestmark = pytest.mark.django_db
LATER = timedelta(seconds=20)


class Disk:
    """Answers with a use that a test sets. device: that of the data folder."""

    def __init__(self, data: Path) -> None:
        self.device = probe.device_of(str(data)) or ""
        self.used_pct: float | None = 10.0

    def read(self, path: str) -> DiskSpace:
        if self.used_pct is None:
            raise probe.Unreadable("No such file or directory.")
        return space(self.used_pct, self.device)


@pytest.fixture
def disk(data: Path) -> Disk:
    return Disk(data)


@pytest.fixture
def watch(disk: Disk, data: Path) -> DiskWatch:
    return DiskWatch("gpubox", data, None, lambda *_: None, disk.read)


def blockers(alice: User, **job: object) -> list[BlockerCode]:
    made = jobs_made.waiting(alice, **job)
    queue = PlanInputs("gpubox", PlanPolicy()).queue(NOW)
    return [b.code for queued in queue if queued.id == made.pk for b in queued.waits]


def test_events_name_the_folder_and_its_use(watch: DiskWatch, disk: Disk, data: Path) -> None:
    for number, used in enumerate((10.0, 66.0, 66.5, 96.0, 10.0)):
        disk.used_pct = used
        watch.judge(None, NOW + number * LATER)

    told = list(Event.objects.order_by("pk").values_list("kind", "severity", "text"))
    assert [(kind, severity) for kind, severity, _ in told] == [
        ("DISK_SPACE_LOW", "warning"),
        ("DISK_SPACE_LOW", "error"),
        ("DISK_SPACE_OK", "info"),
    ]
    assert told[0][2].startswith(f"{data} is 66 % full; 34 GiB are left.")


def automatic_runs() -> list[tuple[str, bool]]:
    return list(CleaningRun.objects.order_by("pk").values_list("asked_by", "dry_run"))


@pytest.mark.parametrize(
    ("automatic", "used_pct", "runs"),
    [(True, 66.0, 1), (True, 90.0, 1), (True, 61.0, 0), (False, 90.0, 0)],
)
def test_a_clean_up_starts_by_itself_above_its_level_if_it_is_switched_on(
    watch: DiskWatch, disk: Disk, automatic: bool, used_pct: float, runs: int
) -> None:
    thresholds.change("cleaning", {"automatic": automatic}, by="root", now=NOW)
    disk.used_pct = used_pct
    for number in range(3):
        watch.judge(None, NOW + number * LATER)

    assert automatic_runs() == [("gpucoord", False)] * runs


def test_the_next_automatic_clean_up_waits_a_quarter_of_an_hour(
    watch: DiskWatch, disk: Disk
) -> None:
    thresholds.change("cleaning", {"automatic": True}, by="root", now=NOW)
    disk.used_pct = 90.0
    watch.judge(None, NOW)
    CleaningRun.objects.update(state="done", ended_at=NOW)

    watch.judge(None, NOW + timedelta(minutes=14))
    assert len(automatic_runs()) == 1
    watch.judge(None, NOW + timedelta(minutes=16))
    assert len(automatic_runs()) == 2


def test_a_full_log_folder_holds_every_job_of_the_host(
    watch: DiskWatch, disk: Disk, alice: User
) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW)

    assert blockers(alice) == [BlockerCode.DISK_FULL]


def test_a_disk_that_is_full_in_percent_alone_holds_no_job(
    watch: DiskWatch, disk: Disk, alice: User
) -> None:
    disk.used_pct = 75.0
    watch.judge(None, NOW)

    assert blockers(alice) == []


@pytest.mark.parametrize(
    ("used_pct", "effect"), [(75.0, None), (92.0, "jobs will soon wait"), (98.5, "jobs wait")]
)
def test_the_dashboard_says_when_the_guard_blocks_or_soon_will(
    watch: DiskWatch, disk: Disk, used_pct: float, effect: str | None
) -> None:
    disk.used_pct = used_pct
    watch.judge(None, NOW)

    lines = list(pages._disks("gpubox", NOW))

    assert [line.effect for line in lines] == ([effect] if effect else [])
    assert list(pages._disks("gpubox", NOW + timedelta(minutes=3))) == []


def test_only_jobs_that_work_on_the_full_file_system_wait(
    data: Path, disk: Disk, alice: User, tmp_path: Path
) -> None:
    away = probe.device_of("/dev/shm")
    if away in (None, disk.device):
        pytest.skip("/dev/shm is no file system of its own")
    disk.device, disk.used_pct = away or "", 96.0
    DiskWatch("gpubox", data, None, lambda *_: None, disk.read).judge(None, NOW)

    assert blockers(alice, cwd="/dev/shm") == [BlockerCode.DISK_FULL]
    assert blockers(alice, cwd=str(tmp_path)) == []


def test_a_reading_that_is_old_blocks_nothing(watch: DiskWatch, disk: Disk, alice: User) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW - steps.STALE_AFTER)

    assert blockers(alice) == []


def test_an_operators_clean_up_job_is_exempt(
    watch: DiskWatch, disk: Disk, root: User, alice: User
) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW)

    assert blockers(root, tags={"cleanup": ""}) == []
    assert blockers(alice, tags={"cleanup": ""}) == [BlockerCode.DISK_FULL]


def test_an_unreadable_folder_is_unknown_and_never_zero(
    watch: DiskWatch, disk: Disk, root: User, as_user: Callable[[User], Client]
) -> None:
    disk.used_pct = None
    watch.judge(None, NOW)

    row = WatchedDisk.objects.get()
    assert (row.used_pct, row.level) == (None, "unknown")
    answer = as_user(root).get("/api/disks/").json()
    assert (answer["disks"][0]["used_pct"], answer["disks"][0]["level"]) == (None, "unknown")
    assert "No such file or directory." in as_user(root).get("/disks/").content.decode()


def test_a_folder_that_is_watched_no_more_is_forgotten(
    watch: DiskWatch, disk: Disk, data: Path
) -> None:
    thresholds.change("disk", {"paths": ["/srv/more"]}, by="root", now=NOW)
    watch.judge(None, NOW)
    assert [row.path for row in steps.watched_disks()] == sorted([str(data), "/srv/more"])

    thresholds.change("disk", {}, by="root", now=NOW)
    watch.judge(None, NOW + LATER)
    assert [row.path for row in steps.watched_disks()] == [str(data)]


def test_the_page_and_rest_show_what_is_read(
    watch: DiskWatch, disk: Disk, alice: User, as_user: Callable[[User], Client], data: Path
) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW)
    client = as_user(alice)

    (line,) = client.get("/api/disks/").json()["disks"]
    assert (line["path"], line["level"], line["used_pct"]) == (str(data), "blocked", 98.5)
    assert str(data) in client.get("/disks/").content.decode()


def test_the_page_says_which_levels_are_off(
    alice: User, as_user: Callable[[User], Client], data: Path
) -> None:
    shown = as_user(alice).get("/disks/").content.decode()
    assert "Above 70 %, with less than 50 GiB or 5 % free" in shown
    thresholds.change("disk", {"clean_pct": 100, "block_pct": 100}, by="root", now=NOW)

    off = as_user(alice).get("/disks/").content.decode()

    assert "Above 60 %: an event" in off
    assert "Clean-up: off" in off
    assert "Above 100" not in off


def test_metrics_have_the_use_of_each_folder(watch: DiskWatch, disk: Disk, data: Path) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW)
    into = Families()
    metrics.add_metrics(into, NOW)

    values = {s.name: s.value for family in into.collect() for s in family.samples}
    assert values["gpucoord_watched_disk_used_percent"] == 98.5
    assert values["gpucoord_watched_disk_blocked"] == 1


def test_a_file_system_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hang(path: str) -> DiskSpace:
        asked.append(path)
        time.sleep(1)
        return space(1.0)

    monkeypatch.setattr(probe, "_ask", hang)
    for _ in range(2):
        with pytest.raises(probe.Unreadable, match="does not answer"):
            probe.read("/dead", patience_s=0.05)
    assert asked == ["/dead"]


def test_a_real_folder_is_read_as_df_does(tmp_path: Path) -> None:
    found = probe.read(str(tmp_path))

    assert found.device == probe.device_of(str(tmp_path / "not" / "yet"))
    assert found.used_pct is not None
    with pytest.raises(probe.Unreadable, match="No such file"):
        probe.read(str(tmp_path / "none"))


def test_many_folders_that_do_not_answer_hold_up_no_plan(
    watch: DiskWatch, disk: Disk, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.used_pct = 98.5
    watch.judge(None, NOW)
    asked = []

    def no_answer(path: str, patience_s: float) -> str | None:
        asked.append(path)
        return disk.device if path.startswith(str(data)) else None

    monkeypatch.setattr(probe, "device_of", no_answer)
    full = FullDisks("gpubox")
    blocked = [full.of_new(f"/dead/{number}", NOW) for number in range(100)]

    assert len(asked) < 10
    assert all(len(found) == 1 for found in blocked)


def test_a_link_to_a_dead_file_system_has_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    link = tmp_path / "link"
    link.symlink_to("/dead")
    stat = os.stat

    def stat_or_hang(path: object, **options: bool) -> os.stat_result:
        if str(path) == str(link) and options.get("follow_symlinks", True):
            never.wait()
        return stat(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat_or_hang)
    began = time.monotonic()

    assert probe.device_of(str(link), patience_s=0.1) is None
    assert probe.device_of(str(link), patience_s=60) is None
    assert time.monotonic() - began < 30
    never.set()
