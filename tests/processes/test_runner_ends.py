from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.attempts import RunningAttempt, is_running, wait_for

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]
IGNORES_SIGTERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("code", [0, 1, 3, 77, 255])
def test_it_reports_the_exit_code(run: Run, code: int) -> None:
    result = run("/bin/sh", "-c", f"exit {code}").result()

    assert (result.exit_code, result.signal, result.problem) == (code, None, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_it_reports_the_signal_that_ended_the_job(run: Run, number: int) -> None:
    result = run("/bin/sh", "-c", f"kill -{int(number)} $$").result()

    assert (result.exit_code, result.signal, result.stopped) == (None, number, None)


def test_it_reports_time_and_memory_of_all_processes(run: Run) -> None:
    burn = "x = bytearray(64 << 20); sum(range(3_000_000))"
    result = run("/bin/sh", "-c", f'{sys.executable} -c "{burn}"; true').result()

    assert result.cpu_s is not None
    assert 0.02 < result.cpu_s < 5
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 64 << 20


def test_processes_that_hold_memory_at_the_same_time_count_together(run: Run) -> None:
    # tail holds what it has read until the end of its input.
    holds = "(head -c 64M /dev/zero; sleep 3) | tail > /dev/null"
    bounds = {"process_memory_bytes": 1 << 30}
    result = run("/bin/sh", "-c", f"{holds} & {holds} & wait", bounds=bounds).result()

    assert result.exit_code == 0
    assert result.peak_memory_bytes is not None
    assert 128 << 20 < result.peak_memory_bytes < 200 << 20


def test_it_says_when_the_command_is_not_there(run: Run) -> None:
    result = run("trainn", "--fast").result()

    assert result.exit_code == 127
    assert result.problem == "Command not found: trainn is in no folder of PATH."


def test_it_says_when_the_command_may_not_be_executed(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    result = run(str(script)).result()

    assert result.exit_code == 126
    assert "chmod +x" in (result.problem or "")


def test_it_says_when_a_script_names_no_interpreter(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("print()")
    script.chmod(0o755)

    assert "#!/bin/sh" in (run(str(script)).result().problem or "")


def test_it_says_when_the_working_directory_is_not_there(run: Run) -> None:
    result = run("true", cwd="/no/such/folder").result()

    assert result.exit_code == 126
    assert result.problem == "The working directory /no/such/folder does not exist."


def test_it_stops_a_job_that_obeys(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; sleep 60 & wait")
    attempt.wait_for_log("ready")
    attempt.stop()

    result = attempt.result()
    assert (result.stopped, result.exit_code) == ("asked", 7)
    assert attempt.log() == "ready\nbye\n"


# A launcher that waits for its worker, which has a session of its own. It may get SIGTERM before
# fork() has returned in it, and a handler may interrupt print(), so it uses neither a variable of
# fork() nor print().
LAUNCHER = """if 1:
    import os, signal, time
    launcher = os.getpid()
    def report(*_):
        is_launcher = os.getpid() == launcher
        os.write(1, b"%s got SIGTERM\\n" % (b"launcher" if is_launcher else b"worker"))
        if not is_launcher:
            time.sleep(0.3)
            os._exit(0)
    signal.signal(signal.SIGTERM, report)
    worker = os.fork()
    if not worker:
        os.setsid()
        os.write(1, b"ready\\n")
        time.sleep(60)
    os.waitpid(worker, 0)
"""
# The same in a shell, which stands within milliseconds.
SHELL_LAUNCHER = """setsid sh -c '
    trap "echo worker got SIGTERM; exit" TERM
    while :; do sleep 0.05; done' & wait"""
# The shell ends at SIGTERM. Its program needs longer than what is left behind usually gets.
SLOW_TO_SAVE = """if 1:
    import os, signal, sys, time
    def save(*_):
        os.write(1, b"saving\\n")
        time.sleep(3)
        os.write(1, b"saved\\n")
        sys.exit()
    signal.signal(signal.SIGTERM, save)
    os.write(1, b"ready\\n")
    time.sleep(60)
"""


def test_a_cancel_sends_sigterm_once_to_every_process_also_in_another_session(run: Run) -> None:
    attempt = run(sys.executable, "-c", LAUNCHER)
    attempt.wait_for_log("ready")
    attempt.stop()

    assert attempt.result().stopped == "asked"
    assert sorted(attempt.log().splitlines()) == [
        "launcher got SIGTERM",
        "ready",
        "worker got SIGTERM",
    ]


def test_a_time_limit_sends_sigterm_to_every_process_also_in_another_session(run: Run) -> None:
    attempt = run("/bin/sh", "-c", SHELL_LAUNCHER, time_limit_s=1.0)

    assert attempt.result().stopped == "time_limit"
    assert "worker got SIGTERM" in attempt.log()


def test_a_stopped_program_has_its_whole_grace_after_its_shell_has_ended(run: Run) -> None:
    attempt = run("/bin/sh", "-c", f"{sys.executable} -c '{SLOW_TO_SAVE}'; true", grace_s=20)
    attempt.wait_for_log("ready")
    attempt.stop()
    attempt.result(within_s=20)

    assert attempt.log() == "ready\nsaving\nsaved\n"


def test_it_kills_a_job_that_ignores_being_stopped(run: Run) -> None:
    attempt = run("/bin/sh", "-c", IGNORES_SIGTERM, grace_s=0.3)
    attempt.wait_for_log("ready")
    attempt.stop()

    result = attempt.result()
    assert (result.stopped, result.signal) == ("asked", signal.SIGKILL)


def test_it_stops_a_job_before_it_has_begun(run: Run) -> None:
    attempt = run("sleep", "60")
    attempt.stop()

    assert attempt.result().stopped == "asked"


def test_it_stops_a_job_that_is_held(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "echo ready; kill -STOP $$")
    attempt.wait_for_log("ready")
    attempt.stop()

    assert attempt.result().signal == signal.SIGTERM


def test_it_enforces_the_time_limit(run: Run) -> None:
    result = run("sleep", "60", time_limit_s=0.2).result()

    assert (result.stopped, result.signal) == ("time_limit", signal.SIGTERM)


def test_it_kills_at_the_time_limit_what_ignores_it(run: Run) -> None:
    result = run("/bin/sh", "-c", IGNORES_SIGTERM, time_limit_s=0.2, grace_s=0.2).result()

    assert (result.stopped, result.signal) == ("time_limit", signal.SIGKILL)


def test_it_ends_what_the_job_leaves_behind(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "sleep 60 & echo $!; exit 5")
    result = attempt.result()

    assert result.exit_code == 5
    assert not is_running(int(attempt.log()))


def test_it_kills_a_daemon_that_has_left_the_session(run: Run) -> None:
    code = """if 1:
        import os, signal, time
        heard, told = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print(os.getpid(), flush=True)
                os.write(told, b"x")
                time.sleep(60)
            os._exit(0)
        os.read(heard, 1)
    """
    attempt = run(sys.executable, "-c", code, grace_s=0.2)

    assert attempt.result().exit_code == 0
    assert not is_running(int(attempt.log()))


def test_it_kills_a_daemon_of_a_job_that_is_stopped(run: Run) -> None:
    attempt = run("/bin/sh", "-c", f'setsid sh -c "echo $$; {IGNORES_SIGTERM}" & wait', grace_s=0.2)
    attempt.wait_for_log("ready")
    attempt.stop()

    attempt.result()
    assert not is_running(int(attempt.log().split()[0]))


def test_a_hangup_of_its_terminal_does_not_reach_the_job(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "sleep 0.3; echo done")
    os.kill(attempt.started().runner_pid, signal.SIGHUP)
    os.kill(attempt.started().runner_pid, signal.SIGINT)

    assert attempt.result().exit_code == 0
    assert attempt.log() == "done\n"


def test_the_job_ends_with_nobody_there_but_its_runner(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "echo ready; sleep 0.3; exit 4")
    attempt.wait_for_log("ready")
    attempt.spawner.close()

    assert attempt.result().exit_code == 4


def test_a_runner_belongs_to_nobody_who_started_it(run: Run) -> None:
    runner = run("sleep", "60").started().runner_pid
    stat = Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()

    assert int(stat[3]) == runner
    assert int(stat[1]) != os.getpid()
    wait_for(lambda: Path(f"/proc/{runner}/comm").read_text() == "gpucoord-runner\n")


def test_a_runaway_log_is_cut_and_the_job_goes_on(run: Run) -> None:
    line = "i=0; while [ $i -lt 60 ]; do seq 2000; sleep 0.02; i=$((i+1)); done; echo done; exit 3"
    attempt = run("/bin/sh", "-c", line, bounds={"log_bytes": 100_000})
    result = attempt.result(within_s=20)
    text = attempt.log()

    assert result.exit_code == 3
    assert result.log_bytes == len(text) < 200_000
    assert "the log has reached its limit of 97.66 KiB" in text
    assert text.endswith("2000\ndone\n")
