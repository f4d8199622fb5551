"""The login socket and the report of listeners: tried again, reported once, and nothing stale."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.cli import check_machine, local_login
from gpucoord_site.cli.check_machine import Finding
from gpucoord_site.config.settings import Config
from gpucoord_site.service import children, listeners
from gpucoord_site.service.listeners import ListenerReport, LoginListener, remove_stale_sockets
from monitor.models import Event
from monitor.runtime.probes import service_state
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.probes.service_state import ListenerState, ServiceState
from tests.service.postgres_cluster import free_port

PROBLEM = "The endpoint for language models can't listen: Port 8001 on 127.0.0.1 is taken."
WEB = ListenerState(name="web", address="http://127.0.0.1:8000/")
MODELS = ListenerState(name="models", address="", problem=PROBLEM)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(local_login, "SYSTEM_FOLDER", folder)
    monkeypatch.setattr(local_login, "SHARED_FOLDER", tmp_path / "shared")
    monkeypatch.setattr(listeners, "LOOK_EVERY_S", 0.0)
    return folder


def test_all_accounts_reach_the_login_socket_under_the_umask_of_systemd(folder: Path) -> None:
    folder.chmod(0o700)

    assert listeners._login_path(8000).parent == folder
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def logins() -> Iterator[LoginListener]:
    listener = LoginListener(8000, "http://127.0.0.1:8000")
    yield listener
    listener.close()


def listens(listener: LoginListener) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(listener.path)) == 0


def test_a_taken_login_socket_is_a_problem_and_used_once_it_is_free(
    logins: LoginListener,
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(logins.path))
        other.listen()
        assert not logins.look()
        assert logins.problem == (
            f"Logins by OS account are not possible (another process listens on {logins.path})."
            " Users need tokens."
        )

    assert logins.look()
    assert (logins.problem, listens(logins)) == ("", True)
    assert not logins.look()


def test_a_login_socket_whose_file_is_removed_is_made_again(logins: LoginListener) -> None:
    assert logins.look()
    logins.path.unlink()

    assert logins.look()
    assert listens(logins)


def test_at_the_end_only_its_own_file_is_removed(logins: LoginListener) -> None:
    assert logins.look()
    logins.path.unlink()
    logins.path.touch()
    logins.remove()

    assert logins.path.exists()


def test_sockets_of_killed_services_are_removed_and_others_stay(folder: Path) -> None:
    def bound(name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(folder / name))
        return made

    bound("login-8001.sock").close()
    foreign = folder / "login-8002.sock"
    bound(foreign.name).close()
    if os.geteuid() == 0:
        os.chown(foreign, 61_999, -1)
    (folder / "login-8003.sock").touch()
    with bound("login-8004.sock"), bound("login-8005.sock") as listening:
        listening.listen()

        assert remove_stale_sockets() == (1 if os.geteuid() == 0 else 2)
        left = sorted(path.name for path in folder.iterdir())
    assert left[-3:] == ["login-8003.sock", "login-8004.sock", "login-8005.sock"]


@pytest.mark.django_db
def test_a_listener_is_reported_when_its_problem_comes_changes_and_goes() -> None:
    report = ListenerReport("gpubox")
    report.report([WEB, MODELS])
    report.report([WEB, MODELS])
    report.report([WEB])
    report.report([WEB, ListenerState(name="models", address="http://127.0.0.1:8001/")])

    events = Event.objects.filter(kind__startswith="LISTENER").order_by("pk")
    assert list(events.values_list("kind", "text", "severity", "host")) == [
        ("LISTENER_UNUSABLE", PROBLEM, "error", "gpubox"),
        ("LISTENER_USABLE", "The listener models works: http://127.0.0.1:8001/", "info", "gpubox"),
    ]


def written(folder: Path, *states: ListenerState) -> None:
    (folder / "run").mkdir(parents=True, exist_ok=True)
    state = ServiceState(
        pid=os.getpid(), boot_id=boot_id(), command=children.command_line(), version="0",
        address="http://127.0.0.1:8000/", started_t=0.0, listeners=states,
    )  # fmt: skip
    service_state.write(folder / "run", state)


@pytest.mark.django_db
def test_pages_rest_and_metrics_name_a_listener_that_does_not_listen(
    data: Path, alice: User, client: Client
) -> None:
    written(data, WEB, MODELS)
    client.force_login(alice)

    for page in ("/status/", "/models/"):
        assert PROBLEM in client.get(page).content.decode().replace("&#x27;", "'")
    answer = client.get("/api/models/").json()
    assert (answer["base_url"], answer["endpoint_problem"]) == (None, PROBLEM)
    metrics = client.get("/metrics").content.decode()
    lines = [line for line in metrics.splitlines() if line.startswith("gpucoord_listener_up{")]
    assert [(line.split('listener="')[1].split('"')[0], line[-3:]) for line in lines] == [
        ("web", "1.0"),
        ("models", "0.0"),
    ]


def found(data: Path, **settings: Any) -> list[Finding]:
    return list(check_machine.listeners(Config(data=data, **settings)))


def test_check_names_the_problem_of_a_running_service(tmp_path: Path) -> None:
    written(tmp_path, WEB, MODELS)

    assert [(each.level.name, each.text) for each in found(tmp_path)] == [
        ("WARN", PROBLEM),
        ("OK", "listening: web"),
    ]


def test_check_names_a_taken_port_for_models_before_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (finding,) = found(tmp_path, port=free_port(), models_port=port)
    assert f"127.0.0.1:{port}, for clients of language models, is taken" in finding.text

    assert not found(tmp_path, port=free_port(), models_port=port)
