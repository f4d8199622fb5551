from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
    env: dict[str, str], *words: str, seconds: float = LONGEST_S
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "gpucoord_site", *words]
    return subprocess.run(
        command, env=env, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL
    )


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
    found, _, said = submit(gpucoord, *words)

    assert (found, says in said) == (code, True)


def test_detached_it_prints_the_number_and_returns(gpucoord: Gpucoord, env: dict[str, str]) -> None:
    code, output, said = submit(gpucoord, "--detach", "--", "true")

    assert (code, said) == (0, "")
    assert job(env, int(output))["owner"] == "admin"


def job(env: dict[str, str], number: int) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {env['GPUCOORD_TOKEN']}"}
    found: dict[str, object] = httpx.get(
        f"{env['GPUCOORD_URL']}api/jobs/{number}/", headers=headers, timeout=LONGEST_S
    ).json()
    return found


@pytest.mark.parametrize(
    ("words", "changes", "says"),
    [
        (["--gpus", "99"], {}, "gpus: You ask for 99 GPUs; this machine has 8 GPUs."),
        (["--gpu-memory", "much"], {}, 'gpu_memory: "much" is not a size'),
        ([], {"GPUCOORD_TOKEN": "gpc_wrong"}, "The token was refused."),
        ([], {"GPUCOORD_TOKEN": ""}, "A token is needed"),
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

    def __init__(self, env: dict[str, str], command: str) -> None:
        self._side, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpucoord_site", "submit", "--gpus", "0", "--", command],
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
    following = subprocess.Popen(
        [sys.executable, "-m", "gpucoord_site", "submit", "--gpus", "0", "--",
         "echo before; sleep 6; echo after; exit 5"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert following.stdout is not None
    assert following.stdout.readline() == b"before\n"
    os.kill(service.child("web"), signal.SIGKILL)

    output, said = following.communicate(timeout=LONGEST_S)
    assert (output, following.returncode) == (b"after\n", 5)
    assert b"Traceback" not in said


def test_it_starts_fast(env: dict[str, str]) -> None:
    """None of the heavy modules is there before they are needed."""
    code = (
        "import sys, gpucoord_site.cli, gpucoord_site.submit;"
        "print([m for m in ('django', 'pydantic', 'httpx', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, timeout=LONGEST_S
    )

    assert json.loads(done.stdout.decode().replace("'", '"')) == []
