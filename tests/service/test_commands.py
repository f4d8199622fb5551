"""Commands that look at jobs and GPUs, and act on them, against the real REST API."""

from __future__ import annotations

import json
import os
import resource
import shlex
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from gpucoord_site.cli import (
    connection,
    environment,
    gpus,
    job_actions,
    jobs,
    script_files,
    shell,
    submit,
    tables,
)
from gpucoord_site.cli.client import NeverReached, RequestFailed, Transport
from gpucoord_site.cli.follow import ForeignOutput
from gpucoord_site.cli.script_files import BadScript
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Agent
from scheduler.execution.steps import specs
from scheduler.facts import people
from scheduler.models import Job, JobInput, YieldRequest
from tests import jobs_made
from tests.builders import GIB, NOW, process, snapshot
from tests.cli_bridge import connect_as

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
Say = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Say:
    """The output since the last call."""

    def read() -> str:
        captured = capsys.readouterr()
        return captured.out + captured.err

    return read


@pytest.fixture(autouse=True)
def as_alice(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_as(alice, monkeypatch)
    # Of these tests, not of the shell of a user: it would be named as left out.
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.mark.parametrize(
    "command", [jobs.queue, jobs.history, gpus.gpus, gpus.mine], ids=lambda c: c.name
)
def test_empty_lists_exit_with_0(command: Callable[[list[str]], int], said: Say) -> None:
    assert command([]) == 0
    assert said().strip()
    assert command(["--json"]) == 0
    assert json.loads(said())


def test_the_queue_lists_running_jobs_first_with_the_reason_to_wait(
    alice: User, bob: User, said: Say
) -> None:
    waiting = jobs_made.waiting(alice, name="later")
    running = jobs_made.running(bob, name="now")

    assert jobs.queue([]) == 0

    head, first, second = said().splitlines()
    assert head.split()[:3] == ["JOB", "OWNER", "STATE"]
    assert first.split()[:3] == [str(running.pk), "bob", "running"]
    assert second.split()[:3] == [str(waiting.pk), "alice", "waiting"]
    jobs.queue(["--mine"])
    assert "bob" not in said()


def test_the_jobs_of_an_agent_are_shown_as_those_of_the_agent(alice: User, said: Say) -> None:
    helper = Agent.objects.create(user=alice, name="helper", created_at=NOW, gpu_minutes=9)
    jobs_made.waiting(alice, agent=helper.pk)

    jobs.queue([])
    assert "alice's agent" in said()


def test_the_history_has_ones_own_ended_jobs(alice: User, bob: User, said: Say) -> None:
    mine, other = jobs_made.finished(alice, "failed", exit_code=3), jobs_made.finished(bob)

    jobs.history(["--json"])
    assert [job["id"] for job in json.loads(said())["jobs"]] == [mine.pk]
    jobs.history(["--all", "--json"])
    assert [job["id"] for job in json.loads(said())["jobs"]] == [other.pk, mine.pk]
    jobs.history(["--outcome", "succeeded", "--all"])
    assert str(other.pk) in said()


def test_a_job_is_shown_with_the_reasons_to_wait(alice: User, said: Say) -> None:
    job = jobs_made.waiting(alice, name="train", tags={"project": "x"})

    assert jobs.show([str(job.pk)]) == 0

    text = said()
    assert f"{job.pk} (train) of alice" in text
    assert "project=x" in text
    assert "start time unknown" in text


def test_a_copied_script_is_shown_by_its_name_and_its_lines(alice: User, said: Say) -> None:
    text = "#!/bin/bash\necho 'one'\n"
    job = jobs_made.waiting(alice, command="", argv=("/bin/bash", "-c", text, "train.sh", "--x"))

    jobs.show([str(job.pk)])

    lines = "command:      train.sh --x, copied at submission:\n  #!/bin/bash\n  echo 'one'\n"
    assert lines in said()


def test_a_job_that_slurm_runs_is_shown_with_its_number_and_node(alice: User, said: Say) -> None:
    job = jobs_made.running(alice)
    assert jobs.show([str(job.pk)]) == 0
    assert "engine:" not in said()
    job.attempts.update(engine="slurm", engine_ref="71", node="n1")

    assert jobs.show([str(job.pk)]) == 0
    assert "engine:       slurm job 71 on n1\n" in said()


def test_efficiency_says_what_is_unknown(alice: User, said: Say) -> None:
    job = jobs_made.finished(alice)

    assert jobs.efficiency([str(job.pk)]) == 0
    assert "CPU time:           -" in said()


def test_a_job_that_does_not_exist_is_named(said: Say) -> None:
    assert jobs.show(["99"]) == 125
    assert said() == "gpucoord: There is no job 99.\n"


def test_one_refused_job_does_not_stop_the_others(alice: User, bob: User, said: Say) -> None:
    mine, other = jobs_made.waiting(alice), jobs_made.waiting(bob)

    assert job_actions.cancel([str(other.pk), str(mine.pk)]) == 1

    text = said()
    assert f"job {mine.pk}: cancelled" in text
    assert f"job {other.pk}: Only bob and operators may cancel this job." in text


def test_all_of_ones_own_jobs_are_cancelled(alice: User, bob: User, said: Say) -> None:
    jobs_made.waiting(alice)
    jobs_made.waiting(bob)

    assert job_actions.cancel(["--mine"]) == 0
    assert list(Job.objects.filter(state="queued").values_list("owner__username", flat=True)) == [
        "bob"
    ]


def test_jobs_are_held_released_and_changed(alice: User, said: Say) -> None:
    job = jobs_made.waiting(alice)
    number = str(job.pk)

    assert job_actions.hold([number, "--reason", "data is missing"]) == 0
    assert "data is missing" in said()
    assert job_actions.release([number]) == 0
    assert job_actions.priority(["1", number]) == 0
    changes = ["--time-limit", "2h", "--gpu-memory", "4GiB", "--tags", "a=b"]
    assert job_actions.change([number, *changes]) == 0

    job.refresh_from_db()
    assert (job.priority, job.time_limit_s, job.tags, job.held) == (1, 7200, {"a": "b"}, "")
    assert job_actions.change([number, "--reset", "time-limit", "--reset", "tags"]) == 0
    job.refresh_from_db()
    assert (job.time_limit_s, job.tags) == (None, {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--time-limit", ""], "the value is blank; --reset time-limit resets it to its default"),
        (["--name", "x", "--reset", "name"], "name: give either a value or --reset"),
        (["--reset", "argv"], "invalid choice"),
        ([], "--reset time-limit"),
    ],
)
def test_a_change_that_is_ambiguous_is_refused(options: list[str], says: str, said: Say) -> None:
    with pytest.raises(SystemExit):
        job_actions.change(["1", *options])

    assert says in said()


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone of this shell."""

    def set_zone(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "shown"), [("America/New_York", "EST"), ("Europe/Berlin", "CET"), ("UTC0", "UTC")]
)
def test_a_clock_time_is_that_of_the_shell(
    zone: str, shown: str, in_zone: Callable[[str], None], alice: User, said: Say
) -> None:
    in_zone(zone)

    assert submit.submit(["-d", "--gpus", "0", "--begin", "2099-01-05 23:00", "--", "true"]) == 0

    job = Job.objects.get()
    assert f"starts no earlier than 2099-01-05 23:00 {shown}" in said()
    assert job.begin_at is not None
    assert job.begin_at.astimezone().strftime("%H:%M %Z") == f"23:00 {shown}"
    assert job_actions.change([str(job.pk), "--begin", "2099-01-05 22:15"]) == 0
    assert f"changed begin to 2099-01-05 22:15 {shown}" in said()


def test_a_time_that_is_none_is_refused_by_the_server(said: Say) -> None:
    assert submit.submit(["-d", "--gpus", "0", "--begin", "soon", "--", "true"]) == 125
    assert "is not a time; write it like 22:00" in said()


@pytest.mark.parametrize("folder", ["~/run", "$HOME/run", "${HOME}/run"])
def test_the_home_folder_is_filled_into_the_folder_of_a_script(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    script = _script(tmp_path, f"#!/bin/sh\n#GPUCOORD --gpus 0 --cwd {folder}\n")

    assert submit.submit(["-d", script]) == 0

    assert Job.objects.get().cwd == str(tmp_path / "run")


def test_an_ended_job_is_not_held(alice: User, said: Say) -> None:
    job = jobs_made.finished(alice)

    assert job_actions.hold([str(job.pk)]) == 1
    assert "It does not wait any more" in said()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (jobs.queue, ["--limit", "0"]),
        (jobs.history, ["--limit", "-5"]),
        (jobs.show, ["twelve"]),
        (job_actions.logs, ["12", "--tail", "0"]),
        (job_actions.logs, ["12", "-f", "--attempt", "1"]),
        (gpus.end, ["12", "--grace", "-1"]),
        (gpus.top, ["--interval", "nan"]),
    ],
)
def test_a_number_that_means_nothing_is_refused_before_the_server_is_asked(
    command: Callable[[list[str]], int], words: list[str], said: Say
) -> None:
    with pytest.raises(SystemExit):
        command(words)
    assert "error: " in said()


def test_a_waiting_job_moves_to_another_host(alice: User, said: Say) -> None:
    job = jobs_made.waiting(alice, host="gpubox")

    assert job_actions.change([str(job.pk), "--host", "any"]) == 0

    job.refresh_from_db()
    assert job.host == ""


def test_a_running_job_is_put_back(alice: User, said: Say) -> None:
    job = jobs_made.running(alice)

    assert job_actions.requeue([str(job.pk)]) == 0
    assert YieldRequest.objects.get().attempt.job_id == job.pk


def test_wait_returns_the_highest_exit_code(alice: User, said: Say) -> None:
    good, bad = jobs_made.finished(alice), jobs_made.finished(alice, "failed", exit_code=7)

    assert job_actions.wait([str(good.pk), str(bad.pk)]) == 7
    assert f"job {bad.pk}: failed with exit code 7" in said()


def test_wait_gives_up_after_the_timeout(alice: User, said: Say) -> None:
    job = jobs_made.waiting(alice)

    assert job_actions.wait([str(job.pk), "--timeout", "0"]) == 124


def test_logs_prints_the_output(alice: User, data: Path, said: Say) -> None:
    job = jobs_made.finished(alice)
    jobs_made.write_log(data, job, b"epoch 1\nepoch 2\n")

    assert job_actions.logs([str(job.pk)]) == 0
    assert said() == "epoch 1\nepoch 2\n"
    job_actions.logs([str(job.pk), "--tail", "8"])
    assert said() == "epoch 2\n"
    assert job_actions.logs([str(job.pk), "-f"]) == 0


def test_the_output_is_part_of_the_json(alice: User, data: Path, said: Say) -> None:
    job = jobs_made.finished(alice)
    jobs_made.write_log(data, job, b"step 1\n")

    assert job_actions.logs([str(job.pk), "--json"]) == 0
    answer = json.loads(said())
    assert answer == {"id": job.pk, "state": "finished", "output": "step 1\n"}


def test_a_followed_log_can_begin_near_its_end(
    alice: User, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    job = jobs_made.finished(alice)
    jobs_made.write_log(data, job, b"step 1\nstep 2\n")

    assert job_actions.logs(["-f", "--tail", "7", str(job.pk)]) == 0
    assert capfdbinary.readouterr().out == b"step 2\n"


def test_only_ones_own_output_controls_the_terminal(
    alice: User, bob: User, data: Path, monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    own, others = jobs_made.finished(alice), jobs_made.finished(bob)
    for job in (own, others):
        jobs_made.write_log(data, job, b"\x1b]0;title\x07\n")

    job_actions.logs([str(own.pk)])
    assert capfdbinary.readouterr().out == b"\x1b]0;title\x07\n"
    job_actions.logs([str(others.pk)])
    assert capfdbinary.readouterr().out == b"\\x1b]0;title\\x07\n"


def test_colours_of_another_users_output_stay() -> None:
    output = ForeignOutput()
    pieces = [b"\x1b[3", b"1mred\x1b[0m\xe2", b"\x82\xac\r", b"10 %\r\n\x1b[2J\xff", b"\x1b"]

    shown = b"".join([*map(output.feed, pieces), output.end()])
    assert shown == "\x1b[31mred\x1b[0m€\n10 %\n\\x1b[2J\\xff\\x1b".encode()


def test_gpus_and_own_processes_are_listed(said: Say) -> None:
    snapshots.record(snapshot(2, processes=(process(user="alice", memory_bytes=3 * GIB),)))

    gpus.gpus([])
    assert len(said().splitlines()) == 3
    gpus.mine([])
    assert "3.0 GiB" in said()


class RestartedServer:
    """Answers, is away for one request, answers again, and then the user presses Ctrl-C."""

    def __init__(self) -> None:
        self._looks = iter((True, False, True))

    def jobs(self, *_: object, **__: object) -> list[dict[str, object]]:
        is_there = next(self._looks, None)
        if is_there is None:
            raise KeyboardInterrupt
        if not is_there:
            raise NeverReached("The server does not answer.")
        return []

    def gpus(self) -> dict[str, object]:
        return {"gpus": [], "hosts": []}


def test_top_survives_a_restart_of_the_server(said: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    with pytest.raises(KeyboardInterrupt):
        gpus._watch(RestartedServer(), 0)  # type: ignore[arg-type]

    text = said()
    places = [text.find("0 running"), text.find("Trying again"), text.rfind("0 running")]
    assert -1 < places[0] < places[1] < places[2]


def test_top_prints_once_without_a_terminal(alice: User, said: Say) -> None:
    jobs_made.waiting(alice, name="train")
    snapshots.record(snapshot(1))

    assert gpus.top([]) == 0
    assert "0 running, 1 waiting" in said()


def test_the_login_message_names_idle_memory_and_how_to_end_it() -> None:
    idle = (tables.now() - timedelta(hours=26)).isoformat()
    held = {
        "gpu": 2,
        "pid": 12345,
        "memory_bytes": 40 * GIB,
        "idle_since": idle,
        "command": ["python", "train.py"],
        "program": "python",
        "job": None,
    }

    (line,) = gpus.motd_lines([held, held | {"idle_since": None}])

    assert line == (
        "You hold 40 GiB on GPU 2, idle 26 h: python train.py (pid 12345)."
        " End it: gpucoord end 12345"
    )
    (line,) = gpus.motd_lines([held | {"job": "7"}])
    assert line.endswith("gpucoord cancel 7")


def test_the_login_message_does_not_wait_for_a_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    monkeypatch.setattr(connection, "connect", lambda *_: time.sleep(60))
    began = time.monotonic()

    assert gpus.mine(["--motd"]) == 0
    assert time.monotonic() - began < 5
    assert said() == ""


def test_the_login_message_needs_no_timer(monkeypatch: pytest.MonkeyPatch, said: Say) -> None:
    monkeypatch.delattr(gpus.signal, "setitimer")

    assert gpus.mine(["--motd"]) == 0


def test_the_login_message_is_silent_when_there_is_nothing(said: Say) -> None:
    assert gpus.mine(["--motd"]) == 0
    assert said() == ""


def test_end_refuses_processes_that_are_not_ones_own(bob: User, said: Say) -> None:
    snapshots.record(snapshot(1, processes=(process(user="bob", pid=os.getpid()),)))

    assert gpus.end([str(os.getpid())]) == 1
    assert "You have no process" in said()


def test_end_ends_ones_own_process(said: Say) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = process(user="alice", pid=sleeper.pid)
    snapshots.record(snapshot(1, processes=(mine,)))

    assert gpus.end([str(sleeper.pid), "--force", "--json"]) == 0
    assert json.loads(said()) == {"pid": sleeper.pid, "ended": True}
    assert sleeper.wait(20) == -15
    assert sleeper.stdin is not None
    sleeper.stdin.close()


def test_end_names_the_job_of_a_process(alice: User, said: Say) -> None:
    snapshots.record(
        snapshot(1, processes=(process(user="alice", pid=7, job_ref="12", job_owner="alice"),))
    )

    assert gpus.end(["7", "--force"]) == 1
    assert "gpucoord cancel 12" in said()


def test_submit_captures_folder_umask_and_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    monkeypatch.setenv("HF_TOKEN", "secret")
    old = os.umask(0o027)
    try:
        assert submit.submit(["-d", "--env", "A=1", "--", "true", "now"]) == 0
    finally:
        os.umask(old)

    job = Job.objects.get()
    found = specs.environment_of(job)
    assert (job.cwd, job.umask, job.env_names) == (str(tmp_path), 0o027, ["A"])
    assert found["CONDA_PREFIX"] == "/opt/conda"
    assert "HF_TOKEN" not in found
    assert job.env == {"A": "1"}
    assert job.left_out["HF_TOKEN"] == "TOKEN"
    assert set(job.limits) == set(people.NAMES)
    assert job.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize(("is_member", "group"), [(True, "daemon"), (False, "")])
def test_the_group_of_newgrp_is_kept_or_named(
    monkeypatch: pytest.MonkeyPatch, said: Say, is_member: bool, group: str
) -> None:
    monkeypatch.setattr(os, "getegid", lambda: 1)
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, *[1] * is_member])

    assert submit.submit(["-d", "--gpus", "0", "--", "true"]) == 0
    job = Job.objects.get()
    assert job.primary_group == group
    assert (environment.NOT_A_MEMBER in said()) is not is_member
    assert ("group daemon" in job.left_out) is not is_member


def test_submit_with_a_clean_environment_passes_nothing_on(said: Say) -> None:
    submit.submit(["-d", "--clean-env", "--gpus", "0", "--", "train"])

    job = Job.objects.get()
    assert (specs.environment_of(job), job.gpus) == ({}, 0)
    assert not JobInput.objects.exists()


def test_nothing_of_this_machine_is_sent_to_another(said: Say) -> None:
    submit.submit(["-d", "--url", "http://gpu.example.org", "--", "train"])

    job = Job.objects.get()
    assert (job.cwd, job.umask, job.has_environment) == ("", None, False)


def test_run_has_a_high_priority_and_can_not_detach(said: Say) -> None:
    options = submit.run.read(submit.run.parser(), ["--", "eval"])

    assert (options.priority, options.detach, options.words) == (4, False, ["eval"])


@pytest.mark.parametrize(
    ("name", "value", "is_passed_on"),
    [
        ("PATH", "/usr/bin", True),
        ("VIRTUAL_ENV", "/v", True),
        ("WANDB_API_KEY", "x", False),
        ("AWS_SECRET_ACCESS_KEY", "x", False),
        ("DB_PASSWORD", "x", False),
        ("SSH_AUTH_SOCK", "x", False),
        ("HOME", "/h", False),
        ("GPUCOORD_TOKEN", "x", False),
        ("GPUCOORD_URL", "http://127.0.0.1:8911", True),
        ("CUDA_VISIBLE_DEVICES", "0", False),
        ("BASH_FUNC_x%%", "() {}", True),
        ("my.var", "x", True),
        ("LINES_OF_TEXT", "a\nb", True),
        ("DB_PWD", "x", False),
        ("REDIS_URL", "redis://user:secret@host/0", False),
        ("MLFLOW_URL", "http://host:5000/a@b", True),
        ("BROKEN", "\udcff", False),
    ],
)
def test_secrets_and_what_is_only_true_here_stay(name: str, value: str, is_passed_on: bool) -> None:
    here = environment.captured({name: value})

    assert (name in here.variables) is is_passed_on
    assert (name in here.left_out) is not is_passed_on


def test_a_deleted_folder_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert submit.submit(["-d", "--gpus", "0", "--", "true"]) == 125
    assert "The current folder was deleted" in said()
    assert submit.submit(["-d", "--gpus", "0", "--cwd", "/", "--", "true"]) == 0


@pytest.mark.parametrize("word", ["x" * 300, "/proc/1/root/no/such", "a/" * 3000])
def test_a_word_that_can_be_no_file_is_a_command(word: str) -> None:
    assert script_files.read([word]) is None


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "many"])
def test_a_number_that_json_has_not_is_refused_by_its_option(value: str, said: Say) -> None:
    with pytest.raises(SystemExit):
        submit.submit([f"--cpus={value}", "--", "true"])
    assert "--cpus" in said()


def test_a_huge_environment_is_refused_with_a_way_out() -> None:
    with pytest.raises(environment.EnvironmentTooLarge, match="--clean-env"):
        environment.captured({f"N{n}": "x" * 1000 for n in range(200)})


def _script(folder: Path, text: str, mode: int = 0o644) -> str:
    path = folder / "job.sh"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_script_brings_its_options_and_its_text(tmp_path: Path, said: Say) -> None:
    text = "#!/bin/bash\n#GPUCOORD --gpus 0 --name n\n#GPUCOORD --priority 2 # low\necho $1\n"
    path = _script(tmp_path, text)

    submit.submit(["-d", "--priority", "1", path, "--epochs", "3"])

    job = Job.objects.get()
    assert (job.gpus, job.name, job.priority) == (0, "n", 1)
    assert job.argv == ["/bin/bash", "-c", text, path, "--epochs", "3"]


def test_a_python_script_is_run_by_its_interpreter(tmp_path: Path) -> None:
    path = _script(tmp_path, "#!/usr/bin/env python3\n#GPUCOORD --gpus 0\n")

    script = script_files.read([path, "x"])

    assert script is not None
    assert script.argv == ["/usr/bin/env", "python3", path, "x"]


@pytest.mark.parametrize(("text", "mode"), [("\x7fELF\0", 0o755), ("\0", 0o644)])
def test_a_program_is_no_script(tmp_path: Path, text: str, mode: int) -> None:
    assert script_files.read([_script(tmp_path, text, mode)]) is None
    assert script_files.read(["no such file"]) is None


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("word", ["job.sh", "./job.sh"])
def test_a_shell_script_is_copied_with_or_without_options(
    word: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(tmp_path, "#!/bin/sh\necho\n", mode)
    monkeypatch.chdir(tmp_path)

    script = script_files.read([word, "x"])
    in_place = script_files.read([word, "x"], copies=False)

    assert script is not None
    assert in_place is not None
    assert script.argv == ["/bin/sh", "-c", "#!/bin/sh\necho\n", word, "x"]
    assert in_place.argv == ["/bin/sh", word, "x"]


def test_a_program_on_the_path_comes_before_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "true").write_text("#!/bin/sh\nfalse\n")
    monkeypatch.chdir(tmp_path)

    assert script_files.read(["true"]) is None
    assert script_files.read(["./true"]) is not None


def test_a_script_that_is_not_copied_is_said(tmp_path: Path) -> None:
    script = script_files.read([_script(tmp_path, "#!/usr/bin/env python3\n")])

    assert script is not None
    assert "is not copied: it is read when the job starts" in script.remarks[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"#!/bin/bash\r\necho\r\n", r"carriage returns (line 1), .*: sed -i 's/\r$//' "),
        (b"#!/bin/bash\ncd x\r\n", r"carriage returns (line 2), .*: sed -i"),
        (b"#!/bin/sh\recho\r", r"carriage returns (line 1), .*: tr "),
        (b"\xef\xbb\xbf#!/bin/bash\n", r"byte-order mark, .*: sed -i '1s/"),
        ("#!/bin/sh\n".encode("utf-16"), r"is UTF-16, .*: iconv -f UTF-16"),
        (b"#!/no/such/bash\n", r"/no/such/bash does not exist. Write #!/usr/bin/env bash"),
        (b"#!/usr/bin/env no-such-sh\n", r"no-such-sh is in no folder of PATH."),
    ],
)
def test_a_script_that_would_fail_at_its_start_is_refused_with_a_remedy(
    data: bytes, says: str, tmp_path: Path, said: Say
) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(data)

    assert submit.submit(["-d", str(path)]) == 125
    text = said()
    assert all(part in text for part in says.split(" .*: "))
    assert not Job.objects.exists()


def test_the_interpreter_of_another_machine_is_not_looked_for_here(tmp_path: Path) -> None:
    path = _script(tmp_path, "#!/no/such/bash\n")

    assert script_files.read([path], runs_here=False) is not None


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--gres=gpu:4", "--gpus 4"),
        ("--gpus=2", "--gpus 2"),
        ("--gres gpu", "--gpus 1"),
        ("--time=30", "--time-limit 30min"),
        ("-t 30:00", "--time-limit 30min"),
        ("--time=12:00:00", "--time-limit 12h"),
        ("--time=2-12", "--time-limit '2d 12h'"),
        ("-J train", "--name train"),
        ("--array=0-99%4", "--array 0-99%4"),
        ("--mem=64G", "--memory 64GiB"),
        ("--mem 4000", "--memory 4000MiB"),
        ("--cpus-per-task=8", "--cpus 8"),
        ("--begin=22:00:00", "--begin 22:00"),
        ("--begin=now+2hours", "--begin 'in 2 hours'"),
        ("--dependency=afterok:12:13", "--after-success 12,13"),
        ("--dependency=afterany:12", "--after 12"),
        ("--nodes=1 --ntasks=1", ""),
    ],
)
def test_options_of_slurm_with_the_same_meaning_are_translated_and_said(
    line: str, options: str, tmp_path: Path
) -> None:
    script = script_files.read([_script(tmp_path, f"#!/bin/bash\n#SBATCH {line}\necho\n")])

    assert script is not None
    assert shlex.join(script.options) == options
    assert f"line 2: #SBATCH {line} read as {options or 'the default'}" in script.remarks[0]
    submit.submit.parser().parse_args([*script.options, "--", "true"])


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#PBS -N train", "--name train"),
        ("#PBS -Ntrain", "--name train"),
        ("#PBS -l walltime=12:30:00", "--time-limit '12h 30min'"),
        ("#PBS -l walltime=30:00", "--time-limit 30min"),
        ("#PBS -l walltime=90", "--time-limit 90s"),
        (
            "#PBS -l select=1:ncpus=8:ngpus=2:mem=64gb,walltime=1:00:00",
            "--cpus 8 --gpus 2 --memory 64GiB --time-limit 1h",
        ),
        ("#PBS -l nodes=1:ppn=4:gpus=1", "--cpus 4 --gpus 1"),
        ("#PBS -J 0-9:3", "--array 0-9:3"),
        ("#PBS -t 1-100%5", "--array 1-100%5"),
        ("#PBS -W depend=afterok:12:13", "--after-success 12,13"),
        ("#PBS -W depend=afterany:12", "--after 12"),
        ("#PBS -a 2230", "--begin 22:30"),
        ("#PBS -a 202603022230", "--begin '2026-03-02 22:30'"),
        ("#PBS -v LR=0.1,SEED=3", "--env LR=0.1 --env SEED=3"),
        ("#PBS -V -j oe", ""),
        ("#BSUB -J train", "--name train"),
        ('#BSUB -J "train[1-10]%4"', "--name train --array 1-10%4"),
        ("#BSUB -W 12:30", "--time-limit '12h 30min'"),
        ("#BSUB -W 90", "--time-limit 90min"),
        ('#BSUB -n 4 -R "span[hosts=1]"', "--cpus 4"),
        ('#BSUB -gpu "num=2:mode=exclusive_process"', "--gpus 2"),
        ("#BSUB -M 16GB", "--memory 16GiB"),
        ('#BSUB -w "done(12) && done(13)"', "--after-success 12,13"),
        ('#BSUB -w "ended(12)"', "--after 12"),
        ("#BSUB -b 22:30 -cwd /work", "--begin 22:30 --cwd /work"),
    ],
)
def test_options_of_pbs_and_lsf_with_the_same_meaning_are_translated(
    line: str, options: str, tmp_path: Path
) -> None:
    script = script_files.read([_script(tmp_path, f"#!/bin/bash\n{line}\necho\n")])

    assert script is not None
    assert shlex.join(script.options) == options
    assert f"{line} read as {options or 'the default'}" in script.remarks[0]
    submit.submit.parser().parse_args([*script.options, "--", "true"])


@pytest.mark.parametrize(
    ("text", "word", "options", "is_copied"),
    [
        ("#!/bin/bash\n. $BASH_SOURCE.lib\n", "./job.sh", {}, True),
        ("#!/bin/bash\n. $BASH_SOURCE.lib\n", "{}/job.sh", {}, False),
        ("#!/bin/bash\n. $BASH_SOURCE.lib\n", "{}/job.sh", {"runs_here": False}, True),
        ("#!/bin/bash\n. $BASH_SOURCE.lib\n", "job.sh", {"elsewhere": True}, False),
        ("#!/bin/bash\n#GPUCOORD --cwd /\n. $BASH_SOURCE.lib\n", "job.sh", {}, False),
        ("#!/bin/bash\ncd /; $0 again\n", "{}/job.sh", {}, True),
        ("#!/bin/sh\ncd /; ${0} again\n", "{}/job.sh", {}, False),
        ("#!/bin/sh\ncd /; ${0} again\n", "./job.sh", {}, True),
        ("#!/usr/bin/env -S bash -e\n", "./job.sh", {}, True),
    ],
)
def test_a_script_that_finds_itself_runs_in_place_where_a_copy_could_not(
    text: str,
    word: str,
    options: dict[str, bool],
    is_copied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _script(tmp_path, text)
    monkeypatch.chdir(tmp_path)

    script = script_files.read([word.format(tmp_path), "--fast"], **options)

    assert script is not None
    assert ("-c" in script.argv, script.not_copied == "") == (is_copied, is_copied)
    assert script.argv[-1] == "--fast"


def test_options_in_an_argument_are_said_to_be_ignored(tmp_path: Path, said: Say) -> None:
    path = _script(tmp_path, "#!/bin/bash\n#GPUCOORD --gpus 4\n")

    assert submit.submit(["-d", "--gpus", "0", "--", "bash", path]) == 0

    assert f"ignored its #GPUCOORD lines; they count in: gpucoord submit {path}" in said()


def test_what_was_not_copied_is_left_out_of_the_job(tmp_path: Path) -> None:
    path = _script(tmp_path, "#!/usr/bin/env python3\n")

    assert submit.submit(["-d", "--gpus", "0", path]) == 0

    named = {f"copy of {path}": "it is read when the job starts"}
    assert named.items() <= Job.objects.get().left_out.items()


@pytest.mark.parametrize(
    ("name", "remedy"), [("train.py", "python train.py"), ("./job.sh", "bash job.sh")]
)
def test_a_text_without_an_interpreter_is_refused_with_its_program(
    name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    (tmp_path / name).write_text("#GPUCOORD --gpus 0\nx\n")
    monkeypatch.chdir(tmp_path)

    assert submit.submit(["-d", name]) == 125
    assert said().endswith(f"start the file by its program: {remedy}\n")


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH --gres=gpu:a100:2",
        "#SBATCH --partition=long",
        "#SBATCH --nodes=2",
        "#SBATCH --time=UNLIMITED",
        "#SBATCH --dependency=singleton",
        "#SBATCH --output=log.txt",
        "#PBS -l nodes=2:ppn=4",
        "#PBS -l select=1:ncpus=4:vnode=a",
        "#PBS -l walltime=long",
        "#PBS -W depend=afternotok:12",
        "#PBS -q long",
        "#PBS -j n",
        "#PBS -l place=excl",
        "#BSUB -q long",
        "#BSUB -M 4000",
        "#BSUB -gpu num=1:gmodel=A100",
        '#BSUB -w "exit(12)"',
        '#BSUB -R "rusage[mem=4]"',
        "#BSUB -x",
    ],
)
def test_options_of_other_queues_without_the_same_meaning_are_refused(
    line: str, tmp_path: Path
) -> None:
    path = _script(tmp_path, f"#!/bin/bash\n{line}\necho\n")

    with pytest.raises(BadScript, match=r"line 2: .*another # before"):
        script_files.read([path])


@pytest.mark.parametrize(
    "line",
    ["# GPUCOORD --gpus 0", "#gpucoord --gpus 0", "#GPUCOORD: --gpus 0", "##GPUCOORD --gpus 0",
     "#GPUCOORD--gpus 0", "  #GPUCOORD --gpus 0", "#$ -l gpu=1", "true\n#GPUCOORD --gpus 0"],
)  # fmt: skip
def test_a_line_that_only_looks_like_options_is_named(line: str, tmp_path: Path) -> None:
    script = script_files.read([_script(tmp_path, f"#!/bin/bash\n{line}\n")])

    assert script is not None
    assert script.options == []
    assert f"ignored line {line.count(chr(10)) + 2}: " in script.remarks[0]


def test_lines_of_another_queue_are_named_in_a_script_with_options_of_ours(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --partition=long\n#GPUCOORD --gpus 0\n# a comment of gpucoord\n"
    script = script_files.read([_script(tmp_path, text)])

    assert script is not None
    assert (script.options, len(script.remarks)) == (["--gpus", "0"], 1)
    assert "ignored line 2: " in script.remarks[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-program", "x"], "no-such-program is in no folder of PATH."),
        (["no-such-program"], "no-such-program is in no folder of PATH."),
        (["./no-such-program", "x"], "./no-such-program does not exist in"),
        (["--cwd", "/no/such/folder", "true"], "Create it: mkdir -p /no/such/folder"),
    ],
)
def test_what_this_machine_lacks_is_refused_at_once(words: list[str], says: str, said: Say) -> None:
    assert submit.submit(["-d", "--gpus", "0", *words]) == 125
    assert says in said()
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "words",
    [["ulimit"], ["no-such-program && true"], ["--clean-env", "no-such-program", "x"],
     ["--host", "other", "no-such-program", "x"],
     ["--url", "http://gpu.example.org", "no-such-program", "x"]],
)  # fmt: skip
def test_what_may_exist_elsewhere_is_not_looked_for(words: list[str]) -> None:
    options = submit.submit.read(submit.submit.parser(), ["-d", *words])

    assert submit.body_of(options, options.words)


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("source ./activate && echo", "/bin/bash"),
        ("module load cuda", "bash"),
        ("echo source", None),
        (". ./activate", None),
    ],
)
def test_a_line_for_bash_runs_under_bash(
    line: str, shell: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("BASH_FUNC_module%%", "() { :; }")

    command = submit._command([line], is_here=True)

    if shell is None:
        assert command == {"command": line}
    else:
        assert command["argv"][0].endswith(shell)
        assert command["argv"][1:] == ["-c", line]
    assert submit._command([line], is_here=False) == {"command": line}


def test_submit_names_the_variables_that_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")

    submit.submit(["-d", "--gpus", "0", "--", "true"])
    assert "HF_TOKEN (TOKEN)" in said()
    submit.submit(["-d", "--gpus", "0", "--env", "HF_TOKEN", "--", "true"])
    assert "HF_TOKEN" not in said()


def test_lines_after_the_first_command_are_no_options(tmp_path: Path) -> None:
    script = script_files.read([_script(tmp_path, "#!/bin/sh\necho\n#GPUCOORD --gpus 9\n")])

    assert script is not None
    assert script.options == []


def test_a_wrong_first_line_of_a_script_is_named(tmp_path: Path, said: Say) -> None:
    path = _script(tmp_path, '#!/bin/bash "\n#GPUCOORD --gpus 0\n')

    assert submit.submit(["-d", path]) == 125
    assert "line 1: No closing quotation" in said()


def test_a_wrong_line_of_a_script_is_named(tmp_path: Path, said: Say) -> None:
    path = _script(tmp_path, "#!/bin/sh\n#GPUCOORD --name 'x\n")

    assert submit.submit(["-d", path]) == 125
    assert "line 2" in said()


@pytest.mark.parametrize("url", ["gpu", "ftp://gpu", "http://", "http://gpu:x", "http://[gpu"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RequestFailed, match="is not an address"):
        Transport(url, {}, 1.0)


def test_a_server_that_does_not_listen_was_never_reached() -> None:
    with pytest.raises(NeverReached, match="can't be reached"):
        Transport("http://127.0.0.1:1", {}, 1.0).request("GET", "/")


@pytest.mark.parametrize(
    ("url", "says"),
    [("http://127.0.0.1:1", "can't be reached"), ("gpubox", "it starts with http://")],
)
def test_without_a_token_a_wrong_address_is_named(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GPUCOORD_TOKEN", raising=False)

    with pytest.raises(RequestFailed, match=says):
        connection.connect(Namespace(url=url, token=None))


def test_the_transport_waits_for_a_connection_no_longer_than_for_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # A queue that is full answers no further connection.
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        began = time.monotonic()
        with pytest.raises(NeverReached, match="does not answer"):
            Transport(f"http://127.0.0.1:{full.getsockname()[1]}", {}, 0.2).request("GET", "/")
        assert time.monotonic() - began < 3
        for each in waiting:
            each.close()


@pytest.mark.parametrize(
    ("size", "shown"),
    [(None, "-"), (0, "0.0 GiB"), (12 * 1024**2, "12 MiB"), (GIB // 10, "0.1 GiB")],
)
def test_a_small_size_is_not_shown_as_nothing(size: int | None, shown: str) -> None:
    assert tables.gib(size) == shown


def test_columns_are_aligned_and_the_last_is_cut() -> None:
    lines = list(tables.table(("A", "LAST"), [("1", "x" * 90), ("22", "\x1b[31m")], 30))

    assert lines[0] == "A   LAST"
    assert (len(lines[1]), lines[1][-1]) == (30, "…")
    assert "\x1b" not in lines[2]


@pytest.mark.parametrize(
    ("words", "name"), [([], "shell"), (["--", "python", "-i"], None), (["--name", "mine"], "mine")]
)
def test_a_shell_is_named_in_the_queue(words: list[str], name: str | None) -> None:
    body = shell.shell_body(shell.shell.parser().parse_args(words))

    assert body.get("name") == name


def test_a_notebook_is_an_interactive_job_with_a_token_of_its_own() -> None:
    options = shell.notebook.parser().parse_args(["--gpus", "1", "--", "--notebook-dir=/data"])
    body = shell.notebook_body(options, "s3cret")

    assert (body["interactive"], body["name"], body["gpus"]) == (True, "notebook", 1)
    assert body["argv"][3:] == ["notebook", "--notebook-dir=/data"]
    assert body["env"] == {"JUPYTER_TOKEN": "s3cret"}
    assert "s3cret" not in " ".join(body["argv"])


def test_a_notebook_says_how_to_open_it() -> None:
    attempt = {"port": 20008, "account": "alice", "host": "gpubox"}
    said = shell.how_to_open({"attempts": [attempt]}, "s3cret")

    link = "http://127.0.0.1:20008/lab?token=s3cret"
    assert said.splitlines() == [
        f"on this computer: {link}",
        f"from another one: ssh -N -L 20008:127.0.0.1:20008 alice@gpubox  # then open {link}",
    ]
    assert "no port" in shell.how_to_open({"attempts": [attempt | {"port": None}]}, "x")


def test_without_jupyter_a_notebook_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, said: Say
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)

    assert shell.notebook([]) == 125
    assert "python -m pip install jupyterlab" in said()
    assert not Job.objects.exists()


def test_resubmit_gives_a_job_again_what_was_deleted_at_its_end(
    alice: User, said: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = jobs_made.waiting(alice, env={"LR": "1", "SEED": "2"}, environment={"OLD": "x"})
    assert job_actions.cancel([str(old.pk)]) == 0
    said()
    monkeypatch.setenv("LR", "3")
    monkeypatch.setattr(submit, "is_local", lambda _: True)

    assert job_actions.resubmit([str(old.pk)]) == 1
    assert "The values of SEED were deleted when the job ended" in said()
    assert job_actions.resubmit([str(old.pk), "--env", "SEED=4"]) == 0

    new = Job.objects.latest("pk")
    assert said() == f"job {old.pk}: submitted again as job {new.pk}\n"
    assert (new.command, new.env) == (old.command, {"LR": "3", "SEED": "4"})
    assert new.input.environment["LR"] == "3"


def test_requeue_of_an_ended_job_names_the_command_that_submits_it_again(
    alice: User, said: Say
) -> None:
    job = jobs_made.finished(alice)

    assert job_actions.requeue([str(job.pk)]) == 1
    assert f"submit it again with gpucoord resubmit {job.pk}" in said()
    assert job_actions.resubmit([str(job.pk), "--json"]) == 0
    assert json.loads(said()) == [{"id": job.pk, "resubmitted": Job.objects.latest("pk").pk}]
