from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.facts.accounts import NO_LOGIN, AccountRanges
from monitor.facts.readings import OwnerSource
from monitor.owners.policy import (
    Credentials,
    Owner,
    UidRange,
    owner_of,
    subordinate_lines,
    uid_map_of,
)
from monitor.owners.probes.credentials import account_ranges

ALICE, BOB, SHARED = 1001, 1002, 1500
SUBUID = (UidRange(100_000, 65_536, ALICE), UidRange(165_536, 65_536, BOB))
ROOTLESS = (UidRange(ALICE, 1), UidRange(100_000, 65_536))


@pytest.mark.parametrize(
    ("uid", "login", "container", "expected", "source"),
    [
        (1001, 1001, None, 1001, OwnerSource.UID),
        (0, 1001, None, 1001, OwnerSource.LOGIN),
        (33, 1001, None, 1001, OwnerSource.LOGIN),
        (1002, 1001, None, None, OwnerSource.UNKNOWN),
        (0, NO_LOGIN, None, 0, OwnerSource.UID),
        (0, None, None, 0, OwnerSource.UID),
        (0, 0, None, 0, OwnerSource.UID),
        (0, 1001, "docker 0123456789ab", None, OwnerSource.UNKNOWN),
        (1001, 1001, "docker 0123456789ab", None, OwnerSource.UNKNOWN),
        (None, 1001, None, None, OwnerSource.UNKNOWN),
    ],
)
def test_a_process_of_the_host_belongs_to_its_login_or_its_uid(
    uid: int | None,
    login: int | None,
    container: str | None,
    expected: int | None,
    source: OwnerSource,
) -> None:
    process = Credentials(uid=uid, login_uid=login, container=container)
    assert owner_of(process) == Owner(expected, source)


HERE: dict[str, object] = {}
CHANGED_ROOT: dict[str, object] = {"has_host_mounts": False}
OF_SLICE: dict[str, object] = {"has_host_mounts": False, "session_uid": ALICE}


@pytest.mark.parametrize(
    ("shape", "uid", "login", "place", "expected"),
    [
        # root runs a program as alice among other mounts.
        ("unshare -m setpriv --reuid=alice", ALICE, NO_LOGIN, CHANGED_ROOT, None),
        ("bob: sudo unshare -m setpriv --reuid=alice", ALICE, BOB, CHANGED_ROOT, None),
        ("root by ssh: unshare -m setpriv --reuid=alice", ALICE, 0, CHANGED_ROOT, None),
        ("chroot --userspec=alice", ALICE, None, CHANGED_ROOT, None),
        ("bob: sudo podman --cgroups=disabled --user alice", ALICE, BOB, CHANGED_ROOT, None),
        ("bob's session, alice's login", BOB, ALICE, {**CHANGED_ROOT, "session_uid": BOB}, None),
        # The kernel keeps the login, and systemd the session.
        ("alice: apptainer exec --pid", ALICE, ALICE, CHANGED_ROOT, ALICE),
        ("alice: bwrap --unshare-pid", ALICE, ALICE, CHANGED_ROOT, ALICE),
        ("alice: firejail", ALICE, ALICE, CHANGED_ROOT, ALICE),
        ("alice: systemd-run --user bwrap", ALICE, NO_LOGIN, OF_SLICE, ALICE),
        ("alice: sudo chroot", 0, ALICE, CHANGED_ROOT, ALICE),
        # The mounts of the host.
        ("alice: sudo -u bob", BOB, ALICE, HERE, None),
        ("alice: sudo -u bob, without audit", BOB, None, {"session_uid": ALICE}, None),
        ("root by ssh: su bob", BOB, 0, HERE, None),
        ("bob by ssh", BOB, BOB, HERE, BOB),
        ("bob: systemd-run --user", BOB, NO_LOGIN, {"session_uid": BOB}, BOB),
        ("a shared account by ssh", SHARED, SHARED, HERE, SHARED),
        ("alice: sudo -u shared", SHARED, ALICE, HERE, None),
        ("alice: sudo", 0, ALICE, HERE, ALICE),
        ("bob's crontab, PAM sets the login", BOB, BOB, HERE, BOB),
        ("bob's crontab without it", BOB, NO_LOGIN, HERE, BOB),
        ("systemd, User=bob", BOB, NO_LOGIN, HERE, BOB),
        ("systemd, User=bob, without audit", BOB, None, HERE, BOB),
        ("libvirt-qemu", 64_055, NO_LOGIN, HERE, None),
        ("systemd DynamicUser", 61_184, NO_LOGIN, HERE, None),
        ("nobody", 65_534, NO_LOGIN, HERE, None),
        ("alice: sudo -u nobody", 65_534, ALICE, HERE, ALICE),
        ("a directory's uid", 1_412_001_104, NO_LOGIN, HERE, 1_412_001_104),
        ("systemd-homed", 60_100, NO_LOGIN, HERE, 60_100),
        ("a daemon among other mounts", 0, NO_LOGIN, CHANGED_ROOT, 0),
    ],
)
def test_a_uid_names_a_person_only_on_the_host_or_with_its_login_and_against_no_login(
    shape: str, uid: int, login: int | None, place: dict[str, object], expected: int | None
) -> None:
    process = Credentials(uid=uid, login_uid=login, **place)  # type: ignore[arg-type]
    assert owner_of(process).uid == expected, shape


def test_the_ranges_of_the_host_say_who_is_a_person() -> None:
    ranges = AccountRanges(uid_min=500, sys_uid_min=500, sys_uid_max=699)
    people = [uid for uid in (0, 499, 500, 699, 700, 1000, 60_600) if ranges.is_person(uid)]
    assert people == [700, 1000]
    assert owner_of(Credentials(uid=700), ranges=ranges).uid == 700


def test_the_ranges_are_read_from_login_defs(tmp_path: Path) -> None:
    path = tmp_path / "login.defs"
    path.write_text("# UID_MIN 7\nUID_MIN\t\t 500\n#SYS_UID_MAX 999\nUID_MAX x\nSYS_UID_MAX 499\n")
    assert account_ranges(path) == AccountRanges(uid_min=500, sys_uid_max=499)
    assert account_ranges(tmp_path / "absent") == AccountRanges()


@pytest.mark.parametrize(
    "evidence",
    [
        {"login_uid": 0},
        {"login_uid": BOB},
        {"login_uid": BOB, "session_uid": ALICE},
        {"session_uid": BOB},
        {"session_uid": 0},
        {"entered_uid": 0},
        {"login_uid": NO_LOGIN, "entered_uid": BOB},
    ],
)
def test_a_process_that_entered_a_namespace_is_not_of_its_maker(evidence: dict[str, int]) -> None:
    known: dict[str, object] = {"uid_map": ROOTLESS, "namespace_owner_uid": ALICE}
    assert owner_of(inside(**known, **evidence), SUBUID).uid is None  # type: ignore[arg-type]
    assert owner_of(inside(**known, entered_uid=ALICE), SUBUID).uid == ALICE  # type: ignore[arg-type]


def inside(uid: int = 100_033, **facts: object) -> Credentials:
    known = {"container": "podman 0123456789ab", "is_in_host_namespace": False} | facts
    return Credentials(uid=uid, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        (
            inside(uid_map=ROOTLESS, namespace_owner_uid=ALICE),
            Owner(ALICE, OwnerSource.SUBUID),
        ),
        (inside(uid_map=ROOTLESS, session_uid=ALICE), Owner(ALICE, OwnerSource.SUBUID)),
        (
            inside(uid_map=(UidRange(ALICE, 1),), namespace_owner_uid=ALICE),
            Owner(ALICE, OwnerSource.RUNTIME),
        ),
        # A namespace in a namespace: its maker is a subordinate uid.
        (
            inside(uid_map=(UidRange(100_033, 1),), namespace_owner_uid=100_033),
            Owner(ALICE, OwnerSource.SUBUID),
        ),
    ],
)
def test_a_rootless_container_belongs_to_the_account_that_started_it(
    process: Credentials, expected: Owner
) -> None:
    assert owner_of(process, SUBUID) == expected


@pytest.mark.parametrize(
    "process",
    [
        # A runtime of root that maps containers to the ranges of a person.
        inside(uid_map=(UidRange(100_000, 65_536),), namespace_owner_uid=0),
        inside(uid_map=(UidRange(100_000, 65_536),)),
        inside(uid_map=(UidRange(100_000, 65_536),), session_uid=BOB),
        inside(uid_map=(UidRange(165_536, 65_536),), namespace_owner_uid=ALICE),
        inside(uid=ALICE, uid_map=(UidRange(0, 65_536),), namespace_owner_uid=0),
    ],
)
def test_a_container_of_another_maker_has_no_known_owner(process: Credentials) -> None:
    assert owner_of(process, SUBUID).uid is None


UIDS = st.sampled_from([0, 33, 998, ALICE, BOB, 1003, 100_000, 100_033, 165_600, 300_000])
RANGES = st.builds(UidRange, UIDS, st.sampled_from([1, 1000, 65_536]))


@settings(max_examples=400)
@given(
    maker=st.sampled_from([0, 998, ALICE, BOB, 100_033, 165_600]),
    uid=UIDS,
    login=st.none() | UIDS,
    session=st.none() | UIDS,
    uid_map=st.lists(RANGES, max_size=3),
    in_host=st.booleans(),
)
def test_no_container_names_a_person_who_did_not_start_it(
    maker: int,
    uid: int,
    login: int | None,
    session: int | None,
    uid_map: list[UidRange],
    in_host: bool,
) -> None:
    """The kernel says who made the namespace; containers of root run in that of the host too."""
    process = Credentials(
        uid=uid,
        login_uid=login,
        container="docker 0123456789ab",
        is_in_host_namespace=in_host,
        uid_map=tuple(uid_map),
        namespace_owner_uid=None if in_host else maker,
        session_uid=session,
    )
    truth = {ALICE: ALICE, BOB: BOB, 100_033: ALICE, 165_600: BOB}.get(maker)
    assert owner_of(process, SUBUID).uid in {None, None if in_host else truth}


def test_files_of_the_kernel_and_of_subuid_are_read_line_by_line() -> None:
    assert uid_map_of("  0 1001 1\n 1 100000 65536\nnonsense\n1 2\n") == ROOTLESS
    lines = "# comment\nalice:100000:65536\n\n1002:165536:65536\nbad:x:1\nbad:1\n"
    assert list(subordinate_lines(lines)) == [("alice", 100_000, 65_536), ("1002", 165_536, 65_536)]
