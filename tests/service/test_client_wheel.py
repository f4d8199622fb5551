"""The package of the client alone, in an empty environment, against a real service."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, token

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this wheel and nothing else, not even its dependencies."""
    folder = tmp_path_factory.mktemp("client")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT / "client")]
    subprocess.run(build, check=True)
    wheel = next(folder.glob("gpucoord_client-*.whl"))
    venv.create(folder / "venv", symlinks=True)
    made = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", str(made), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    return made


@pytest.fixture
def gpucoord(python: Path, tmp_path: Path) -> Run:
    ours = ("GPUCOORD_", "DJANGO_", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python.with_name("gpucoord")), *words],
            cwd=tmp_path, env=clean | {"HOME": str(tmp_path)} | env, capture_output=True, text=True,
            timeout=LONGEST_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    return run


def test_every_command_of_the_client_says_what_it_does(gpucoord: Run, python: Path) -> None:
    code = "from gpucoord_site.cli.completion import parsers; print(*parsers())"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    commands = done.stdout.split()

    assert {"submit", "shell", "queue", "logs", "report", "mcp"} <= set(commands)
    failed = [name for name in commands if gpucoord(name, "--help").returncode]
    assert failed == []


@pytest.mark.parametrize("command", ["up", "demo", "check", "token", "setup"])
def test_commands_of_the_service_say_what_to_install(gpucoord: Run, command: str) -> None:
    done = gpucoord(command)

    assert done.returncode == 2
    assert "It belongs to the whole package" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["shell", "top", "mcp"])
def test_without_an_optional_package_no_command_fails_with_a_traceback(
    gpucoord: Run, command: str
) -> None:
    assert "Traceback" not in gpucoord(command, GPUCOORD_URL="http://127.0.0.1:1").stderr


def test_a_gpu_is_locked_where_the_settings_say(gpucoord: Run, tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "gpucoord.toml").write_text(f'lock_folder = "{tmp_path / "locks"}"\n')

    done = gpucoord("lock", "0", "--", "ls", str(tmp_path / "locks"))

    assert done.returncode == 0, done.stderr
    assert "gpu0.lock" in done.stdout


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service") / "data") as service:
        yield service


def test_it_runs_a_job_and_shows_its_output(gpucoord: Run, service: Service) -> None:
    env = {"GPUCOORD_URL": service.address, "GPUCOORD_TOKEN": token(service)}
    done = gpucoord("submit", "--gpus", "0", "--", "echo it runs; exit 3", **env)

    assert (done.returncode, done.stdout) == (3, "it runs\n")
    assert "it" in gpucoord("history", **env).stdout


def test_a_program_uses_the_client(python: Path, service: Service) -> None:
    program = (
        "from gpucoord_site.client import connect\n"
        "with connect() as gpucoord:\n"
        "    number = gpucoord.submit({'command': 'true', 'gpus': 0})\n"
        "    print(gpucoord.wait(number, 100)['outcome'])\n"
    )
    env = os.environ | {"GPUCOORD_URL": service.address, "GPUCOORD_TOKEN": token(service)}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python), "-I", "-c", program], env=env, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "succeeded"
