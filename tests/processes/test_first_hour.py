"""The first hour of a new server: root at the shell, a second user by invitation, and a hog."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.conftest import OPTIONS, PATIENCE_MS
from tests.processes.service import ROOT, Service, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.browser]
GIB = 1024**3
# The simulated server has a user with this name who keeps one GPU busy outside of jobs.
HOG = "dana"
PASSWORD = "a long enough Passphrase 7"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A new service. The percentage of its disk is exceeded; space is left, but not for long."""
    folder = tmp_path_factory.mktemp("first-hour")
    left_gib = shutil.disk_usage(folder).free / GIB
    disk = {"warn_pct": 0, "clean_pct": 0, "block_pct": 0}
    floor = {"block_free_gib": left_gib * 0.6, "block_free_pct": 100}
    quiet = {"memory_busy_pct": 100, "memory_stall_pct": 100, "io_wait_pct": 100}
    policy = {"disk": disk | floor, "hogs": {"sustained_minutes": 0.1}, "constraints": quiet}
    with Service(folder / "data", GPUCOORD_POLICY=json.dumps(policy)) as running:
        yield running


def gpucoord(service: Service, *words: str, secret: str = "") -> subprocess.CompletedProcess[str]:
    """A command at the shell; without a token it logs in by the OS account."""
    given = {"GPUCOORD_URL": service.address} | ({"GPUCOORD_TOKEN": secret} if secret else {})
    return subprocess.run(
        [sys.executable, "-m", "gpucoord_site", *words],
        env=service._env | given | {"HOME": str(service.data.parent)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def output(service: Service, *words: str, secret: str = "") -> str:
    done = gpucoord(service, *words, secret=secret)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_a_new_server_to_a_user_who_has_run_a_job(service: Service, tmp_path: Path) -> None:
    # Root needs neither a token nor a password.
    assert "hello" in output(service, "submit", "--name", "of-root", "--", "echo", "hello")
    checked = gpucoord(service, "check").stdout
    assert "Jobs with a folder there will soon wait." in checked

    output(service, "user", "add", "alice")
    output(service, "quota", "set", "alice", "--share", "30")
    invitation = re.search(
        r"http://\S+/login/invitation/\S+", output(service, "user", "invite", "alice")
    )
    assert invitation
    _runs_a_first_job(invitation[0])

    wait_until(lambda: HOG in _open_incidents(output(service, "report")), 60, "a hog")
    # Others are not named in the report of a user.
    report = output(service, "report", secret=token(service, "alice"))
    assert "GPU time:" in report
    assert HOG not in report


def _runs_a_first_job(invitation: str) -> None:
    """As a new user in a browser: set a password, submit the job of the page, see it end."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(invitation)
        page.get_by_label("New password", exact=True).fill(PASSWORD)
        page.get_by_label("New password confirmation").fill(PASSWORD)
        page.get_by_role("button", name="Set the password").click()
        page.wait_for_url("**/welcome/")
        expect(page.locator("#first-job")).to_contain_text("waiting for your job")
        page.get_by_role("button", name="Submit this job").click()
        expect(page.locator("#first-job")).to_contain_text("succeeded", timeout=PATIENCE_MS)
        expect(page.locator("#first-job pre")).to_contain_text("Hello from a job")
        browser.close()


def _open_incidents(report: str) -> str:
    return report.partition("Open incidents:")[2]
