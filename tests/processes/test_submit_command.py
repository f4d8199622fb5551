from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, wait_until

pytestmark = pytest.mark.processes
Gpucoord = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("submit") / "data") as service:
        yield service


@pytest.fixture(scope="module")
def env(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a person with a token."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUCOORD_DATA": str(service.data),
        "GPUCOORD_PROBE": "simulated",
        "GPUCOORD_URL": service.address,
        "XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config")),
        "PYTHONWARNINGS": "error",
    }
    done = _run(env, "token", "admin", "--name", "tests")
    return env | {"GPUCOORD_TOKEN": done.stdout.decode().strip()}


def _run(
    env: dict[str, str], *words: str, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "gpucoord_site", *words]
    redirect: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(command, env=env, capture_output=True, timeout=LONGEST_S, **redirect)


@pytest.fixture
def gpucoord(env: dict[str, str]) -> Gpucoord:
    """gpucoord("submit", "--", "true"): run it to its end; keywords change its environment."""
    return lambda *words, **changes: _run({**env, **changes}, *words)


def submit(gpucoord: Gpucoord, *words: str, **changes: str) -> tuple[int, bytes, str]:
    done = gpucoord("submit", "--gpus", "0", *words, **changes)
    return done.returncode, done.stdout, done.stderr.decode()


def test_the_output_and_exit_code_of_the_job_become_its_own(gpucoord: Gpucoord) -> None:
    code, output, said = submit(gpucoord, "--", "echo out; echo err >&2; printf '\\377'; exit 3")

    assert (code, output) == (3, b"out\nerr\n\xff")
    assert "failed with exit code 3" in said


def test_words_reach_the_program_as_they_are(gpucoord: Gpucoord) -> None:
    code, output, _ = submit(gpucoord, "--", "printf", "%s|", "a b", "$HOME", "--gpus")

    assert (code, output) == (0, b"a b|$HOME|--gpus|")


def test_it_runs_where_one_stands_with_the_variables_asked_for(
    gpucoord: Gpucoord, tmp_path: Path
) -> None:
    words = ("--cwd", str(tmp_path), "--env", "LR=0.1", "--env", "FROM_HERE")
    tmp_path.chmod(0o755)

    _, output, _ = submit(gpucoord, *words, "--", "pwd; echo $LR $FROM_HERE", FROM_HERE="mine")

    assert output.decode().split() == [str(tmp_path), "0.1", "mine"]


SERVES = """
import os, pathlib, socket, sys, time
port = int(os.environ["MASTER_PORT"])
server = socket.create_server((os.environ["MASTER_ADDR"], port))
pathlib.Path(os.environ["GPUCOORD_ARRAY_INDEX"]).touch()
until = time.monotonic() + 60
while not (pathlib.Path("0").exists() and pathlib.Path("1").exists()):
    assert time.monotonic() < until
    time.sleep(0.02)
server.close()
print(port, os.environ["GPUCOORD_PORT"], os.environ["GPUCOORD_PORTS"])
"""


def test_two_jobs_that_serve_run_side_by_side_without_an_option(
    gpucoord: Gpucoord, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    words = ("--cwd", str(tmp_path), "--array", "0-1", "--", "/usr/bin/python3", "-c", SERVES)

    code, output, said = submit(gpucoord, *words)

    assert code == 0, said
    lines = [line.split()[-3:] for line in output.decode().splitlines()]
    first, second = sorted(int(line[0]) for line in lines)
    assert second - first >= 8
    assert [line[1:] for line in lines] == [[line[0], "8"] for line in lines]


def test_a_big_output_arrives_whole(gpucoord: Gpucoord) -> None:
    _, output, _ = submit(gpucoord, "--", "head -c 3000000 /dev/zero")

    assert len(output) == 3_000_000


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--", "kill -9 $$"], 137, "signal 9"),
        (["--time-limit", "1s", "--", "sleep 30"], 124, "time limit"),
    ],
)
def test_other_ends_have_codes_of_their_own(
    gpucoord: Gpucoord, words: list[str], code: int, says: str
) -> None:
    code, _, said = submit(gpucoord, *words)

    assert (code, says in said) == (code, True)


def test_an_array_shows_the_output_of_all_its_jobs_and_the_worst_exit_code(
    gpucoord: Gpucoord,
) -> None:
    line = "echo out $GPUCOORD_ARRAY_INDEX; printf end; exit $(( GPUCOORD_ARRAY_INDEX % 3 ))"
    code, output, said = submit(gpucoord, "--array", "1-4", "--", line)

    assert code == 2
    lines = sorted(output.decode().splitlines())
    assert lines == sorted(f"[{n}] {text}" for n in range(1, 5) for text in (f"out {n}", "end"))
    assert "[2] failed with exit code 2" in said
    assert "1 of 4 jobs succeeded" in said


def test_an_array_whose_jobs_all_succeed_returns_0(gpucoord: Gpucoord) -> None:
    code, output, said = submit(gpucoord, "--array", "0-2", "--", "true")

    assert (code, output) == (0, b"")
    assert "3 of 3 jobs succeeded" in said


def test_ctrl_c_offers_to_cancel_the_whole_array(env: dict[str, str]) -> None:
    terminal = Terminal(env, "echo ready; sleep 300", "--array", "0-9%1")
    terminal.until("[0] ready")
    terminal.interrupt()
    terminal.until("Cancel array ")
    terminal.press("y\n")

    assert terminal.end() == 130


def _with_stdin(
    env: dict[str, str], stdin: bytes, *words: str
) -> subprocess.CompletedProcess[bytes]:
    return _run(env, "submit", "--gpus", "0", *words, stdin=stdin)


def test_standard_input_reaches_the_job_and_is_removed(
    env: dict[str, str], service: Service
) -> None:
    data = bytes(range(256)) * 1000
    done = _with_stdin(env, data, "--", "cat; cat /dev/stdin >/dev/null || exit 9")

    assert (done.returncode, done.stdout) == (0, data)
    assert list(service.data.glob("jobs/*/*/stdin")) == []


def test_each_job_of_an_array_reads_the_same_standard_input(env: dict[str, str]) -> None:
    done = _with_stdin(env, b"print(6 * 7)\n", "--array", "1,2", "--", "python3 -")

    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"[1] 42", b"[2] 42"]


def test_too_large_a_standard_input_is_refused_with_what_to_do(env: dict[str, str]) -> None:
    done = _with_stdin(env, b"x" * (1024**2 + 1), "--", "cat")

    assert (done.returncode, done.stdout) == (125, b"")
    assert b"more than 1 MiB. Write it to a file" in done.stderr


def test_standard_input_can_be_left_out(env: dict[str, str]) -> None:
    assert _with_stdin(env, b"x", "--no-stdin", "--", "cat").stdout == b""

    done = _with_stdin(env, b"x", "--detach", "--", "cat")
    assert b"standard input is not passed on with --detach" in done.stderr


def test_detached_it_prints_the_number_and_returns(gpucoord: Gpucoord, env: dict[str, str]) -> None:
    code, output, said = submit(gpucoord, "--detach", "--", "true")

    assert (code, said) == (0, "")
    assert job(env, int(output))["owner"] == "admin"


def job(env: dict[str, str], number: int) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"}
    code: dict[str, object] = httpx.get(
        f"{env['GPUCOORD_URL']}api/jobs/{number}/", headers=headers, timeout=LONGEST_S
    ).json()
    return code


@pytest.mark.parametrize(
    ("words", "changes", "says"),
    [
        (["--gpus", "99"], {}, "gpus: You ask for 99 GPUs; this machine has 8 GPUs."),
        (["--gpu-memory", "much"], {}, 'gpu_memory: "much" is not a size'),
        ([], {"GPUCOORD_TOKEN": "gpc_wrong"}, "The token was refused."),
        ([], {"GPUCOORD_TOKEN": "", "GPUCOORD_URL": "http://gpus.example"}, "A token is needed"),
        ([], {"GPUCOORD_URL": "http://127.0.0.1:9"}, "can't be reached at http://127.0.0.1:9"),
        ([], {"GPUCOORD_URL": "nonsense"}, "is not an address"),
        ([], {"GPUCOORD_URL": "http://[::1"}, "is not an address"),
    ],
)
def test_what_fails_is_one_sentence_and_125(
    gpucoord: Gpucoord, words: list[str], changes: dict[str, str], says: str
) -> None:
    done = gpucoord("submit", *words, "--", "true", **changes)

    assert (done.returncode, done.stdout) == (125, b"")
    assert says in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_it_needs_no_django_and_no_database(gpucoord: Gpucoord, tmp_path: Path) -> None:
    code, output, _ = submit(gpucoord, "--", "echo fine", GPUCOORD_DATA=str(tmp_path / "none"))

    assert (code, output) == (0, b"fine\n")
    assert not (tmp_path / "none").exists()


def test_a_token_can_be_kept_in_a_file(gpucoord: Gpucoord, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path), "GPUCOORD_TOKEN": ""}
    said = gpucoord("token", "admin", "--days", "1", "--save", **home).stdout.decode()
    path = tmp_path / "gpucoord" / "token"

    assert (str(path) in said, path.stat().st_mode & 0o777) == (True, 0o600)
    assert submit(gpucoord, "--", "true", **home)[0] == 0

    path.chmod(0o644)
    code, _, said = submit(gpucoord, "--", "true", **home)
    assert (code, "Others can read" in said) == (125, True)


def test_a_token_is_for_a_user_that_is_there(gpucoord: Gpucoord, tmp_path: Path) -> None:
    assert "There is no user nemo" in gpucoord("token", "nemo").stderr.decode()
    assert "--days must be" in gpucoord("token", "admin", "--days", "0").stderr.decode()

    elsewhere = gpucoord("token", "admin", GPUCOORD_DATA=str(tmp_path / "other"))
    assert "The users can't be read" in elsewhere.stderr.decode()


class Terminal:
    """`gpucoord submit` on a terminal, as a person has it."""

    def __init__(self, env: dict[str, str], command: str, *options: str) -> None:
        self._side, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpucoord_site", "submit", "--gpus", "0", *options,
             "--", command],
            env=env, stdin=side, stdout=side, stderr=side, start_new_session=True, close_fds=True,
        )  # fmt: skip
        os.close(side)
        self.text = ""

    def until(self, text: str) -> None:
        while text not in self.text:
            self.text += os.read(self._side, 4096).decode()

    def press(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self.process.wait(LONGEST_S)
        os.close(self._side)
        return code

    @property
    def number(self) -> int:
        return int(self.text.partition("job ")[2].split()[0])


def test_ctrl_c_asks_and_cancels(env: dict[str, str]) -> None:
    terminal = Terminal(env, "echo ready; sleep 300")
    terminal.until("ready")
    terminal.interrupt()
    terminal.until(f"Cancel job {terminal.number}?")
    terminal.press("y\n")

    assert terminal.end() == 130
    assert job(env, terminal.number)["outcome"] == "cancelled"


def test_no_goes_on_and_a_second_ctrl_c_leaves_the_job_alone(env: dict[str, str]) -> None:
    terminal = Terminal(env, "echo ready; sleep 3; echo steady; sleep 300")
    terminal.until("ready")
    terminal.interrupt()
    terminal.until("Ctrl-C leaves it running]")
    terminal.press("n\n")
    terminal.until("steady")
    number, terminal.text = terminal.number, ""
    terminal.interrupt()
    terminal.until("Ctrl-C leaves it running]")
    terminal.interrupt()
    terminal.until("goes on without this terminal")

    assert terminal.end() == 130
    assert job(env, number)["state"] == "running"
    _cancel(env, number)
    wait_until(lambda: job(env, number)["state"] == "finished", 10, "the job's end")


def _cancel(env: dict[str, str], number: int) -> None:
    headers = {"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"}
    address = f"{env['GPUCOORD_URL']}api/jobs/{number}/cancel/"
    httpx.post(address, headers=headers, timeout=LONGEST_S)


def test_a_restart_of_the_server_is_only_noticed(service: Service, env: dict[str, str]) -> None:
    gate = service.data / "gate"
    following = subprocess.Popen(
        [sys.executable, "-m", "gpucoord_site", "submit", "--gpus", "0", "--",
         f"echo before; until [ -e {gate} ]; do sleep 0.05; done; echo after; exit 5"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert following.stdout is not None
    assert following.stdout.readline() == b"before\n"
    web = service.child("web")
    os.kill(web, signal.SIGKILL)
    wait_until(lambda: service.child("web") not in (0, web), 20, "another web process")
    gate.touch()

    output, said = following.communicate(timeout=LONGEST_S)
    assert (output, following.returncode) == (b"after\n", 5)
    assert b"Traceback" not in said


def test_it_starts_fast(env: dict[str, str]) -> None:
    """None of the heavy modules is there before they are needed."""
    code = (
        "import sys, gpucoord_site.cli.main, gpucoord_site.cli.submit;"
        "print([m for m in ('django', 'pydantic', 'httpx', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, timeout=LONGEST_S
    )

    assert json.loads(done.stdout.decode().replace("'", '"')) == []
