from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.processes.service import ROOT, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]


def _clean_environment() -> dict[str, str]:
    """Without anything that would lead back to this checkout and its tests."""
    ours = ("GPUCOORD_", "DJANGO_", "DATABASE_URL", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _run(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env=_clean_environment() | env,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = _run(*pip, "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("gpucoord-*.whl"))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty virtual environment into which only the wheel was installed, with what it needs."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    into = ["--python", folder / "bin" / "python"]
    # Python compiles what it imports; most of the files are never imported.
    installed = _run(*pip, *into, "install", "--no-compile", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "any folder"
    folder.mkdir()
    return folder


def test_the_version_is_the_wheels(bin_folder: Path, wheel: Path, elsewhere: Path) -> None:
    ran = _run(bin_folder / "gpucoord", "version", cwd=elsewhere)

    assert f"gpucoord {wheel.name.split('-')[1]} " in ran.stdout


def test_it_is_not_the_checkout_that_runs(bin_folder: Path, elsewhere: Path) -> None:
    code = "import gpucoord_site, monitor; print(gpucoord_site.__file__, monitor.__file__)"
    ran = _run(bin_folder / "python", "-c", code, cwd=elsewhere)

    assert str(ROOT) not in ran.stdout
    assert str(bin_folder.parent) in ran.stdout


def test_no_migration_is_missing_from_it(bin_folder: Path, elsewhere: Path) -> None:
    data = {"GPUCOORD_DATA": str(elsewhere / "data"), "GPUCOORD_PROBE": "none"}
    ran = _run(bin_folder / "gpucoord", "makemigrations", "--check", cwd=elsewhere, **data)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_check_finds_nothing_to_mend(bin_folder: Path, elsewhere: Path) -> None:
    settings = {"GPUCOORD_DATA": str(elsewhere / "data"), "GPUCOORD_PORT": "0"}
    ran = _run(bin_folder / "gpucoord", "check", "--json", cwd=elsewhere, **settings)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(ran.stdout)["status"] in {"ok", "warn"}


@pytest.fixture(params=["up", "demo"])
def address(request: pytest.FixtureRequest, bin_folder: Path, elsewhere: Path) -> Iterator[str]:
    """gpucoord at work, started by its installed command; it ends cleanly afterwards."""
    folders = {"GPUCOORD_DATA": str(elsewhere / "data"), "TMPDIR": str(elsewhere)}
    log = elsewhere / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(bin_folder / "gpucoord"), request.param, "--port", "0"],
            cwd=elsewhere,
            env=_clean_environment() | folders,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def found() -> str | None:
        assert process.poll() is None, log.read_text()
        match = re.search(r"is at (http://\S+/)", log.read_text())
        return match[1] if match else None

    try:
        yield wait_until(found, 60, f"an address in {log}")
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)
    assert code == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def test_pages_styles_and_loops_are_in_it(address: str) -> None:
    with httpx.Client(base_url=address) as browser:
        page = wait_until(lambda: _if_ok(browser, "login/"), 20, "the login page")
        assets = re.findall(r'(?:href|src)="/?(static/[^"]+)"', page.text)

        assert "<form" in page.text
        assert len(assets) >= 2
        assert {browser.get(asset).status_code for asset in assets} == {200}
        assert wait_until(lambda: _if_ok(browser, "healthz"), 20, "running loops")


def _if_ok(browser: httpx.Client, path: str) -> httpx.Response | None:
    try:
        answer = browser.get(path)
    except httpx.TransportError:
        return None
    return answer if answer.status_code == 200 else None
