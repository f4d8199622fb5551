"""`gpucoord shell` on a terminal, with a real service and real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.conftest import JUPYTER_LAB
from tests.pace import LONGEST_S
from tests.processes.person import Person
from tests.processes.service import ROOT, Service, kill_jobs, token, wait_until

pytestmark = pytest.mark.processes
# A prompt and a line editor would only add control characters.
PLAIN = ("--", "sh")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("shell")
    policy = '{"disk": {"warn_pct": 100, "clean_pct": 100, "block_pct": 100}}'
    try:
        with Service(folder / "data", GPUCOORD_POLICY=policy) as service:
            yield service
    finally:
        # Jobs outlive the service, and those of a failed test would run on.
        kill_jobs(folder / "data")


@pytest.fixture(scope="module")
def env(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUCOORD_URL": service.address,
        "GPUCOORD_TOKEN": token(service),
        "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config")),
        "TERM": "vt100",
        "PS1": "",
    }


# shell("--gpus", "0", rows=24): a user runs `gpucoord shell`.
Shell = Callable[..., Person]


@pytest.fixture
def shell(service: Service, env: dict[str, str]) -> Iterator[Shell]:
    """Starts shells. After the test, also a failed one, they are ended with all open jobs."""
    people: list[Person] = []

    def start(
        *words: str, rows: int = 24, columns: int = 80, command: str = "shell", **changes: str
    ) -> Person:
        argv = [sys.executable, "-m", "gpucoord_site", command, *words]
        people.append(Person(argv, env | changes, rows=rows, columns=columns))
        return people[-1]

    yield start
    for person in people:
        person.kill()
    if open_jobs(service):
        wait_until(lambda: _is_up(service), 30, "the web process")
        for number in open_jobs(service):
            cancel(env, number)
        wait_until(lambda: not open_jobs(service), 30, "the end of all jobs")


def open_jobs(service: Service) -> list[int]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as rows:
        return [
            id_ for (id_,) in rows.execute("SELECT id FROM scheduler_job WHERE state<>'finished'")
        ]


def cancel(env: dict[str, str], number: int) -> None:
    headers = {"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"}
    address = f"{env['GPUCOORD_URL']}api/jobs/{number}/cancel/"
    with suppress(httpx.TransportError):
        httpx.post(address, headers=headers, timeout=LONGEST_S)


def job(env: dict[str, str], number: int) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"}
    address = f"{env['GPUCOORD_URL']}api/jobs/{number}/"
    answer: dict[str, object] = httpx.get(address, headers=headers, timeout=LONGEST_S).json()
    return answer


def test_what_is_typed_runs_as_a_job_and_its_exit_code_returns(
    shell: Shell, env: dict[str, str]
) -> None:
    person = shell("--gpus", "1", "--gpu-memory", "1GiB", *PLAIN)
    person.sees_a_prompt()
    person.types("echo on $CUDA_VISIBLE_DEVICES of job $GPUCOORD_JOB_ID is $TERM; tty\r")
    person.until("/dev/pts/")
    assert re.search(rf"on GPU-\S+ of job {person.number} is vt100", person.text)
    person.types("exit 7\r")

    assert person.end() == 7
    ended = job(env, person.number)
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 7)


JUPYTER = """#!/bin/sh
echo "token of ${#JUPYTER_TOKEN} characters, given $*, on $GPUCOORD_PORT"
echo ready; read line; exit 0
"""


def test_a_notebook_has_the_port_of_its_job(
    shell: Shell, env: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "jupyter-lab"
    program.write_text(JUPYTER)
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    person = shell("--gpus", "0", "--", "--expert", command="notebook", PATH=path)

    person.until("ready")
    ports = {each["port"] for each in job(env, person.number)["attempts"]}
    port = re.search(r"http://127.0.0.1:(\d+)/lab\?token=\w{48}", person.text)
    assert port is not None
    assert ports == {int(port[1])}
    assert f"--port={port[1]} --expert, on {port[1]}" in person.text
    assert "token of 48 characters" in person.text
    person.types("\r")
    assert person.end() == 0


@pytest.mark.jupyter
def test_jupyterlab_runs_a_kernel_in_the_job(
    shell: Shell, env: dict[str, str], tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    kinds = ("RUNTIME_DIR", "CONFIG_DIR", "DATA_DIR")
    folders = {f"JUPYTER_{kind}": str(tmp_path / kind) for kind in kinds}
    path = f"{JUPYTER_LAB.parent}:{os.environ['PATH']}"
    words = ("--gpus", "0", "--cwd", str(tmp_path), "--")
    # The job may run as root.
    options = ("--allow-root", f"--notebook-dir={tmp_path}")
    person = shell(
        *words, *options, command="notebook", PATH=path, IPYTHONDIR=str(tmp_path / "i"), **folders
    )
    person.until("/lab?token=")
    person.until("from another one: ssh ")
    link = re.search(r"(http://127.0.0.1:\d+)/lab\?token=(\w{48})", person.text)
    assert link is not None
    address, key = link.groups()
    wait_until(lambda: _status_code(f"{address}/lab"), 60, "JupyterLab answers")

    assert _status_code(f"{address}/api/kernels") == 403
    with httpx.Client(base_url=address, headers={"Authorization": f"token {key}"}) as client:
        assert client.get("/lab").status_code == 200
        kernel = client.post("/api/kernels", timeout=60).json()["id"]
    channels = f"{address.replace('http', 'ws')}/api/kernels/{kernel}/channels?token={key}"
    assert _printed(channels, "import os; print(os.environ['GPUCOORD_JOB_ID'])") == str(
        person.number
    )

    cancelled = httpx.post(
        f"{env['GPUCOORD_URL']}api/jobs/{person.number}/cancel/",
        headers={"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"},
    )
    assert cancelled.status_code == 200
    assert person.end() == 130


def _status_code(url: str) -> int | None:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None


def _printed(channels: str, code: str) -> str:
    """The output of the kernel that runs the code."""
    header = {"msg_id": "1", "msg_type": "execute_request", "version": "5.3", "username": "u"}
    header |= {"session": "s", "date": "2026-01-01T00:00:00Z"}
    content = {"code": code, "silent": False, "store_history": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    with connect(channels) as socket:
        socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        while True:
            answer = json.loads(socket.recv(timeout=LONGEST_S))
            if answer["msg_type"] == "stream":
                return str(answer["content"]["text"]).strip()


def test_the_window_has_the_size_of_this_one_also_when_it_changes(shell: Shell) -> None:
    person = shell("--gpus", "0", *PLAIN, rows=31, columns=97)
    person.sees_a_prompt()
    person.types("until [ \"$(stty size)\" = '31 97' ]; do sleep 0.1; done; echo si''zed\r")
    person.until("sized")
    person.resize(40, 120)
    person.process.send_signal(signal.SIGWINCH)
    person.types("while [ \"$(stty size)\" != '40 120' ]; do sleep 0.1; done; echo resi''zed\r")
    person.until("resized")
    person.types("exit\r")

    assert person.end() == 0


def test_ctrl_c_interrupts_the_program_and_not_the_session(shell: Shell) -> None:
    person = shell("--gpus", "0", *PLAIN)
    person.sees_a_prompt()
    person.types("echo be''fore; sleep 300\r")
    person.until("before")
    person.types("\x03")
    person.types("echo aft''er\r")
    person.until("after")
    person.types("\x04")

    assert person.end() in (0, 130)


def test_much_output_and_a_long_paste_arrive_whole(shell: Shell) -> None:
    person = shell("--gpus", "0", *PLAIN)
    person.sees_a_prompt()
    person.types("stty -echo; echo re''ady\r")
    person.until("ready")
    person.types("head -c 2000000 /dev/zero | tr '\\0' x; echo; echo do''ne\r")
    person.until("done")
    assert person.text.count("x") >= 2_000_000
    person.types("cat > /dev/null <<END\r")
    for _ in range(1000):
        person.types("y" * 200 + "\r")
    person.types("END\recho pas''ted\r")
    person.until("pasted")
    person.types("exit\r")

    assert person.end() == 0


def test_the_user_leaves_and_connects_again(shell: Shell, env: dict[str, str]) -> None:
    person = shell("--gpus", "0", *PLAIN)
    person.sees_a_prompt()
    person.types("stty -echo; VALUE=41; echo re''ady\r")
    person.until("ready")
    person.types("\r~.")
    assert person.end() == 0
    assert "goes on" in person.text
    assert job(env, person.number)["state"] == "running"

    again = shell("--attach", str(person.number))
    again.types("echo $((VALUE + 1))!\r")
    again.until("42!")
    again.types("exit\r")
    assert again.end() == 0


def test_cancelling_ends_the_shell_and_says_so(shell: Shell, env: dict[str, str]) -> None:
    person = shell("--gpus", "0")
    person.until("submitted")
    wait_until(lambda: job(env, person.number)["state"] == "running", 20, "a running job")
    cancel(env, person.number)

    code = person.end()
    assert code == 130, person.text
    assert "was cancelled by admin" in person.text


def test_a_restart_of_the_web_process_only_interrupts_it(service: Service, shell: Shell) -> None:
    person = shell("--gpus", "0", *PLAIN)
    person.sees_a_prompt()
    person.types("stty -echo; VALUE=7; echo re''ady\r")
    person.until("ready")
    os.kill(service.child("web"), signal.SIGKILL)
    person.until("Trying again")
    wait_until(lambda: _is_up(service), 30, "the web process")
    person.types("echo $((VALUE * 3))!\r")
    person.until("21!")
    person.types("exit\r")

    assert person.end() == 0


def _is_up(service: Service) -> bool:
    try:
        return service.healthz().status_code == 200
    except httpx.TransportError:
        return False


def test_without_a_terminal_it_says_what_to_use(env: dict[str, str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpucoord_site", "shell"]
    done = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )

    assert done.returncode == 125
    assert "use: gpucoord run" in done.stderr
