"""The address of the service on this machine, and the port that a service takes."""

from __future__ import annotations

import json
import os
import socket
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings

from gpucoord_site.cli import connection, local_login
from gpucoord_site.cli.client import RequestFailed
from gpucoord_site.config.settings import Config
from gpucoord_site.service import startup
from gpucoord_site.service.startup_checks import PortTaken, bind_free

HERE = Namespace(url=None)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    for name in ("run", "shared"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(local_login, "SYSTEM_FOLDER", tmp_path / "run")
    monkeypatch.setattr(local_login, "SHARED_FOLDER", tmp_path / "shared")
    monkeypatch.setenv("GPUCOORD_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("GPUCOORD_URL", raising=False)
    with ExitStack() as stack:
        yield stack


def serve(folders: ExitStack, path: Path) -> None:
    listening = folders.enter_context(socket.socket(socket.AF_UNIX))
    listening.bind(str(path))
    listening.listen()


def test_a_command_finds_the_service_whatever_its_port(folders: ExitStack) -> None:
    serve(folders, local_login.system_path(8711))

    assert connection.url(HERE) == "http://127.0.0.1:8711"


def test_a_service_without_the_system_folder_is_found_too(folders: ExitStack) -> None:
    serve(folders, local_login.shared_path(8712))

    assert connection.url(HERE) == "http://127.0.0.1:8712"


def test_a_given_address_wins(folders: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(folders, local_login.system_path(8711))

    assert connection.url(Namespace(url="http://other:1")) == "http://other:1"
    monkeypatch.setenv("GPUCOORD_URL", "http://third:2")
    assert connection.url(HERE) == "http://third:2"


def test_several_services_are_listed_and_the_user_chooses(folders: ExitStack) -> None:
    serve(folders, local_login.system_path(8712))
    serve(folders, local_login.shared_path(8711))

    with pytest.raises(RequestFailed, match=r"127\.0\.0\.1:8711, http://127\.0\.0\.1:8712\. Choo"):
        connection.url(HERE)


def test_the_socket_of_another_account_is_left_out(
    folders: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(folders, local_login.shared_path(8711))
    monkeypatch.setattr(local_login, "trusted_uids", lambda: {4_000_000})

    assert connection.url(HERE) == connection.URL


@pytest.mark.parametrize("name", ["gpucoord-login-8711.sock", "gpucoord-login-x.sock"])
def test_what_is_no_login_socket_is_left_out(name: str) -> None:
    (local_login.SHARED_FOLDER / name).write_text("")

    assert local_login.addresses() == []


def test_a_socket_that_a_killed_service_left_is_left_out() -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(local_login.shared_path(8711)))

    assert local_login.addresses() == []


@pytest.mark.parametrize(
    ("pid", "found"),
    [(os.getpid(), ["http://gpubox:8713"]), (2**22 + 1, [])],
    ids=["lives", "has ended"],
)
def test_without_a_login_socket_the_data_folder_names_the_service(
    tmp_path: Path, pid: int, found: list[str]
) -> None:
    command = Path("/proc/self/cmdline").read_bytes().decode()
    state = {"pid": pid, "command": command, "address": "http://gpubox:8713/"}
    (tmp_path / "data/run").mkdir(parents=True)
    (tmp_path / "data" / local_login.STATE).write_text(json.dumps(state))

    assert local_login.addresses() == found


def test_a_service_with_both_is_one(folders: ExitStack, tmp_path: Path) -> None:
    test_without_a_login_socket_the_data_folder_names_the_service(
        tmp_path, os.getpid(), ["http://gpubox:8713"]
    )
    serve(folders, local_login.system_path(8713))

    assert connection.url(HERE) == "http://127.0.0.1:8713"


def test_the_named_data_folder_chooses_among_several(folders: ExitStack, tmp_path: Path) -> None:
    serve(folders, local_login.system_path(8711))
    serve(folders, local_login.system_path(8713))
    test_without_a_login_socket_the_data_folder_names_the_service(
        tmp_path, os.getpid(), ["http://127.0.0.1:8713"]
    )

    assert connection.url(HERE) == "http://127.0.0.1:8713"


def two_free_ports(folders: ExitStack) -> int:
    """A port that is taken, with free ones after it."""
    taken = folders.enter_context(bind_free("127.0.0.1", 23_170))
    return int(taken.getsockname()[1])


def test_a_free_port_is_taken_when_the_default_one_is_not(
    folders: ExitStack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = two_free_ports(folders)

    class Settings(Config):
        port: int = taken

    monkeypatch.setattr(startup, "load_config", lambda **options: Settings(**options))
    for name in ("CONFIG", "ALLOWED_HOSTS"):  # set anew, and put back after the test
        monkeypatch.setattr(settings, name, getattr(settings, name))
    config, listening = startup._listen(Settings(), {}, is_needed=True)

    with listening:
        assert config.port == listening.getsockname()[1] > taken
        said = f"Port {taken} is taken, so gpucoord uses port {config.port}."
        assert capsys.readouterr().out.startswith(said)


def test_a_port_that_was_set_is_not_replaced(folders: ExitStack) -> None:
    taken = two_free_ports(folders)

    with pytest.raises(PortTaken, match="Choose another with --port"):
        startup._listen(Config(port=taken), {"port": taken}, is_needed=True)


def test_a_free_port_has_a_free_one_beside_it(folders: ExitStack) -> None:
    taken = two_free_ports(folders)

    with bind_free("127.0.0.1", taken - 1) as listening:
        assert listening.getsockname()[1] > taken
