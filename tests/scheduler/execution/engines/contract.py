"""The contract of each engine, as checks of a stand: an engine, and tickets for commands."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from scheduler.execution.engines.facts import Engine, SubmitResult, TaskReport, TaskState, Ticket
from scheduler.runner import attempt_files, files
from scheduler.runner.spec import Result
from tests.processes.attempts import wait_for

LONG_S = 30.0
# Of a task that this engine never had.
UNKNOWN_NONCE = "0" * 32


class Stand(Protocol):
    engine: Engine

    def ticket(self, command: str) -> Ticket:
        """With the spec of an attempt in its folder."""

    def missing_ref(self) -> str:
        """The ref of a task that the engine does not have."""


def submitted(stand: Stand, ticket: Ticket) -> str:
    answer = stand.engine.submit(ticket)
    assert answer.result is SubmitResult.ACCEPTED, answer.text
    return answer.ref


def reports(stand: Stand, ref: str, nonce: str) -> list[TaskReport]:
    look = stand.engine.look([ref])
    assert look.is_answer, look.problem
    return [task for task in look.tasks if task.nonce == nonce]


def states(stand: Stand, ref: str, nonce: str) -> set[TaskState]:
    return {report.state for report in reports(stand, ref, nonce)}


def result_of(ticket: Ticket) -> Result | None:
    return attempt_files.read_attempt(Path(ticket.folder), ticket.nonce).result


def log_of(ticket: Ticket) -> str:
    path = Path(ticket.folder) / files.LOG
    return path.read_text() if path.exists() else ""


def a_task_runs_and_keeps_its_exit_code(stand: Stand) -> None:
    ticket = stand.ticket("echo ran; sleep 2; exit 7")
    ref = submitted(stand, ticket)

    wait_for(lambda: TaskState.RUNNING in states(stand, ref, ticket.nonce), within_s=LONG_S)
    wait_for(lambda: states(stand, ref, ticket.nonce) == {TaskState.ENDED}, within_s=LONG_S)
    result = wait_for(lambda: result_of(ticket), within_s=LONG_S)
    assert (result.exit_code, log_of(ticket)) == (7, "ran\n")


def a_nonce_that_is_submitted_again_runs_once(stand: Stand) -> None:
    ticket = stand.ticket("echo ran; sleep 1")
    refs = [submitted(stand, ticket) for _ in range(3)]

    result = wait_for(lambda: result_of(ticket), within_s=LONG_S)
    refs.append(submitted(stand, ticket))
    for ref in refs:
        wait_for(
            lambda ref=ref: states(stand, ref, ticket.nonce) == {TaskState.ENDED}, within_s=LONG_S
        )
    assert (result.exit_code, log_of(ticket)) == (0, "ran\n")


def a_task_that_the_engine_does_not_have_is_missing_and_not_ended(stand: Stand) -> None:
    ref = stand.missing_ref()

    assert [task for task in stand.engine.look([ref]).tasks if task.ref == ref] == []


def a_look_of_nothing_is_an_answer(stand: Stand) -> None:
    assert stand.engine.look([]).is_answer


def a_stop_that_is_repeated_is_harmless(stand: Stand) -> None:
    ticket = stand.ticket("trap 'echo stopped; exit 3' TERM; echo ran; while :; do sleep 0.2; done")
    ref = submitted(stand, ticket)
    wait_for(lambda: log_of(ticket) == "ran\n", within_s=LONG_S)

    answers = [stand.engine.stop(ref) for _ in range(3)]
    result = wait_for(lambda: result_of(ticket), within_s=LONG_S)
    wait_for(lambda: states(stand, ref, ticket.nonce) <= {TaskState.ENDED}, within_s=LONG_S)
    answers.append(stand.engine.stop(ref))

    assert answers == [""] * 4
    # The shell may name the signal too.
    assert log_of(ticket).split().count("stopped") == 1, log_of(ticket)
    assert result.exit_code == 3


def a_stop_of_a_task_that_the_engine_does_not_have_is_harmless(stand: Stand) -> None:
    assert stand.engine.stop(stand.missing_ref()) == ""


def a_nonce_that_was_given_up_never_runs(stand: Stand) -> None:
    ticket = stand.ticket("echo ran")
    assert stand.engine.give_up(ticket)

    ref = submitted(stand, ticket)
    wait_for(lambda: states(stand, ref, ticket.nonce) == {TaskState.ENDED}, within_s=LONG_S)
    assert (result_of(ticket), log_of(ticket)) == (None, "")


def a_nonce_whose_runner_was_faster_is_not_given_up(stand: Stand) -> None:
    ticket = stand.ticket("echo ran; sleep 60")
    ref = submitted(stand, ticket)
    wait_for(lambda: log_of(ticket), within_s=LONG_S)

    assert not stand.engine.give_up(ticket)
    stand.engine.stop(ref)
    wait_for(lambda: result_of(ticket), within_s=LONG_S)


def a_hold_works_or_says_why_not(stand: Stand) -> None:
    ref = stand.missing_ref()

    if not stand.engine.capabilities().can_hold:
        assert stand.engine.hold(ref) != ""
        assert stand.engine.release(ref) != ""


def its_nodes_have_names_and_no_invented_figures(stand: Stand) -> None:
    nodes = stand.engine.nodes()

    assert nodes
    assert all(node.name and node.gpus != 0 for node in nodes)


CHECKS = (
    a_task_runs_and_keeps_its_exit_code,
    a_nonce_that_is_submitted_again_runs_once,
    a_task_that_the_engine_does_not_have_is_missing_and_not_ended,
    a_look_of_nothing_is_an_answer,
    a_stop_that_is_repeated_is_harmless,
    a_stop_of_a_task_that_the_engine_does_not_have_is_harmless,
    a_nonce_that_was_given_up_never_runs,
    a_nonce_whose_runner_was_faster_is_not_given_up,
    a_hold_works_or_says_why_not,
    its_nodes_have_names_and_no_invented_figures,
)
