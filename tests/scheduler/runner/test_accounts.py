from __future__ import annotations

import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from scheduler.runner import accounts
from scheduler.runner.accounts import Account, MissingAccount, account_for, environment

PEOPLE = {"alice": 1001, "daemon": 1, "nobody": 65534, "root": 0}


def _entry(name: str) -> pwd.struct_passwd:
    if name not in PEOPLE:
        raise KeyError(name)
    uid = PEOPLE[name]
    return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", "/bin/bash"))


@pytest.fixture(autouse=True)
def _accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "directories", list)
    monkeypatch.setattr("pwd.getpwnam", _entry)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: _entry("root" if uid == 0 else "alice"))
    monkeypatch.setattr("os.getgrouplist", lambda name, gid: [gid, 44])
    monkeypatch.setattr("os.geteuid", lambda: 0)


def test_people_with_an_account_run_as_themselves() -> None:
    account = account_for("alice", account="alice", superuser=False, run_as="auto")

    assert (account.name, account.uid, account.gid, account.groups) == (
        "alice",
        1001,
        1001,
        (1001, 44),
    )


WITHOUT_ACCOUNT = ["bob", "daemon", "nobody", "root", "", "a\0b"]


@pytest.mark.parametrize("owner", WITHOUT_ACCOUNT)
def test_a_user_without_an_account_is_refused(owner: str) -> None:
    with pytest.raises(MissingAccount, match="create the OS account"):
        account_for(owner, account=owner, superuser=False, run_as="auto")


@pytest.mark.parametrize("owner", WITHOUT_ACCOUNT)
def test_users_share_the_account_nobody_only_when_the_setting_says_so(owner: str) -> None:
    assert account_for(owner, account=owner, superuser=False, run_as="nobody").name == "nobody"


def test_a_user_with_an_account_keeps_it_when_others_share_one() -> None:
    assert account_for("alice", account="alice", superuser=False, run_as="nobody").uid == 1001


def test_the_assigned_account_counts_and_not_the_user_name() -> None:
    account = account_for("a.smith", account="alice", superuser=False, run_as="auto")

    assert account.uid == 1001


def test_a_user_without_an_assigned_account_is_refused_even_if_one_has_their_name() -> None:
    with pytest.raises(MissingAccount, match="No OS account is assigned to alice"):
        account_for("alice", account=None, superuser=False, run_as="auto")


def test_an_account_found_by_another_spelling_is_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pwd.getpwnam", lambda name: _entry(name.lower()))

    with pytest.raises(MissingAccount):
        account_for("Alice", account="Alice", superuser=False, run_as="auto")


def test_superusers_without_one_run_as_the_service() -> None:
    account = account_for("admin", account="admin", superuser=True, run_as="auto")

    assert (account.name, account.uid) == ("root", None)


def test_everybody_runs_as_the_service_when_it_is_told_so() -> None:
    assert account_for("alice", account="alice", superuser=False, run_as="service").uid is None


def test_everybody_runs_as_the_service_when_it_is_not_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1001)

    assert account_for("bob", account="bob", superuser=False, run_as="auto") == Account(
        "alice", "/home/alice", "/bin/bash"
    )


def test_a_member_of_a_group_has_it_as_the_primary_one() -> None:
    account = Account("alice", "/", uid=1001, gid=1001, groups=(1001, 1))

    assert accounts.in_group(account, "daemon").gid == 1
    assert accounts.in_group(account, "").gid == 1001
    assert accounts.in_group(Account("root", "/"), "daemon").gid is None
    for other in ("mail", "no-such-group"):
        with pytest.raises(MissingAccount, match="no member"):
            accounts.in_group(account, other)


def _environment(account: Account, environ: dict[str, str]) -> dict[str, str]:
    return environment(
        account, environ, job_id=7, attempt=2, nonce="n", gpu_uuids=["GPU-a", "GPU-b"]
    )


def test_the_environment_names_the_job_and_its_gpus() -> None:
    env = _environment(account_for("alice", account="alice", superuser=False, run_as="auto"), {})

    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (env["GPUCOORD_JOB_ID"], env["GPUCOORD_ATTEMPT"], env["GPUCOORD_NONCE"]) == (
        "7",
        "2",
        "n",
    )
    assert (env["HOME"], env["USER"], env["SHELL"]) == ("/home/alice", "alice", "/bin/bash")


def test_people_may_change_all_but_their_gpus_and_identity() -> None:
    environ = {"PATH": "/opt/bin", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    env = _environment(
        account_for("alice", account="alice", superuser=False, run_as="auto"), environ
    )

    assert (env["PATH"], env["PYTHONUNBUFFERED"]) == ("/opt/bin", "")
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_another_account_gets_no_search_path_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/root/bin")
    own = account_for("admin", account="admin", superuser=True, run_as="auto")
    alice = account_for("alice", account="alice", superuser=False, run_as="auto")

    assert _environment(own, {})["PATH"] == "/root/bin"
    assert _environment(alice, {})["PATH"] == accounts.SYSTEM_PATH


def test_no_job_gets_the_time_zone_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django sets TZ in the service; a job has the machine's, as in a login shell."""
    monkeypatch.setenv("TZ", "UTC")
    account = account_for("alice", account="alice", superuser=False, run_as="auto")

    assert "TZ" not in _environment(account, {})
    assert _environment(account, {"TZ": "Asia/Tokyo"})["TZ"] == "Asia/Tokyo"


def test_a_home_that_is_not_there_is_no_place_to_start() -> None:
    assert accounts.start_folder(Account("x", "/no/such/home")) == "/tmp"


def test_a_service_whose_uid_has_no_account_runs_jobs_as_that_uid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: _entry("no such account"))
    monkeypatch.setenv("HOME", "/data")

    account = account_for("alice", account=None, superuser=False, run_as="auto")

    assert (account.name, account.home, account.uid) == ("4711", "/data", None)


@pytest.mark.parametrize(
    ("uid", "mode", "words"),
    [(None, 0o700, 3), (0, 0o700, 3), (1001, 0o755, 3), (1001, 0o700, 4)],
)
def test_an_account_starts_programs_that_are_closed_to_it_by_their_text(
    uid: int | None, mode: int, words: int
) -> None:
    accounts._is_open.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text("print(7)")
        program.chmod(0o644)
        Path(folder).chmod(mode)
        made = accounts.python_program(program, Account("alice", "/", uid=uid, gid=uid))

    assert len(made) == words
    assert made[-1] == (str(program) if words == 3 else "print(7)")


def test_an_account_starts_the_system_s_python_where_the_service_s_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "_is_open", lambda path: path == accounts.SYSTEM_PYTHON)
    of = accounts.python_program

    assert of(Path(__file__), Account("alice", "/", uid=1001, gid=1001))[0] == "/usr/bin/python3"
    assert of(Path(__file__), Account("root", "/"))[0] == sys.executable
