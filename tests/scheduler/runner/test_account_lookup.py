"""Accounts that no directory has, and accounts whose directory is away."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from scheduler.runner import accounts
from scheduler.runner.accounts import MissingAccount, ServiceAway, UnknownAccount

FOUND, NOT_FOUND, UNAVAILABLE, TRY_AGAIN = 1, 0, -1, -2
ABSENT = "no.account@example"


@pytest.fixture
def nsswitch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nsswitch.conf"
    path.write_text("passwd: files ldap systemd\ngroup: files nis\n")
    monkeypatch.setattr(accounts, "NSSWITCH", path)
    return path


@pytest.fixture
def answers(nsswitch: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The answers of the modules of directories; a module without an answer is not installed."""
    known: dict[str, int] = {}
    monkeypatch.setattr(accounts, "status", lambda service, _: known.get(service))
    return known


@pytest.mark.parametrize(
    ("line", "services"),
    [
        ("passwd:         files systemd ldap", ["ldap"]),
        ("passwd: sss files [NOTFOUND=return] ldap # nis", ["sss", "ldap"]),
        (" passwd :compat db", []),
        ("#passwd: ldap\ngroup: ldap", []),
        ("passwd: ../evil ldap", ["ldap"]),
    ],
)
def test_the_directories_are_those_of_the_passwd_line(
    nsswitch: Path, line: str, services: list[str]
) -> None:
    nsswitch.write_text(f"{line}\n")

    assert accounts.directories() == services


def test_without_nsswitch_there_is_no_directory(nsswitch: Path) -> None:
    nsswitch.unlink()

    assert accounts.entry(ABSENT) is None


@pytest.mark.parametrize("answer", [UNAVAILABLE, TRY_AGAIN, FOUND])
def test_an_account_is_unknown_while_a_directory_does_not_say_that_it_is_missing(
    answers: dict[str, int], answer: int
) -> None:
    """Found: the directory has come back since the first lookup."""
    answers["ldap"] = answer

    with pytest.raises(ServiceAway, match="ldap"):
        accounts.entry(ABSENT)


def test_an_account_that_no_directory_has_is_missing(answers: dict[str, int]) -> None:
    answers["ldap"] = NOT_FOUND

    assert accounts.entry(ABSENT) is None


def test_a_directory_that_is_not_installed_says_nothing(answers: dict[str, int]) -> None:
    assert accounts.entry(ABSENT) is None


def test_a_known_account_needs_no_directory(answers: dict[str, int]) -> None:
    answers["ldap"] = UNAVAILABLE

    entry = accounts.entry("root")
    assert entry is not None
    assert entry.pw_uid == 0


def test_a_module_of_this_machine_answers_as_it_does_to_the_c_library() -> None:
    """nss_files is part of glibc, or a file of its own in older versions."""
    assert accounts.status("files", ABSENT) in (None, NOT_FOUND)
    assert accounts.status("no_such_service", ABSENT) is None


@pytest.mark.parametrize("run_as", ["auto", "nobody"])
@pytest.mark.parametrize("superuser", [False, True])
def test_an_unknown_account_is_replaced_by_no_other(
    answers: dict[str, int], monkeypatch: pytest.MonkeyPatch, run_as: str, superuser: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    answers["ldap"] = UNAVAILABLE

    with pytest.raises(UnknownAccount, match="the service ldap of"):
        accounts.account_for("alice", account=ABSENT, superuser=superuser, run_as=run_as)


def test_the_message_begins_with_the_account_for_any_service(answers: dict[str, int]) -> None:
    answers["ldap"] = UNAVAILABLE

    with pytest.raises(MissingAccount) as caught:
        accounts._entry(ABSENT)
    assert str(caught.value).partition(":")[0] == accounts.unknown_account(ABSENT)


def test_a_model_service_needs_no_directory_unless_an_account_is_chosen(
    answers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    answers["ldap"] = UNAVAILABLE

    uid = accounts.account_of_service("", run_as="auto").uid
    assert uid is not None
    assert uid >= accounts.FIRST_UNUSED
    with pytest.raises(UnknownAccount):
        accounts.account_of_service("llm", run_as="auto")
