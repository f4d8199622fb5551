from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scheduler.runner import attempt_files, files, process_tree
from scheduler.runner.launch import RunnerStarter
from tests.pace import Stopwatch
from tests.processes.attempts import (
    NONCE,
    RunningAttempt,
    is_running,
    kill_runners,
    wait_for,
)

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]


def test_it_passes_arguments_as_they_are(run: Run) -> None:
    odd = ["two words", "", "*", "$HOME", "ünï→🙂", "new\nline", "\udcff"]
    attempt = run("/usr/bin/printf", "<%s>", *odd)

    attempt.result()
    log = (attempt.folder / files.LOG).read_bytes()
    assert log == "".join(f"<{text}>" for text in odd).encode(errors="surrogateescape")


def test_it_sets_the_environment_and_nothing_of_the_service(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "secret")
    attempt = run("/usr/bin/env", "-0", env={"LR": "3e-4", "CUDA_VISIBLE_DEVICES": "0"})

    attempt.result()
    env = dict(line.split("=", 1) for line in attempt.log().split("\0") if line)
    assert env["LR"] == "3e-4"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["GPUCOORD_JOB_ID"] == "1"
    assert "DATABASE_URL" not in env


def test_it_starts_in_the_working_directory(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    attempt = run("/bin/pwd", cwd=str(folder))

    attempt.result()
    assert attempt.log() == f"{folder}\n"


@pytest.mark.parametrize(("umask", "shown"), [(None, "0022"), (0o077, "0077")])
def test_it_sets_the_umask(run: Run, umask: int | None, shown: str) -> None:
    attempt = run("/bin/sh", "-c", "umask", umask=umask)

    attempt.result()
    assert attempt.log() == f"{shown}\n"


def test_it_sets_soft_limits_up_to_the_hard_ones(run: Run) -> None:
    limits = {"nofile": 77, "stack": 2**20, "core": -1}
    attempt = run(
        "/bin/bash", "-c", "ulimit -Sn; ulimit -Ss; ulimit -Sc; ulimit -Hc", limits=limits
    )

    attempt.result()
    nofile, stack, core, most_core = attempt.log().split()
    assert (nofile, stack, core) == ("77", "1024", most_core)


def test_it_keeps_stdout_and_stderr_in_order(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "for i in 1 2 3; do echo out $i; echo err $i >&2; done")

    attempt.result()
    assert attempt.log().split("\n")[:4] == ["out 1", "err 1", "out 2", "err 2"]


def test_the_text_of_a_copied_script_is_in_no_argument(run: Run) -> None:
    """All accounts of the machine see arguments."""
    text = '#!/bin/bash\nexport KEY=se"cr"et\ntr "\\0" "\\n" < /proc/$$/cmdline\n'
    attempt = run("/bin/bash", "-c", text, "/home/alice/job.sh", "x")

    attempt.result()
    assert attempt.log().splitlines() == ["/bin/bash", "job.sh", "x"]
    assert "KEY" not in attempt.log()


@pytest.mark.parametrize(
    ("shell", "path"), [("bash", "/home/alice/job.sh"), ("bash", "./a/job.sh"), ("sh", "../job.sh")]
)
def test_a_copied_script_runs_as_a_file(run: Run, shell: str, path: str) -> None:
    text = f"""#!/usr/bin/env {shell}
printf '<%s>' "$0" "$@" "$#"
cat <<'END'
data $0 "quoted" \\ `not run`
END
no-such-command
ls -l /proc/self/fd | grep -c memfd:script
exit 7
( data behind the code
"""
    words = ["/usr/bin/env", shell, "-c", text, path, "a b", "", "*"]
    attempt = run(*words)

    assert attempt.result().exit_code == 7
    shown = attempt.log()
    assert shown.startswith(f'<{path}><a b><><*><3>data $0 "quoted" \\ `not run`\n')
    assert "job.sh: line 6: " in shown or "job.sh: 6: " in shown
    # Programs of the script do not inherit it.
    assert shown.endswith("\n0\n")


def test_a_copied_script_may_be_longer_than_an_argument(run: Run) -> None:
    text = "#!/bin/sh\n" + "# a comment\n" * 20_000 + "echo end\n"
    attempt = run("/bin/sh", "-c", text, "/home/alice/job.sh")

    assert attempt.result().exit_code == 0
    assert attempt.log() == "end\n"


def test_it_gives_the_job_nothing_to_read(run: Run) -> None:
    assert run("/bin/cat").result().exit_code == 0


@pytest.fixture
def _as_in_the_background() -> Iterator[None]:
    """A shell lets what it starts by & ignore this."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGQUIT, before)


@pytest.mark.usefixtures("_as_in_the_background")
def test_it_gives_the_job_no_open_file_and_no_blocked_signal(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status")

    attempt.result()
    # 3 is the folder that ls itself reads.
    assert attempt.log().split() == [
        "0",
        "1",
        "2",
        "3",
        *["SigBlk:", "0" * 16, "SigIgn:", "0" * 16],
    ]


def test_it_takes_large_binary_output(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "head -c 50000000 /dev/urandom; head -c 1000000 /dev/zero >&2")

    assert attempt.result().log_bytes == 51_000_000
    assert (attempt.folder / files.LOG).stat().st_size == 51_000_000


def test_only_one_of_many_runners_takes_the_attempt(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "echo once; sleep 0.3")
    for _ in range(10):
        attempt.spawn()

    attempt.result()
    assert attempt.log() == "once\n"


def test_no_runner_takes_what_was_given_up(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "jobs" / "1" / "1"
    assert attempt_files.give_up(folder, NONCE)
    attempt = run("/bin/sh", "-c", "echo ran")
    attempt.spawner.close()

    assert not attempt_files.give_up(folder, NONCE)
    assert not (folder / files.LOG).exists()
    assert attempt.look().claimed == attempt_files.own_claim(NONCE, runner=False)


def test_the_identity_on_disk_is_that_of_the_job(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "echo $$; exec sleep 60")
    attempt.wait_for_log("\n")
    started = attempt.started()

    assert int(attempt.log()) == started.pid == os.getsid(started.pid)
    assert attempt_files.process_tree.start_ticks_of(started.pid) == started.start_ticks
    assert attempt.look().runner_alive


def test_a_runner_that_dies_before_its_job_goes_has_run_nothing(run: Run) -> None:
    """The job's process is held until its identity is on the disk."""
    attempt = run("sleep", "60")
    started = attempt.started()
    kill_runners(started)

    # Too late here for the hold: the job lives on alone, and is found by what it carries.
    wait_for(lambda: not attempt.look().runner_alive)
    assert attempt_files.end_orphans(started, signal.SIGKILL) >= 1
    wait_for(lambda: not is_running(started.pid))
    assert attempt_files.end_orphans(started, None) == 0


def test_the_variables_of_a_job_leave_the_disk_when_it_starts(run: Run) -> None:
    attempt = run("/bin/sh", "-c", "echo $KEY", env={"KEY": "s3cret"})
    attempt.result()

    assert attempt.log() == "s3cret\n"
    assert "s3cret" not in (attempt.folder / files.SPEC).read_text()


def test_a_pool_that_died_is_replaced(run: Run) -> None:
    attempt = run("true")
    attempt.result()
    process = attempt.spawner._process
    assert process is not None
    process.kill()
    process.wait()
    (attempt.folder / files.RESULT).unlink()
    (attempt.folder / files.CLAIMED).unlink()

    attempt.spawn()
    assert attempt.result().exit_code == 0


@pytest.mark.parametrize("also_its_runner", [False, True])
def test_a_pool_that_hangs_delays_a_start_by_two_seconds_only(
    spawner: RunnerStarter, tmp_path: Path, also_its_runner: bool
) -> None:
    (tmp_path / "data" / "jobs").mkdir(parents=True)
    ready = ready_runner(spawner)
    stopped = spawner._process
    assert stopped is not None
    for pid in (stopped.pid, *([ready] if also_its_runner else [])):
        os.kill(pid, signal.SIGSTOP)
    watch = Stopwatch()
    jobs = [
        RunningAttempt(spawner, tmp_path / "data" / "jobs" / "1" / str(n), "true") for n in range(3)
    ]

    def all_have_ended() -> bool:
        left = [job for job in jobs if job.look().claimed is None]
        # As the executor does for each attempt that no runner has claimed.
        for job in left:
            job.spawn()
        time.sleep(0.5)
        return not left

    wait_for(all_have_ended, within_s=20)
    assert not watch.has_run(8)
    assert spawner._process is not stopped
    with suppress(ProcessLookupError):
        os.kill(ready, signal.SIGKILL)


def test_many_orders_at_once_do_not_make_a_pool_that_works_count_as_hung(
    spawner: RunnerStarter, tmp_path: Path
) -> None:
    (tmp_path / "data" / "jobs").mkdir(parents=True)
    spawner.open()
    pool = spawner._process
    jobs = [
        RunningAttempt(spawner, tmp_path / "data" / "jobs" / "1" / str(n), "true")
        for n in range(30)
    ]
    for job in jobs:
        job.result()
    jobs[0].spawn()

    assert spawner._process is pool


def name_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.NoSuchProcess:
        return ""


def ready_runner(spawner: RunnerStarter) -> int:
    """The one that waits for an order, once it does."""
    spawner.open()
    process = spawner._process
    assert process is not None

    def ready() -> list[int]:
        found = [p.pid for p in process_tree.descendants(process.pid)]
        return [pid for pid in found if name_of(pid) == "gpucoord-runner"]

    found: list[int] = wait_for(ready)
    return found[0]


def test_a_runner_that_dies_while_it_waits_is_replaced(run: Run, spawner: RunnerStarter) -> None:
    waiting = ready_runner(spawner)
    os.kill(waiting, signal.SIGKILL)
    wait_for(lambda: ready_runner(spawner) != waiting)

    assert run("true").result().exit_code == 0


def test_a_runner_that_waits_goes_with_the_service(spawner: RunnerStarter) -> None:
    waiting = ready_runner(spawner)

    spawner.close()

    wait_for(lambda: not is_running(waiting))


def test_a_runner_that_waits_takes_an_order_though_the_nursery_has_died(
    run: Run, spawner: RunnerStarter
) -> None:
    ready_runner(spawner)
    process = spawner._process
    assert process is not None
    process.kill()
    process.wait()

    assert run("true").result().exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_it_runs_the_job_as_the_account(run: Run, tmp_path: Path) -> None:
    attempt = run(
        "/bin/sh",
        "-c",
        "echo err >> /dev/stderr; id -u; id -g; id -G",
        uid=65534,
        gid=65534,
        groups=[65534],
        cwd="/tmp",
    )

    attempt.result()
    assert attempt.log().split() == ["err", "65534", "65534", "65534"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_it_enters_no_folder_that_the_account_may_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    result = run(
        "true", uid=65534, gid=65534, groups=[], account="nobody", cwd=str(tmp_path / "closed")
    ).result()

    assert "nobody may not enter" in (result.problem or "")


def test_many_are_started_at_once(spawner: RunnerStarter, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    attempts = [RunningAttempt(spawner, jobs / str(n) / "1", "/bin/true") for n in range(100)]

    assert {attempt.result().exit_code for attempt in attempts} == {0}


def test_a_pool_that_is_stuck_is_replaced(spawner: RunnerStarter, tmp_path: Path) -> None:
    spawner.open()
    stuck = spawner._process
    assert stuck is not None
    os.kill(stuck.pid, signal.SIGSTOP)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    # How many orders it can be given before it does not answer is the kernel's choice.
    for n in range(1000):
        attempt = RunningAttempt(spawner, jobs / str(n) / "1", "/bin/true")
        if spawner._process is not stuck:
            break

    assert stuck.poll() is not None
    assert attempt.result().exit_code == 0
