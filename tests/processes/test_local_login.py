from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucoord_site.cli import local_login
from tests.processes.service import ROOT, Service

pytestmark = pytest.mark.processes
CLONE_NEWUSER = 0x10000000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("service") / "data"
    with Service(data, GPUCOORD_RUN_AS="auto") as running:
        yield running


def gpucoord(service: Service, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "gpucoord_site", *words, "--url", service.address],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_command_needs_no_token(service: Service, tmp_path: Path) -> None:
    done = gpucoord(service, "quota", home=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("admin uses now:")


def test_a_process_in_another_user_namespace_gets_nothing(service: Service) -> None:
    assert "another user namespace" in _asked_in_a_namespace(service)


def _asked_in_a_namespace(service: Service) -> str:
    """The refusal, as a child in a user namespace of its own gets it."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        text = "skip"
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
                # There, the uid of the listener cannot be named either.
                local_login.trusted_uids = lambda: {0, os.geteuid(), 65534}  # type: ignore[assignment]
                text = str(local_login.ask(service.address, "token"))
        except local_login.LoginRefused as error:
            text = str(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    if text == "skip":
        pytest.skip("this machine has no user namespaces for this account")
    return text


def test_the_socket_is_open_to_all_and_goes_with_the_service(tmp_path: Path) -> None:
    service = Service(tmp_path / "data").start()
    port = local_login.local_port(service.address) or 0
    paths = [local_login.system_path(port), local_login.shared_path(port)]
    [path] = [path for path in paths if path.exists()]
    mode = path.stat().st_mode & 0o777
    service.stop()

    assert mode == 0o666
    assert not path.exists()


def test_logins_can_be_switched_off(tmp_path: Path) -> None:
    with Service(tmp_path / "data", GPUCOORD_LOCAL_ACCOUNTS="none") as service:
        done = gpucoord(service, "quota", home=tmp_path)

    assert done.returncode == 125
    assert "A token is needed" in done.stderr
