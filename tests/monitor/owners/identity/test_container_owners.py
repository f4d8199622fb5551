"""Owners of processes in containers: evidence names them, labels and uids inside do not."""

from __future__ import annotations

import json
import pwd
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from monitor.facts.accounts import NO_LOGIN
from monitor.facts.readings import OwnerSource
from monitor.owners.policy import (
    Credentials,
    Owner,
    UidRange,
    container_id_of,
    job_cgroup_of,
    owner_of,
)
from monitor.owners.probes import credentials as homes
from monitor.owners.probes.credentials import (
    NO_LABELS,
    PENDING,
    ContainerLabels,
    ContainerRuntimes,
    labels_of,
)
from tests.processes.service import wait_until

PROF, ALICE, BOB = 1000, 1001, 1002
PEOPLE = (PROF, ALICE, BOB)
RANGES = {uid: UidRange(100_000 + 65_536 * i, 65_536, uid) for i, uid in enumerate(PEOPLE)}
SUBUID = tuple(RANGES.values())
DOCKER, PODMAN = "docker 0123456789ab", "podman 0123456789ab"
ID = "0123456789abcdef" * 4


def docker(uid: int = 1000, **facts: Any) -> Credentials:
    return Credentials(uid=uid, container=DOCKER, **facts)


def test_a_closed_home_that_is_mounted_names_its_owner() -> None:
    process = docker(mount_owners=frozenset({ALICE}))

    assert owner_of(process) == Owner(ALICE, OwnerSource.MOUNT)


def test_two_homes_name_no_one() -> None:
    assert owner_of(docker(mount_owners=frozenset({ALICE, BOB}))).uid is None


def test_a_label_alone_names_no_one() -> None:
    assert owner_of(docker(labelled=frozenset({ALICE}))).uid is None


def test_a_forged_label_makes_the_owner_unknown() -> None:
    process = docker(mount_owners=frozenset({BOB}), labelled=frozenset({ALICE}))

    assert owner_of(process).uid is None
    assert owner_of(replace(process, labelled=frozenset({"stranger"}))).uid is None
    assert owner_of(replace(process, labelled=frozenset({BOB}))).uid == BOB


def test_the_owner_is_unknown_until_the_labels_are_read() -> None:
    process = docker(mount_owners=frozenset({BOB}), is_labelled_known=False)

    assert owner_of(process).uid is None


def test_the_login_of_docker_is_not_that_of_its_containers() -> None:
    assert owner_of(docker(login_uid=ALICE)).uid is None


def test_podman_by_sudo_belongs_to_the_login() -> None:
    process = Credentials(uid=0, container=PODMAN, login_uid=ALICE)

    assert owner_of(process) == Owner(ALICE, OwnerSource.LOGIN)
    assert owner_of(replace(process, login_uid=NO_LOGIN)).uid is None
    assert owner_of(replace(process, mount_owners=frozenset({BOB}))).uid is None


def test_remapped_uids_of_docker_leave_the_mounts_as_evidence() -> None:
    remapped = UidRange(300_000, 65_536)
    process = docker(
        uid=301_000, is_in_host_namespace=False, uid_map=(remapped,), namespace_owner_uid=0
    )

    assert owner_of(process, SUBUID).uid is None
    assert owner_of(replace(process, mount_owners=frozenset({BOB})), SUBUID).uid == BOB


@dataclass(frozen=True)
class Shape:
    """A container with the person who started it. in_job: it runs in the cgroup of their job."""

    starter: int
    process: Credentials
    in_job: bool = False


def rootless(chance: random.Random, starter: int) -> Shape:
    own = RANGES[starter]
    uid = chance.choice([starter, own.first + chance.choice([33, 999, 1000])])
    process = Credentials(
        uid=uid,
        container=chance.choice([PODMAN, "container"]),
        is_in_host_namespace=False,
        uid_map=(UidRange(starter, 1), own),
        namespace_owner_uid=starter,
        session_uid=chance.choice([starter, None]),
    )
    return Shape(starter, process)


def mounts_own_home(chance: random.Random, starter: int) -> Shape:
    process = docker(
        uid=chance.choice([0, 1000, starter]),
        mount_owners=frozenset({starter}),
        login_uid=chance.choice([NO_LOGIN, PROF]),
        labelled=chance.choice([frozenset(), frozenset({starter})]),
    )
    return Shape(starter, process)


def mounts_open_data(chance: random.Random, starter: int) -> Shape:
    """Data in the open home of another person is no evidence, so no owner is read from it."""
    return Shape(starter, docker(uid=chance.choice([0, 1000]), login_uid=PROF))


def mounts_nothing(chance: random.Random, starter: int) -> Shape:
    kind = chance.choice([DOCKER, "pod 1b2c3d4e", "containerd 0123456789ab", "lxc box"])
    return Shape(starter, Credentials(uid=chance.choice([0, 1000, 1001]), container=kind))


def forges_a_label(chance: random.Random, starter: int) -> Shape:
    victim = chance.choice([uid for uid in PEOPLE if uid != starter])
    mounts = chance.choice([frozenset(), frozenset({starter})])
    return Shape(starter, docker(mount_owners=mounts, labelled=frozenset({victim})))


def by_sudo(chance: random.Random, starter: int) -> Shape:
    return Shape(starter, Credentials(uid=1000, container=PODMAN, login_uid=starter))


def apptainer(chance: random.Random, starter: int) -> Shape:
    return Shape(starter, Credentials(uid=starter, login_uid=starter))


def in_a_job(chance: random.Random, starter: int) -> Shape:
    return Shape(starter, docker(uid=0, job_cgroup="/gpucoord/0-job-7-1"), in_job=True)


# How many of 50 containers in a lab are of each kind.
KINDS: tuple[tuple[Callable[[random.Random, int], Shape], int], ...] = (
    (rootless, 10),
    (mounts_own_home, 16),
    (apptainer, 6),
    (in_a_job, 4),
    (by_sudo, 3),
    (mounts_open_data, 4),
    (mounts_nothing, 4),
    (forges_a_label, 3),
)


@pytest.mark.parametrize("seed", range(20))
def test_of_fifty_containers_most_are_named_and_none_wrongly(seed: int) -> None:
    chance = random.Random(seed)
    shapes = [make(chance, chance.choice(PEOPLE)) for make, count in KINDS for _ in range(count)]
    # The job's cgroup is the first rung of the ladder, above the owner by uid.
    named = [s.starter if s.in_job else owner_of(s.process, SUBUID).uid for s in shapes]
    wrong = [s for s, uid in zip(shapes, named, strict=True) if uid not in (None, s.starter)]

    assert wrong == []
    assert sum(uid is not None for uid in named) >= 0.7 * len(shapes)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of uid 4321, as far as stat and NSS say."""
    folder = tmp_path / "home" / "dora"
    (folder / "project").mkdir(parents=True)
    folder.chmod(0o700)
    entry = pwd.struct_passwd(("dora", "x", 4321, 4321, "", str(folder), "/bin/sh"))
    real = Path.stat

    def stat(path: Path, **options: bool) -> Any:
        found = real(path, **options)
        if not path.is_relative_to(folder):
            return found
        fields = list(found)
        fields[4] = fields[5] = 4321
        return type(found)(fields)

    def account(uid: int) -> pwd.struct_passwd:
        if uid != 4321:
            raise KeyError(uid)
        return entry

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(pwd, "getpwuid", account)
    return folder


def test_a_closed_home_is_evidence_and_so_is_a_folder_in_it(home: Path) -> None:
    assert homes.owners_of([home]) == {4321}
    assert homes.owners_of([home / "project"]) == {4321}


def test_an_open_home_is_no_evidence(home: Path) -> None:
    home.chmod(0o755)

    assert homes.owners_of([home, home / "project"]) == frozenset()


def test_a_closed_folder_in_an_open_home_is_evidence(home: Path) -> None:
    home.chmod(0o755)
    (home / "project").chmod(0o700)

    assert homes.owners_of([home / "project"]) == {4321}


def test_a_home_that_is_open_to_a_shared_group_is_no_evidence(home: Path) -> None:
    home.chmod(0o750)

    assert homes.owners_of([home]) == frozenset()


def test_folders_outside_of_a_home_are_no_evidence(home: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir(mode=0o700)

    assert homes.owners_of([tmp_path / "volume", home.parent, home / "gone"]) == frozenset()


HOST = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 /@home /home rw,relatime shared:2 - btrfs /dev/sdb1 rw
31 22 0:25 / /tmp rw - tmpfs tmpfs rw
"""
INSIDE = """\
500 400 0:60 / / rw,relatime - overlay overlay rw,lowerdir=x
501 500 8:2 /@home/dora/my\\040data /data rw,relatime - btrfs /dev/sdb1 rw
502 500 8:1 /var/lib/docker/containers/x/hosts /etc/hosts rw - ext4 /dev/sda1 rw
503 500 8:9 /elsewhere /more rw - ext4 /dev/sdz1 rw
504 500 garbage
"""


def test_mounts_are_found_again_on_the_host() -> None:
    assert homes.sources(INSIDE, HOST) == (
        Path("/home/dora/my data"),
        Path("/var/lib/docker/containers/x/hosts"),
    )


def _mounts(count: int, folders: int) -> str:
    line = "501 500 8:2 /@home/dora/{} /data/{} rw - btrfs /dev/sdb1 rw\n"
    return "".join(line.format(index % folders, index) for index in range(count))


def test_as_many_folders_as_are_looked_at_are_all_found() -> None:
    inside = _mounts(homes.MOST_MOUNTS, folders=homes.MOST_SOURCES)

    assert len(homes.sources(inside, HOST)) == homes.MOST_SOURCES


@pytest.mark.parametrize(
    ("mounts", "folders"),
    [
        (homes.MOST_SOURCES + 1, homes.MOST_SOURCES + 1),
        (homes.MOST_MOUNTS + 1, 1),
    ],
)
def test_a_container_that_mounts_too_much_names_no_folder(mounts: int, folders: int) -> None:
    """A part of its folders could name one of several persons."""
    assert homes.sources(_mounts(mounts, folders), HOST) == ()


def test_a_folder_beside_a_mount_of_the_host_is_not_below_it() -> None:
    beside = "501 500 8:2 /@homes/dora /data rw - btrfs /dev/sdb1 rw\n"

    assert homes.sources(beside, HOST) == ()


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/gpucoord/0-job-12-1", "/gpucoord/0-job-12-1"),
        ("0::/a/gpucoord/0-job-12-1/libpod-x", "/a/gpucoord/0-job-12-1"),
        ("5:devices:/\n0::/gpucoord/7-job-3-2\n", "/gpucoord/7-job-3-2"),
        (
            "0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0",
            "/system.slice/slurmstepd.scope/job_123",
        ),
        (
            "0::/system.slice/gpu1_slurmstepd.scope/job_9/step_0",
            "/system.slice/gpu1_slurmstepd.scope/job_9",
        ),
        ("4:memory:/slurm/uid_1000/job_7/step_batch", "/slurm/uid_1000/job_7"),
        ("8:devices:/slurm_gpu1/uid_1000/job_7/step_0/task_1", "/slurm_gpu1/uid_1000/job_7"),
        ("0::/user.slice/job_7", ""),
        ("0::/user.slice/session-1.scope", ""),
        ("0::/my-job-list", ""),
        ("", ""),
    ],
)
def test_the_cgroup_of_a_job_is_recognised(cgroup: str, path: str) -> None:
    assert job_cgroup_of(cgroup) == path


def test_a_container_has_its_full_id() -> None:
    assert container_id_of(f"0::/system.slice/docker-{ID}.scope") == ID
    assert container_id_of("0::/user.slice") is None


def test_labels_name_people_by_name_and_by_path(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = pwd.struct_passwd(("bob", "", BOB, 1, "", "", ""))
    monkeypatch.setattr(pwd, "getpwnam", {"bob": bob}.__getitem__)
    labels = {
        "gpucoord.user": "bob",
        "devcontainer.local_folder": str(home / "project"),
        "com.docker.compose.project.working_dir": "relative",
        "maintainer": "carl",
    }
    found = labels_of({"Name": "/jupyter-3", "Config": {"Labels": labels}})

    assert found == ContainerLabels("jupyter-3", people=frozenset({BOB, 4321}))


@pytest.mark.parametrize(("label", "job"), [("12", "12"), ("x", ""), ("-1", ""), ("1" * 30, "")])
def test_a_label_names_a_job_by_its_number(label: str, job: str) -> None:
    assert labels_of({"Config": {"Labels": {"gpucoord.job": label}}}).job == job


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"Config": None},
        {"Config": {"Labels": None}},
        {"Config": {"Labels": [1]}},
        {"Name": "\x1b[31m"},
        {"Name": 7, "Config": "x"},
    ],
)
def test_odd_answers_of_a_runtime_name_no_one(answer: dict[str, Any]) -> None:
    assert labels_of(answer).people == frozenset()


@dataclass
class FakeRuntime:
    path: Path
    answer: bytes
    requests: list[str]


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    """A runtime on a Unix socket that gives every request the same answer."""
    fake = FakeRuntime(tmp_path / "docker.sock", b"", [])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(fake.path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as connection:
                        fake.requests.append(connection.recv(4096).decode().splitlines()[0])
                        connection.sendall(fake.answer)

        threading.Thread(target=serve, daemon=True).start()
        yield fake
        listening.shutdown(socket.SHUT_RDWR)


def http(body: Any, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + data


def settled(runtimes: ContainerRuntimes) -> ContainerLabels:
    found = runtimes.labels(ID)
    wait_until(lambda: runtimes.labels(ID) is not PENDING, 20, "an answer of the runtime")
    return runtimes.labels(ID) if found is PENDING else found


def test_a_runtime_is_asked_once_and_only_to_describe(runtime: FakeRuntime) -> None:
    runtime.answer = http({"Name": "/jupyter-3"})
    runtimes = ContainerRuntimes([runtime.path])

    assert [settled(runtimes).name, settled(runtimes).name] == ["jupyter-3", "jupyter-3"]
    assert runtime.requests == [f"GET /containers/{ID}/json HTTP/1.1"]


@pytest.mark.parametrize("answer", [http({}, "404 Not Found"), b"no HTTP", http([1]), b""])
def test_a_runtime_without_a_useful_answer_is_left_out(runtime: FakeRuntime, answer: bytes) -> None:
    runtime.answer = answer

    assert settled(ContainerRuntimes([runtime.path])) == NO_LABELS


def test_an_absent_socket_is_skipped(tmp_path: Path) -> None:
    assert ContainerRuntimes([tmp_path / "absent.sock"]).labels(ID) == NO_LABELS
