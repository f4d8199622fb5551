"""OS accounts of a server that root runs: each user logs in and runs jobs as themselves.

The accounts are made for the tests. They run the client with the system's Python, as the one of
the tests may be closed to them.
"""

from __future__ import annotations

import json
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pace import LONGEST_S, Stopwatch
from tests.processes.person import Person, as_account, command, environment, needs_accounts
from tests.processes.service import Service, kill_jobs

pytestmark = [pytest.mark.processes, needs_accounts]
Gpucoord = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("accounts") / "data"
    try:
        with Service(data, GPUCOORD_RUN_AS="auto") as service:
            yield service
    finally:
        kill_jobs(data)


@pytest.fixture
def gpucoord(service: Service, client: Path) -> Gpucoord:
    def run(account: pwd.struct_passwd, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words),
            env=environment(account, service, client),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
            **as_account(account),
        )

    return run


def test_each_account_submits_as_itself_with_no_step_before(
    gpucoord: Gpucoord, accounts: list[pwd.struct_passwd]
) -> None:
    for account in accounts:
        watch = Stopwatch()
        done = gpucoord(account, "submit", "--gpus", "0", "--", "id", "-un")

        assert (done.returncode, done.stdout) == (0, f"{account.pw_name}\n"), done.stderr
        assert watch.seconds < 60


def test_a_job_runs_where_and_with_what_its_user_submitted_it(
    gpucoord: Gpucoord, accounts: list[pwd.struct_passwd]
) -> None:
    alice, _ = accounts
    script = "pwd; id -u; id -g; echo $HOME; touch mine; stat -c %U mine"
    done = gpucoord(alice, "submit", "--gpus", "0", "--", "sh", "-c", script)

    uid, gid = str(alice.pw_uid), str(alice.pw_gid)
    expected = [alice.pw_dir, uid, gid, alice.pw_dir, alice.pw_name]
    assert done.stdout.split() == expected, done.stderr


def test_a_user_neither_reads_nor_cancels_the_jobs_of_another(
    gpucoord: Gpucoord, accounts: list[pwd.struct_passwd]
) -> None:
    alice, bob = accounts
    words = ("submit", "--gpus", "0", "--detach", "--", "sh", "-c", "echo secret; sleep 600")
    number = gpucoord(alice, *words).stdout.strip()

    log, cancel = gpucoord(bob, "logs", number), gpucoord(bob, "cancel", number)
    assert log.returncode != 0
    assert "secret" not in log.stdout
    assert cancel.returncode != 0
    assert json.loads(gpucoord(bob, "queue", "--mine", "--json").stdout) == {"jobs": []}
    assert gpucoord(alice, "cancel", number).returncode == 0


def test_a_shell_runs_as_the_account(
    service: Service, client: Path, accounts: list[pwd.struct_passwd]
) -> None:
    alice, _ = accounts
    argv = command("shell", "--gpus", "0", "--", "sh")
    person = Person(argv, environment(alice, service, client), account=alice)
    try:
        person.sees_a_prompt()
        person.types("stty -echo; echo I am $(id -un) on $(stat -c %U $(tty)); exit 3\r")
        assert person.end() == 3
    finally:
        person.kill()

    assert f"I am {alice.pw_name} on {alice.pw_name}" in person.text
