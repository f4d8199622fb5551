"""The first hour of a new server: root at the shell, users by invitation and by account, a hog."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.chromium import chromium_path
from tests.browser.conftest import OPTIONS, PATIENCE_MS
from tests.pace import LONGEST_S
from tests.processes.person import as_account, command, environment, needs_accounts
from tests.processes.service import ROOT, Service, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.browser]
GIB = 1024**3
# Users of the simulated server keep GPUs busy outside of jobs.
HOG = re.compile(r"Heavy use outside the queue: \w+ \(PID \d+, (\w+)\)")
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
    # Of an earlier release.
    policy["cooling"] = {"wait_s": 9}
    # As under systemd.
    umask = os.umask(0o077)
    try:
        with Service(folder / "data", GPUCOORD_POLICY=json.dumps(policy)) as running:
            yield running
    finally:
        os.umask(umask)


def gpucoord(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    """A command at the shell of root, which logs in by the OS account."""
    given = {"GPUCOORD_URL": service.address, "HOME": str(service.data.parent)}
    return subprocess.run(
        [sys.executable, "-m", "gpucoord_site", *words],
        env=service._env | given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def output(service: Service, *words: str) -> str:
    done = gpucoord(service, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_a_new_server_to_a_user_who_has_run_a_job(service: Service) -> None:
    # Root needs neither a token nor a password.
    assert "hello" in output(service, "submit", "--name", "of-root", "--", "echo", "hello")
    checked = gpucoord(service, "check").stdout
    assert "Jobs with a folder there will soon wait." in checked
    former = (
        "cooling.wait_s is no threshold any more: its value in gpucoord.toml or GPUCOORD_POLICY is"
    )
    assert former in checked
    assert former in service.text()

    output(service, "user", "add", "zoe")
    output(service, "quota", "set", "zoe", "--share", "30")
    invitation = re.search(
        r"http://\S+/login/invitation/\S+", output(service, "user", "invite", "zoe")
    )
    assert invitation
    _runs_a_first_job(invitation[0], f"{service.address}reports/")

    assert wait_until(lambda: HOG.search(output(service, "report")), 60, "a hog in the report")


@needs_accounts
def test_an_account_of_the_server_needs_no_step_before_its_first_job(
    service: Service, client: Path, accounts: list[pwd.struct_passwd]
) -> None:
    account, _ = accounts

    def run(*words: str) -> str:
        done = subprocess.run(
            command(*words),
            env=environment(account, service, client),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            **as_account(account),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("submit", "--gpus", "0", "--", "echo done") == "done\n"
    assert f"{account.pw_name}" in run("history")
    assert "GPU Utilization Report" in run("report")
    assert "/login/link/" in run("login")


def _runs_a_first_job(invitation: str, report: str) -> None:
    """As a new user in a browser: set a password, submit the job of the page, read the report."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=OPTIONS)
        page = browser.new_page()
        expect.set_options(timeout=PATIENCE_MS)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(invitation)
        page.get_by_label("New password", exact=True).fill(PASSWORD)
        page.get_by_label("New password confirmation").fill(PASSWORD)
        page.get_by_role("button", name="Set the password").click()
        page.wait_for_url("**/welcome/")
        expect(page.locator("#first-job")).to_contain_text("waiting for your job")
        page.get_by_role("button", name="Submit this job").click()
        expect(page.locator("#first-job")).to_contain_text("succeeded")
        expect(page.locator("#first-job pre")).to_contain_text("Hello from a job")
        page.goto(report)
        expect(page.get_by_role("heading", name="Load control")).to_be_visible()
        browser.close()
