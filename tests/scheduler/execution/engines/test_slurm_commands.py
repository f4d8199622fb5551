"""Calls of Slurm's commands, by programs that answer as Slurm does."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.execution.engines.facts import EngineAway, SubmitResult, TaskState, Ticket
from scheduler.execution.engines.slurm import SlurmEngine
from tests.pace import Stopwatch

GONE = "slurm_load_jobs error: Invalid job id specified"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
TICKET = Ticket(job_id=12, nonce="ab" * 16, folder="/x", home="/")


@pytest.fixture
def engine(tmp_path: Path) -> SlurmEngine:
    return SlurmEngine(folder=str(tmp_path))


def answer(engine: SlurmEngine, command: str, script: str) -> None:
    """Put a command into the folder of the engine that runs this shell script."""
    path = Path(engine.folder) / command
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_mark_of_a_list_is_no_argument_and_differs_each_time(engine: SlurmEngine) -> None:
    log = Path(engine.folder) / "marks"
    line = "7\\037RUNNING\\037None\\0371000\\037n1\\037n1\\037N/A\\037gpucoord:0123456789abcdef"
    answer(
        engine,
        "squeue",
        f'mark=${{SQUEUE_FORMAT%%\x1f*}}; echo "$*:$mark" >> {log}\n'
        f"printf '%s\\037{line}\\n' \"$mark\"",
    )

    looks = [engine.look(), engine.look()]

    assert [[task.state for task in look.tasks] for look in looks] == [[TaskState.RUNNING]] * 2
    marks = [entry.rpartition(":")[2] for entry in log.read_text().splitlines()]
    arguments, _, _ = log.read_text().partition(":")
    assert len(set(marks)) == 2
    assert "-o" not in arguments.split()


def test_the_accounting_is_asked_only_for_a_job_that_slurm_has_forgotten(
    engine: SlurmEngine,
) -> None:
    answer(engine, "scontrol", f"echo '{GONE}' >&2; exit 1")
    answer(engine, "sacct", "echo '71|FAILED|3:0|gpucoord:0123456789abcdef'")

    allocation = engine.allocation("71")

    assert allocation is not None
    assert (allocation.word, allocation.exit_code) == ("FAILED", 3)


@pytest.mark.parametrize("script", ["exit 1", "true", "echo '71|FAILED|3:0|of another program'"])
def test_without_an_accounting_a_forgotten_job_is_unknown(engine: SlurmEngine, script: str) -> None:
    answer(engine, "scontrol", f"echo '{GONE}' >&2; exit 1")
    answer(engine, "sacct", script)

    assert engine.allocation("71") is None


def test_a_command_that_hangs_is_no_answer_even_if_another_process_holds_its_output(
    engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user can hold the output of the sbatch that runs with the user's account."""
    monkeypatch.setattr("scheduler.execution.engines.slurm.SUBMIT_S", 1.0)
    answer(engine, "sbatch", "setsid sleep 30 & exec sleep 30")
    watch = Stopwatch()

    done = engine.submit(TICKET)

    assert (done.result, done.ref) == (SubmitResult.UNCERTAIN, "")
    assert "gave no answer within 1 s" in done.text
    assert not watch.has_run(10)


def test_an_endless_answer_takes_bounded_memory_and_says_nothing_of_any_job(
    engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.runner.commands.MOST_OUTPUT", 1024**2)
    answer(engine, "squeue", 'head -c 3000000 /dev/zero; echo "too much" >&2')

    look = engine.look()

    assert not look.is_answer
    assert "more than 1 MiB" in look.problem


@pytest.mark.parametrize(
    "script", [r"printf '\377\000\n\n\t\r\n'", "head -c 9999 /dev/urandom", "true"]
)
def test_bytes_that_are_no_list_name_no_job(engine: SlurmEngine, script: str) -> None:
    answer(engine, "squeue", script)

    look = engine.look()

    assert look.is_answer
    assert list(look.tasks) == []


def test_a_silent_slurm_is_away_and_has_not_forgotten_the_job(engine: SlurmEngine) -> None:
    answer(engine, "scontrol", f"echo '{AWAY}' >&2; exit 1")
    answer(engine, "sacct", "echo '71|FAILED|3:0|gpucoord:0123456789abcdef'")

    with pytest.raises(EngineAway, match="Unable to contact"):
        engine.allocation("71")


@pytest.mark.parametrize(
    ("script", "result", "ref"),
    [
        ("echo 12", SubmitResult.ACCEPTED, "12"),
        ("echo 'sbatch: error: Invalid partition name' >&2; exit 1", SubmitResult.REFUSED, ""),
        (f"echo '{AWAY}' >&2; exit 1", SubmitResult.UNCERTAIN, ""),
        # Accepted or not: an answer without a number tells neither.
        ("echo 'a message of a plugin'", SubmitResult.UNCERTAIN, ""),
    ],
)
def test_only_a_refusal_in_slurms_words_is_a_refusal(
    engine: SlurmEngine, script: str, result: SubmitResult, ref: str
) -> None:
    answer(engine, "sbatch", script)

    said = engine.submit(TICKET)

    assert (said.result, said.ref) == (result, ref)


def test_a_job_that_is_over_need_not_be_stopped(engine: SlurmEngine) -> None:
    answer(engine, "scancel", f"echo '{GONE}' >&2; exit 1")
    assert engine.stop("71") == ""

    answer(engine, "scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1")
    assert "permission denied" in engine.stop("71")
