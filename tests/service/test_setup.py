"""`gpucoord setup` in a folder instead of the root of the machine, with recorded commands."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucoord_site.cli import check, local_login, server
from gpucoord_site.cli.server import SetupFailed, System
from gpucoord_site.config.file import read_toml

PROGRAM = Path("/opt/lab/bin/gpucoord")


class Recorder:
    """Records commands instead of running them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, argv: Sequence[str]) -> None:
        self.ran.append(" ".join(argv))


@pytest.fixture
def commands() -> Recorder:
    return Recorder()


@pytest.fixture
def system(tmp_path: Path, commands: Recorder, monkeypatch: pytest.MonkeyPatch) -> System:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(server, "_has_account", lambda name: "useradd" in " ".join(commands.ran))
    return System(root=tmp_path, run=commands)


def install(system: System, admin: str | None = "carol", name: str | None = None) -> list[str]:
    """The texts of the steps that were carried out."""
    carried_out = []
    for step in server.installing(system, PROGRAM, admin, name):
        if not step.is_done():
            step.apply()
            carried_out.append(step.text)
    return carried_out


def files_in(system: System) -> set[str]:
    paths = (path for path in system.root.rglob("*") if not path.is_dir() or path.is_symlink())
    return {str(path.relative_to(system.root)) for path in paths}


def test_it_installs_the_service(system: System, commands: Recorder) -> None:
    install(system)

    assert files_in(system) == {
        "etc/gpucoord.toml",
        "etc/systemd/system/gpucoord.service",
        "usr/local/bin/gpucoord",
    }
    assert system.data.stat().st_mode & 0o777 == 0o700
    assert system.link.readlink() == PROGRAM
    assert f"\nExecStart={PROGRAM} up\n" in system.unit.read_text()
    assert "/opt/gpucoord" not in system.unit.read_text()
    assert [ran.partition(" gpucoord")[0] for ran in commands.ran] == [
        "useradd --system --no-create-home --shell /usr/sbin/nologin",
        "systemctl daemon-reload",
        "systemctl enable",
        "systemctl restart",
    ]


def test_a_second_run_only_starts_the_service(system: System) -> None:
    install(system)
    system.settings.write_text("port = 9000\n")

    assert install(system) == ["start the service now and at each boot"]
    assert system.settings.read_text() == "port = 9000\n"


def test_the_first_administrator_is_the_account_that_ran_sudo(system: System) -> None:
    install(system)

    assert read_toml(system.settings) == {"admin_user": "carol", "local_superusers": True}


def test_an_existing_database_keeps_its_administrator(system: System) -> None:
    system.data.mkdir(parents=True)
    (system.data / "gpucoord.sqlite3").write_text("")
    install(system)

    assert read_toml(system.settings) == {}


def test_a_name_means_a_proxy_with_https(system: System) -> None:
    install(system, None, "gpus.example.org")

    assert read_toml(system.settings) == {
        "allowed_hosts": ["gpus.example.org"],
        "https": True,
        "port": 8000,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [(pwd.getpwuid(0).pw_name, None), ("no-such-account", None), ("", None), ("nobody", "nobody")],
)
def test_only_another_account_than_root_is_the_administrator(
    name: str, expected: str | None
) -> None:
    assert server.administrator({"SUDO_USER": name}) == expected


def test_a_command_of_another_installation_is_not_replaced(system: System) -> None:
    system.link.parent.mkdir(parents=True)
    system.link.write_text("#!/bin/sh\n")

    with pytest.raises(SetupFailed, match="file of another installation"):
        install(system)
    assert system.link.read_text() == "#!/bin/sh\n"


def test_remove_takes_it_back_and_keeps_data_and_settings(
    system: System, commands: Recorder
) -> None:
    install(system)
    commands.ran.clear()

    for step in server.removing(system, PROGRAM):
        step.apply()

    assert files_in(system) == {"etc/gpucoord.toml"}
    assert system.data.is_dir()
    assert commands.ran == ["systemctl disable --now gpucoord", "systemctl daemon-reload"]
    assert all(step.is_done() for step in server.removing(system, PROGRAM))


def test_without_systemd_no_command_of_it_runs(system: System, commands: Recorder) -> None:
    (system.root / "run/systemd/system").rmdir()
    install(system)

    assert [ran for ran in commands.ran if "systemctl" in ran] == []


@pytest.mark.parametrize("words", [["--dry-run"], ["--dry-run", "--remove"]])
def test_a_dry_run_shows_each_step_and_changes_nothing(
    words: list[str], system: System, commands: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(system)

    assert server.setup.run(server.setup.parser().parse_args(words), system) == 0

    assert files_in(system) == before
    assert commands.ran == []
    out = capsys.readouterr().out
    assert str(system.unit) in out
    assert str(system.link) in out


def test_it_ends_with_the_check_the_address_and_a_login_link(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"path": "/login/link/x/", "user": "carol", "url": "http://127.0.0.1:8011"}
    answer |= {"public_url": None, "seconds": 60}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(server, "_program", lambda: PROGRAM)
    monkeypatch.setattr(local_login, "of_data_folder", lambda: iter(["http://127.0.0.1:8011"]))
    monkeypatch.setattr(local_login, "ask", lambda *_: answer)
    monkeypatch.setattr(check, "check", lambda _: sys.stdout.write("the check\n") - 10)

    assert server.setup.run(server.setup.parser().parse_args([]), system) == 0

    out = capsys.readouterr().out
    parts = ("the check", "runs at http://127.0.0.1:8011.", "/login/link/x/", "gpucoord user add")
    places = [out.index(part) for part in parts]
    assert places == sorted(places)


def test_without_root_it_says_so(
    monkeypatch: pytest.MonkeyPatch, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert server.setup.run(server.setup.parser().parse_args([]), system) == 2
    assert "setup needs root" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpus", "http://gpus.example.org", "gpus.example.org/x", "a b.c"])
def test_the_name_of_the_server_is_checked(name: str) -> None:
    with pytest.raises(SystemExit):
        server.setup.parser().parse_args(["--name", name])


def test_a_failing_command_names_its_reason() -> None:
    with pytest.raises(SetupFailed, match="false failed: no message"):
        System().run(["false"])
    with pytest.raises(SetupFailed, match="no-such-command failed"):
        System().run(["no-such-command"])
