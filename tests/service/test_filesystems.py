from __future__ import annotations

from pathlib import Path

import pytest

from gpucoord_site.service.startup_checks import mount_of, network_problem

LINE = "36 35 0:30 / {point} rw,relatime shared:1 - {kind} {source} rw"
ROOT_DISK = LINE.format(point="/", kind="ext4", source="/dev/vda1")


def _mounts(*others: tuple[str, str, str]) -> str:
    lines = (LINE.format(point=p, kind=k, source=s) for p, k, s in others)
    return "\n".join([ROOT_DISK, *lines])


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "lustre", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_what_to_do(kind: str) -> None:
    mounts = _mounts(("/srv/share", kind, "server:/export"))

    problem = network_problem(Path("/srv/share/gpucoord/db.sqlite3"), mounts)

    assert problem
    assert f"({kind}, server:/export on /srv/share)" in problem
    assert "GPUCOORD_DATA" in problem


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk"])
def test_a_file_system_of_this_machine_is_fine(kind: str) -> None:
    mounts = _mounts(("/srv/share", kind, "/dev/sdb1"))

    assert network_problem(Path("/srv/share/db.sqlite3"), mounts) is None


def test_a_local_disk_mounted_inside_a_share_is_fine() -> None:
    mounts = _mounts(("/srv", "nfs4", "server:/srv"), ("/srv/local", "xfs", "/dev/sdb1"))

    assert network_problem(Path("/srv/local/db.sqlite3"), mounts) is None


def test_a_folder_beside_a_share_with_the_same_beginning_is_fine() -> None:
    assert network_problem(Path("/srv2/db.sqlite3"), _mounts(("/srv", "nfs", "s:/"))) is None


def test_the_later_of_two_mounts_on_one_point_counts() -> None:
    mounts = _mounts(("/srv", "nfs", "s:/"), ("/srv", "ext4", "/dev/sdb1"))

    assert network_problem(Path("/srv/db.sqlite3"), mounts) is None


def test_a_mount_point_with_a_space_is_understood() -> None:
    mounts = _mounts((r"/srv/my\040share", "nfs", "s:/"))

    assert network_problem(Path("/srv/my share/db.sqlite3"), mounts)


def test_a_link_into_a_share_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "share")
    mounts = _mounts((str((tmp_path / "share").resolve()), "nfs", "s:/"))

    assert network_problem(tmp_path / "data" / "db.sqlite3", mounts)


def test_this_machines_own_mounts_are_read(tmp_path: Path) -> None:
    mount = mount_of(tmp_path)

    assert mount
    assert tmp_path.is_relative_to(mount.point)
